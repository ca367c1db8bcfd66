"""What fails and is tried again, and what is said of it: at once, then at most once a minute."""

import errno
import time
from typing import Final

from transports.own_log import own_log as _log

_AGAIN_NS: Final = 60 * 1_000_000_000
_PROGRAM_ERRORS: Final = {
    errno.EBADF, errno.ENOTSOCK, errno.EFAULT, errno.EDESTADDRREQ, errno.EAFNOSUPPORT,
    errno.EPROTOTYPE, errno.EOPNOTSUPP, errno.ENOTCONN, errno.EISCONN,
}  # fmt: skip


def is_program_error(error: OSError) -> bool:
    """Whether a socket call failed because of how it was called, and not because of the network.

    Firewalls, routes, interfaces and addresses that are away, limits of the system: all else is the
    network. `EINVAL` is, too: Linux gives it where the socket's own address is gone.
    """
    return error.errno in _PROGRAM_ERRORS


class Rarely:
    """Lets something be said at once, and then once a minute."""

    __slots__ = ("_due_ns",)

    def __init__(self) -> None:
        self._due_ns = 0

    def is_due(self, now_ns: int | None = None) -> bool:
        """Whether it may be said now, by the clock if not given; then not again for a minute."""
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _AGAIN_NS
        return True


class Trouble:
    """What is tried again until it works: failures are counted, and said rarely.

    Failures may alternate with successes, as with a firewall that drops a part: that it works again
    is said only where it was said that it does not.

    Args:
        place: where, and what fails, for people.
        consequence: what that means while it lasts.

    Attributes:
        count: failures since it was made.
        why: why it failed last; "" where it works.

    """

    __slots__ = ("_consequence", "_count_before", "_is_said", "_place", "_rarely", "count", "why")

    def __init__(self, place: str, consequence: str) -> None:
        self._place, self._consequence = place, consequence
        self._rarely, self._is_said = Rarely(), False
        self.count = self._count_before = 0
        self.why = ""

    def note(self, error: Exception | str, count: int = 1) -> None:
        """Note that it failed, so often."""
        if not self.why:
            self._count_before = self.count
        self.count += count
        self.why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        if self._rarely.is_due():
            self._is_said = True
            _log.warning(
                "%s: %s. It is tried again; %s (failures so far: %d)",
                self._place, self.why, self._consequence, self.count,
            )  # fmt: skip

    def over(self) -> None:
        """Note that it worked."""
        if self.why and self._is_said:
            self._is_said = False
            failures = self.count - self._count_before
            _log.warning("%s: it works again, after %d failures", self._place, failures)
        self.why = ""
