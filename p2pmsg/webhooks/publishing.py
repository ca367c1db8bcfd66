"""Whether what is posted can be published: said in the log, and reported for a while."""

import time
from typing import Any, Final

from p2pmsg.errors import MessageError, MessageTooLargeError
from p2pmsg.trouble import Rarely, Trouble
from p2pmsg.webhooks.schemes import RejectedError

_UNHEALTHY_S: Final = 15.0
"""How long a failure is reported, so that it is tried again where nothing is sent meanwhile."""


class Publishing:
    """Notes whether a publisher takes what is posted.

    Args:
        publisher: a `p2pmsg.Publisher`, or one of `p2pmsg.aio`.
        what: what is done with it, for the log: `publishing webhooks`.
        consequence: what it means that this fails, for the log.

    """

    def __init__(self, publisher: Any, what: str, consequence: str) -> None:
        self._publisher = publisher
        self._trouble = Trouble(what, consequence, Rarely())
        self._failure, self._failed_s = "", 0.0

    def failed(self, error: Exception) -> None:
        """Note that it failed, and how."""
        self._failure, self._failed_s = str(error), time.monotonic()
        self._trouble.note(self._failure, now_ns=time.monotonic_ns())

    def worked(self) -> None:
        """Note that it worked."""
        self._failed_s = 0.0
        self._trouble.over()

    def failing(self) -> str | None:
        """Return why nothing can be published: the last one failed, not longer ago than 15 s.

        Also where the publisher has gone on without its log, as `on_error="continue"` has it.
        """
        if self._failed_s and time.monotonic() - self._failed_s < _UNHEALTHY_S:
            return self._failure
        log = getattr(self._publisher.stats(), "log", None)
        failed = None if log is None else log.failed
        return None if failed is None else str(failed)


def refusal(error: MessageError) -> RejectedError:
    """Return with what a message is answered that the publisher does not take: 413, or 400."""
    if isinstance(error, MessageTooLargeError):
        return RejectedError(413, "size", f"{error} (message_bytes_max)")
    return RejectedError(400, "message", str(error))
