"""Who a process is, so that others on the same machine can see that it ended.

A broken connection says little: the worker may be alive, at work on a job that must not be given to
another yet. That its process ended says everything.
"""

import os
import socket

from p2pmsg.queue.frames import Process
from recovery import platform
from transports.platform import process_namespace, read_proc

_ENDED = frozenset("ZXx")


def this_process() -> Process:
    """Return how other processes know this one."""
    started = _started(os.getpid())
    return Process(host(), os.getpid(), started) if started is not None else Process()


def host() -> str:
    """Name the set of processes among which an id means one process; empty where unknown.

    Containers share their machine's boot id, and not its process ids: hence the name space, too.
    """
    try:
        return f"{platform.boot_id()}/{process_namespace()}"
    except OSError:
        return ""


def is_gone(where: str, pid: int, started: int) -> bool:
    """Whether a process is known to have ended; False where one cannot know."""
    if not where or where != host() or pid < 1:
        return False
    try:
        return _started(pid) != started
    except ValueError:
        return False


def worker_name() -> str:
    """Return how this process is called where people read it."""
    return f"{socket.gethostname()[:200]}:{os.getpid()}"


def _started(pid: int) -> int | None:
    """Return when a process began, in ticks; None where it has ended."""
    try:
        stat = read_proc(f"{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise ValueError(str(error)) from error
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in _ENDED else int(fields[19])
