"""What the network refuses for now: counted, and said at once, then once a minute."""

import errno
import time
from typing import Final

from transports.own_log import own_log as _log

_LOG_AGAIN_NS: Final = 60_000_000_000
_WORKS_NS: Final = 5_000_000_000
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


class Failing:
    """Counts what fails, and warns: at the first failure, once a minute, and when it works again.

    Failures may alternate with successes, as with a firewall that drops a part. So what fails works
    again only once nothing has failed for `works_ns`.

    Args:
        place: where, for people.
        what: what fails, such as "datagrams cannot be sent".
        consequence: what that means.
        works_ns: see above. Default 5 s.

    Attributes:
        count: failures since it was made.
        why: the system's text for the last one; "" where it works.

    """

    def __init__(
        self, place: str, what: str, consequence: str, *, works_ns: int = _WORKS_NS
    ) -> None:
        self._place, self._what, self._consequence = place, what, consequence
        self._works_ns = works_ns
        self._failed_ns = self._due_ns = 0
        self._logged = False
        self.count = 0
        self.why = ""

    def note(self, error: Exception, count: int = 1) -> None:
        """Note that it failed, so often."""
        now_ns = time.monotonic_ns()
        self._failed_ns = now_ns
        self.count += count
        self.why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _LOG_AGAIN_NS
            self._logged = True
            _log.warning(
                "%s: %s: %s (%d so far); %s",
                self._place, self._what, self.why, self.count, self._consequence,
            )  # fmt: skip

    def worked(self) -> None:
        """Note that it worked; to be called where `why` is set."""
        if time.monotonic_ns() - self._failed_ns < self._works_ns:
            return
        self.why = ""
        if self._logged:
            self._logged = False
            _log.warning(
                "%s: it works again, after %d failures in all (%s)",
                self._place, self.count, self._what,
            )  # fmt: skip
