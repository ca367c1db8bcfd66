"""How the command `p2pmsg` ends on Ctrl-C: status 130, and no traceback at any moment.

The package imports this before anything else, since its import takes most of a second on a slow
machine. Where it is imported by another program nothing is done: its signals are its own.

At first Ctrl-C ends the process at once, since nothing has begun. While the command runs it is a
`KeyboardInterrupt`, but not a second one within three seconds, so that what is open is closed in
peace. When the command has ended it ends the process at once again. SIGTERM, which the command
takes for itself while it runs, neither disturbs the closing nor changes the status of a command
that has ended.
"""

import os
import signal
import sys
import time

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

INTERRUPTED = 130
_AGAIN_S = 3.0
"""So long the end is not disturbed by a second Ctrl-C."""
_last_s = -_AGAIN_S
_was_pressed = False


def run(command: "Callable[[], int]") -> int:
    """Call `command` and return its status; 130 if Ctrl-C was pressed, whatever became of it."""
    status = INTERRUPTED
    try:
        try:
            _on_ctrl_c(_interrupt)
            status = command()
        finally:
            _on_ctrl_c(_end_at_once)
    except BaseException as error:
        _on_ctrl_c(_end_at_once)
        if not (_was_pressed or isinstance(error, KeyboardInterrupt)):
            raise
    return INTERRUPTED if _was_pressed else status


def is_again() -> bool:
    """Note a signal to end, and return whether one came within the last three seconds."""
    global _last_s
    if time.monotonic() - _last_s < _AGAIN_S:
        return True
    _last_s = time.monotonic()
    return False


def keep_status(status: int) -> None:
    """Have SIGTERM end the process at once with `status`: the command has ended."""
    if _is_command:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(status))


def _check() -> bool:
    """Whether this process is the command `p2pmsg`, and Ctrl-C has no handler of its own."""
    name = sys.argv[0] if sys.argv else ""
    if name == "-m":  # so it is called while Python looks for the module
        asked = " ".join(sys.orig_argv[1:]) + " "
        is_ours = "-m p2pmsg " in asked or "-mp2pmsg " in asked
    else:
        is_ours = os.path.basename(name) == "p2pmsg"
    return is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _on_ctrl_c(handler: "Callable[[int, FrameType | None], None]") -> None:
    if _is_command:
        signal.signal(signal.SIGINT, handler)


def _interrupt(number: int, frame: "FrameType | None") -> None:
    global _was_pressed
    _was_pressed = True
    if not is_again():
        raise KeyboardInterrupt


def _end_at_once(number: int = 0, frame: "FrameType | None" = None) -> None:
    """Exit without waiting for threads; nothing is open any more, or nothing is open yet."""
    os._exit(INTERRUPTED)


def _ignore() -> None:
    """Let nothing interrupt while the interpreter takes itself apart."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


_is_command = _check()
if _is_command:
    signal.signal(signal.SIGINT, _end_at_once)
    import atexit

    atexit.register(_ignore)  # before all others, so that it is called after them
