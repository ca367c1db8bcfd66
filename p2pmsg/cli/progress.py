"""A bar that shows how far a command is: on a terminal only, and with rich (the extra `cli`)."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from p2pmsg.cli.arguments import is_terminal

FIRST_S: Final = 1.0
"""What takes less time gets no bar."""


@contextmanager
def drawn(unit: str, count: Callable[[], tuple[int, int]], *, quiet: bool) -> Iterator[None]:
    """Draw a bar on standard error while the block runs; what is printed meanwhile stays above it.

    Args:
        unit: what is counted: `messages`, `jobs`; of `bytes`, large units are shown.
        count: returns how much is done, and of how much; called several times a second, in another
            thread. While all is done there is no bar.
        quiet: whether there is none at all.

    """
    bar = None
    if not quiet and is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb":
        try:
            bar = _bar(unit, count)
        except ImportError:
            pass  # rich is not there
    if bar is None:
        yield
    else:
        with bar:
            yield


def _bar(unit: str, count: Callable[[], tuple[int, int]]) -> Any:
    from rich import progress
    from rich.console import Console, RenderableType

    class Polled(progress.Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            done, total = count()
            is_shown = done < total and time.monotonic() - began_s >= FIRST_S
            for task in self.task_ids:
                self.update(task, completed=done, total=total, visible=is_shown)
            return super().get_renderables()

    began_s = time.monotonic()
    if unit == "bytes":
        counts = [progress.DownloadColumn(), progress.TransferSpeedColumn()]
    else:
        counts = [progress.MofNCompleteColumn(), progress.TextColumn(unit)]
    bar = Polled(
        progress.BarColumn(), progress.TaskProgressColumn(), *counts,
        progress.TimeRemainingColumn(), console=Console(stderr=True), transient=True,
        redirect_stdout=is_terminal(sys.stdout),
    )  # fmt: skip
    bar.add_task(unit, visible=False)
    return bar
