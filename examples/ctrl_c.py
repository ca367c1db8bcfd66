"""How the examples end on Ctrl-C: a short line, status 130, no traceback, no process left behind.

Imported before anything that takes long to import; an example works without it as well, and then
ends as any Python program does. It is no part of the library.
"""

import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

Result = TypeVar("Result")
INTERRUPTED = 130
_AGAIN_S = 3.0
"""So long the clean-up is not disturbed by a second Ctrl-C."""
_PATIENCE_S = 3.0
_SILENCE_S = 15.0
"""So long Spark may take to be silenced, on a busy machine; it takes some ms else."""
_is_program = Path(sys.argv[0]).resolve().parent == Path(__file__).resolve().parent
_last_s = -_AGAIN_S
_was_pressed = False


def run(main: Callable[..., int | None], *arguments: Any) -> None:
    """Call `main`, and exit with its status where that is not 0; on Ctrl-C with 130."""
    status: int | None = None
    ended = False
    try:
        try:
            if _is_program:
                signal.signal(signal.SIGINT, _interrupt)
            status = main(*arguments)
            ended = True
        finally:
            if _is_program:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                if not ended:
                    _silence_spark()
                    _end_children()
    except BaseException:
        if not _was_pressed:  # failures that Ctrl-C causes are not logged
            raise
    if _was_pressed:
        sys.stdout.flush()
        _end_at_once()
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
    """Call what starts a process and waits for it, such as `getOrCreate`; Ctrl-C ends the wait.

    It runs in a thread that Ctrl-C is held back from, and so is the process that it starts.
    """
    if not _is_program:
        return work()
    done: Future[Result] = Future()

    def run_held() -> None:
        with held():
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

    threading.Thread(target=run_held, name="starting", daemon=True).start()
    return done.result()


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _last_s, _was_pressed
    _was_pressed = True
    logging.disable()  # connections break now, and libraries say so at length
    sys.stderr = io.StringIO()
    if time.monotonic() - _last_s >= _AGAIN_S:
        _last_s = time.monotonic()
        asyncio: Any = sys.modules.get("asyncio")
        if asyncio is None or (loop := asyncio._get_running_loop()) is None:
            raise KeyboardInterrupt
        # In the middle of the loop's own work it would lose a task's next step, and that task would
        # be waited for without end.
        loop.call_soon_threadsafe(_raise)


def _raise() -> None:
    raise KeyboardInterrupt


def _end_at_once(number: int = 0, frame: FrameType | None = None) -> None:
    """Exit without waiting for threads; nothing is open any more, or nothing is open yet."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _silence_spark() -> None:
    """Have Spark say nothing of the jobs that end with it; give it a moment for that."""
    context: Any = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    jvm = getattr(context, "_jvm", None)
    if jvm is not None:  # perhaps it is still making its context
        asking = threading.Thread(target=_silence, args=(jvm,), daemon=True)
        asking.start()
        asking.join(_SILENCE_S)


def _silence(jvm: Any) -> None:
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setRootLevel(log4j.Level.OFF)
    java = jvm.java  # threads of Spark that fail now print it, whatever the log level
    java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))


def _end_children() -> None:
    """Terminate the processes that were started, and kill those that do not end.

    Those that they have started, as Spark's workers, are killed first: each would report at length
    that its parent has gone.
    """
    for child in _children():
        for grandchild in _started_by(child):
            try:
                os.kill(grandchild, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended
    deadline_s = time.monotonic() + _PATIENCE_S
    number = signal.SIGTERM
    while children := _children():
        for child in children:
            try:
                os.kill(child, number)
                os.waitpid(child, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                pass  # it has ended
        if time.monotonic() > deadline_s:
            number = signal.SIGKILL
        time.sleep(0.05)


def _children() -> list[int]:
    """Return the processes whose parent is this one, those that have ended and wait included."""
    found = _started_by(os.getpid(), deep=False)
    tracker: Any = sys.modules.get("multiprocessing.resource_tracker")
    its_id = getattr(getattr(tracker, "_resource_tracker", None), "_pid", None)
    return [child for child in found if child != its_id]  # that one ends with us by itself


def _started_by(process: int, *, deep: bool = True) -> list[int]:
    """Return a process's children, and where `deep` theirs, the youngest generation first."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue  # a thread that has ended
        for child in children if deep else []:
            found += _started_by(child)
        found += children
    return found


def _say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Exit with one line for what the user can mend: a missing package, an endpoint in use."""
    p2pmsg: Any = sys.modules.get("p2pmsg")
    is_argument = p2pmsg is not None and issubclass(kind, p2pmsg.ConfigError)
    is_taken = p2pmsg is not None and issubclass(kind, p2pmsg.BindError)
    is_extra = p2pmsg is not None and issubclass(kind, p2pmsg.errors.MissingExtraError)
    if not (is_argument or is_taken or is_extra or issubclass(kind, ModuleNotFoundError)):
        sys.__excepthook__(kind, error, trace)
        return
    missing = None if is_extra else getattr(error, "name", None)
    packages = {"pyspark": "'p2pmsg[spark]'"}
    advice = f": pip install {packages.get(missing, missing)}" if missing else ""
    print(f"{Path(sys.argv[0]).name}: {error}{advice}", file=sys.stderr)
    sys.exit(2 if is_argument else 1)


if _is_program:
    signal.signal(signal.SIGINT, _end_at_once)
    sys.excepthook = _say
