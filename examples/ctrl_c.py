"""How the examples end on Ctrl-C: a short line, status 130, no process left behind.

Imported before anything that takes long to import; an example works without it as well, and then
ends as any Python program does. It is no part of the library.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")
INTERRUPTED = 130
_is_program = Path(sys.argv[0]).resolve().parent == Path(__file__).resolve().parent


def run(main: Callable[..., int | None], *arguments: Any) -> None:
    """Call `main`, and exit with its status where that is not 0; on Ctrl-C with 130."""
    if not _is_program:
        main(*arguments)
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = main(*arguments)
    except KeyboardInterrupt:
        _end()
    except BaseException:
        _end_processes()
        raise
    signal.signal(signal.SIGINT, _end)
    if status:
        sys.exit(status)


@contextmanager
def held() -> Iterator[None]:
    """Hold Ctrl-C back; processes that are started meanwhile never get it, and are ended by us."""
    if "multiprocessing" in sys.modules:
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # or the first start does it, and lets Ctrl-C through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def call(work: Callable[[], Result]) -> Result:
    """Make a Spark session, and take Ctrl-C back: Spark would report the jobs that it cancels."""
    made = work()
    if _is_program:
        signal.signal(signal.SIGINT, _interrupt)
    return made


def _interrupt(number: int, frame: object) -> None:
    logging.disable()
    raise KeyboardInterrupt


def _end(number: int = 0, frame: object = None) -> None:
    """Exit without waiting for threads; nothing is open any more, or nothing is open yet."""
    _end_processes()
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _end_processes() -> None:
    """End all that was started; Java at once, which would report that its jobs are cancelled."""
    for process in _started_by(os.getpid()):
        try:
            is_java = Path(f"/proc/{process}/comm").read_text() == "java\n"
            os.kill(process, signal.SIGKILL if is_java else signal.SIGTERM)
        except OSError:
            pass  # it has ended


def _started_by(process: int) -> list[int]:
    """Return a process's children, and theirs before them."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue  # a thread that has ended
        for child in children:
            found += [*_started_by(child), child]
    return found


if _is_program:
    signal.signal(signal.SIGINT, _end)
