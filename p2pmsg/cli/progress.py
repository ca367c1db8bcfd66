"""A bar that shows how far a command is; on a terminal only, and without a package of its own."""

import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from p2pmsg.cli.arguments import is_terminal
from p2pmsg.cli.text import bytes_text, rate_text, span_text

FIRST_S: Final = 1.0
"""What takes less time gets no bar."""
_DRAW_EVERY_S: Final = 0.1
_LOOK_S: Final = 0.2
_BAR_MAX: Final = 40


class Bar:
    """A line that is drawn over itself; nothing where there is no terminal. Thread-safe.

    Args:
        file: where to draw, or None.
        unit: what is counted: `messages`, `jobs`; of `bytes`, large units are shown.

    Attributes:
        unit: as above; it may change.

    """

    def __init__(self, file: TextIO | None, unit: str = "messages") -> None:
        self._file = file
        self.unit = unit
        self._lock = threading.RLock()
        self._began_s: float | None = None
        self._drawn_s = -math.inf
        self._is_drawn = False

    @property
    def is_shown(self) -> bool:
        """Whether there is a terminal to draw on."""
        return self._file is not None

    def update(self, done: int, total: int, *, now_s: float) -> None:
        """Draw it, if the last time is a tenth of a second ago; not in the first second."""
        if self._began_s is None:
            self._began_s = now_s
        seconds = now_s - self._began_s
        if self._file is None or seconds < FIRST_S or now_s - self._drawn_s < _DRAW_EVERY_S:
            return
        columns = shutil.get_terminal_size().columns
        text = bar_text(done, total, seconds, columns - 1 - len("^C"), self.unit)
        with self._lock:
            self._drawn_s = now_s
            self._is_drawn = True
            self._file.write(f"\r\x1b[K{text}")
            self._file.flush()

    def clear(self) -> None:
        """Remove it."""
        with self._lock:
            if self._file is not None and self._is_drawn:
                self._is_drawn = False
                self._file.write("\r\x1b[K")
                self._file.flush()

    def around(self, report: Callable[[str], object]) -> Callable[[str], object]:
        """Return a `report` that removes the bar first."""

        def report_cleanly(text: str) -> None:
            with self._lock:
                self.clear()
                report(text)

        return report_cleanly


def make_bar(unit: str, *, quiet: bool) -> Bar:
    """Return a bar on standard error, where that is a terminal that can draw one."""
    can_draw = is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
    return Bar(sys.stderr if can_draw and not quiet else None, unit)


@contextmanager
def looking(look: Callable[[], None] | None) -> Iterator[None]:
    """Call `look` a few times a second in a thread of its own while the block runs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(_LOOK_S):
            assert look is not None
            look()

    if look is None:
        yield
        return
    thread = threading.Thread(target=repeat, name="p2pmsg-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(1.0)


@contextmanager
def drawn(bar: Bar, count: Callable[[], tuple[int, int]]) -> Iterator[None]:
    """Draw a bar while the block runs; `count` returns how much is done, and of how much."""

    def look() -> None:
        bar.update(*count(), now_s=time.monotonic())

    try:
        bar.update(0, 0, now_s=time.monotonic())
        with looking(look if bar.is_shown else None):
            yield
    finally:
        bar.clear()


def bar_text(done: int, total: int, seconds: float, columns: int, unit: str = "messages") -> str:
    """Return the bar: how much is done, how fast, and how long it will take yet."""
    share = done / total if total else 1.0
    rate = done / seconds if seconds > 0 else 0.0
    left_s = max(1, round((total - done) / rate)) if rate else 0
    left = f", {span_text(left_s)} left" if rate and done < total else ""
    if unit == "bytes":
        counts, speed = f"{bytes_text(done)} of {bytes_text(total)}", bytes_text(rate)
    else:
        counts, speed = f"{done:,} of {total:,} {unit}", rate_text(rate)
    text = f"{share:4.0%} {counts}, {speed}/s{left}"
    width = min(_BAR_MAX, columns - len(text) - 3)
    if width < 5:
        return text[: max(0, columns)]
    full = int(share * width)
    return f"[{'#' * full}{'.' * (width - full)}] {text}"
