"""How peers end: with their `with` block, when the interpreter exits, and in a forked child.

What is still open at exit is closed, so that what was accepted can leave, and a `ResourceWarning`
names it: its own threads hold it, so that the garbage collector never finds it before. From Python
3.12 on no thread can be started then, so the exiting thread does it; the peers' own threads were
started when they were made. A forked child inherits neither sockets nor threads: its copies of
peers are closed.
"""

import atexit
import os
import resource
import sys
import threading
import time
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, Final, NoReturn, Protocol, Self

import transports
from p2pmsg.errors import ClosedError, ConfigError, TransportError
from transports.own_log import own_log as _log

INHERITED: Final = "it belongs to the parent process; open another one in this process"
"""Why a forked child cannot use its copy of a peer."""
EXIT_S: Final = 1.0
"""How long that may take in all, in seconds: as long as what a closed peer sent may linger."""
DESCRIPTORS: Final = 16
"""How many must be free where a peer opens: more than most take, with what libzmq needs meanwhile,
which aborts the process where it finds none."""
_SHOWN: Final = 10
"""How many peers that were left open a warning names."""
_context: Final = transports.context  # its handler, registered first, runs after this one
_quiet: Final[list[bool]] = []
_open: dict[int, tuple[Any, Callable[[Any, float], object], float]] = {}
_children: Final[set[int]] = set()
"""Processes of multiprocessing that end by `_close_all`."""


def check_process() -> None:
    """Check that this process can open a peer.

    Raises:
        ConfigError: gevent has replaced its threads, or how they wait.
        TransportError: fewer than 16 descriptors are free.

    """
    gevent = sys.modules.get("gevent.monkey")
    patched = [*filter(gevent.is_module_patched, ("threading", "select"))] if gevent else []
    if patched:
        limit = "called with thread=False, select=False, since p2pmsg needs the system's threads"
        raise ConfigError("gevent's monkey.patch_all()", limit, patched)
    taken: list[int] = []
    try:
        taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        while len(taken) < DESCRIPTORS:
            taken.append(os.dup(taken[0]))
    except OSError as error:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        text = f"a peer that opens needs {DESCRIPTORS} free descriptors, and {len(taken)} are free"
        raise TransportError(f"{text}: {error.strerror} (ulimit -n is {files})") from error
    finally:
        for fd in taken:
            os.close(fd)


def zmq_context() -> transports.Context:
    """Do as `check_process`, and return the ZeroMQ context for the peer's sockets."""
    check_process()
    return transports.context()


def is_inherited(error: BaseException) -> bool:
    """Whether it says that a forked child used a peer of its parent: that ends no loop quietly."""
    return isinstance(error, ClosedError) and error.why == INHERITED


class NotCopied:
    """What has sockets and threads, of which there can be no copy."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        name = type(self).__name__
        article = "an" if name[0] in "AEIOU" else "a"
        raise TypeError(
            f"{article} {name} cannot be copied or pickled: open another one in the other process"
        )


class ClosesItself(NotCopied, ABC):
    """Closes at the end of its `with` block, and waits for others meanwhile.

    After KeyboardInterrupt, pending batches are flushed, but nothing else is waited for.
    """

    _patience_s: ClassVar[float | None] = 5.0
    """How long closing may take; None: as long as it takes."""
    _hurried_s: ClassVar[float] = 0.2
    """The same after Ctrl-C."""

    @abstractmethod
    def close(self, *arguments: Any, **options: Any) -> Any:
        """Close within so many seconds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(self._hurried_s if isinstance(error, KeyboardInterrupt) else self._patience_s)

    def _leave(self, time_s: float | None) -> None:
        self.close(timeout=time_s)


class Forgetful(Protocol):
    """A peer that can forget what belongs to the parent process."""

    def _forget(self) -> None: ...


_peers: "weakref.WeakSet[Forgetful]" = weakref.WeakSet()


def close_in_children(peer: Forgetful) -> None:
    """Close the copy of `peer` in every child that is forked from now on."""
    _peers.add(peer)


def _forget_all() -> None:
    for peer in list(_peers):
        peer._forget()


def close_at_exit(peer: Any, close: Callable[[Any, float], object], time_s: float = EXIT_S) -> None:
    """Call `close` with `peer` and how many seconds are left, unless it is closed before.

    In a process that multiprocessing forked, too, which skips `atexit`.

    Args:
        peer: to be closed.
        close: closes it.
        time_s: how long that may take, from the end of the program on. Default 1.0.

    """
    _open[id(peer)] = peer, close, time_s
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    if multiprocessing is None or multiprocessing.parent_process() is None:
        return
    if os.getpid() not in _children:
        from multiprocessing.util import Finalize

        _children.add(os.getpid())
        Finalize(None, _close_all, exitpriority=0)


def was_closed(peer: Any) -> None:
    """Forget a peer, which was closed."""
    _open.pop(id(peer), None)


def _close_all() -> None:
    quiet_threads()
    if not _open:
        return
    began = time.monotonic()
    hurried = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    left: list[str] = []
    while _open:
        # The last one first, but before it those that take less.
        key = min(reversed(_open), key=lambda each: _open[each][2])
        peer, close, time_s = _open.pop(key)
        deadline = began + (min(time_s, EXIT_S) if hurried else time_s)
        if not getattr(peer, "_closed", False):  # else Ctrl-C ended its close, which goes on here
            left.append(repr(peer))
        try:
            close(peer, max(0.0, deadline - time.monotonic()))
        except Exception:
            _log.exception("%r could not be closed at exit", peer)
    if not left:
        return
    shown = ", ".join(left[:_SHOWN]) + ", ..." * (len(left) > _SHOWN)
    text = f"{len(left)} not closed when the program ended: {shown}"
    warnings.warn(text, ResourceWarning, stacklevel=1)


def quiet_threads() -> None:
    """Say nothing of daemon threads that find their peer closed, since the process ends."""
    if not _quiet:
        _quiet.append(True)
        threading.excepthook = _quietly(threading.excepthook)


def _quietly(
    hook: Callable[[threading.ExceptHookArgs], Any],
) -> Callable[[threading.ExceptHookArgs], Any]:
    def report(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, ClosedError):
            hook(args)

    return report


atexit.register(_close_all)
os.register_at_fork(after_in_child=_open.clear)
os.register_at_fork(after_in_child=_forget_all)
