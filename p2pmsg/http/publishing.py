"""Publishes what is posted, and says whether that works."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from p2pmsg.errors import MessageError, MessageTooLargeError, P2PError
from p2pmsg.http.asgi import RejectedError
from p2pmsg.toolkit import Trouble

_UNHEALTHY_S: Final = 15.0
"""How long a failure is reported, so that it is tried again where nothing is sent meanwhile."""
_THREADS: Final = 8
R = TypeVar("R")


@runtime_checkable
class AnyPublisher(Protocol):
    """A `p2pmsg.Publisher`, or one of `p2pmsg.aio`."""

    @property
    def publish(self) -> Callable[..., int]:
        """Accepts a message: topic, value, and by name `key`, `timestamp_ns` and `headers`."""

    def stats(self) -> Any:
        """Return the counters."""


class Publishing:
    """A publisher of either kind, as it is used in an event loop.

    Args:
        publisher: a `p2pmsg.Publisher`, or one of `p2pmsg.aio`.
        what: what is done with it, for the log: `publishing webhooks`.
        consequence: what it means that this fails, for the log.

    Attributes:
        is_async: whether it is one of `p2pmsg.aio`.
        threads: in which one of the other kind publishes.

    """

    def __init__(self, publisher: Any, what: str, consequence: str) -> None:
        self._publisher = publisher
        self.is_async = asyncio.iscoroutinefunction(getattr(publisher, "drain", None))
        self.threads = ThreadPoolExecutor(_THREADS, "http-publish")
        self._trouble = Trouble(what, consequence)
        self._failure, self._failed_s = "", 0.0

    async def run(self, publish: Callable[[], R]) -> R:
        """Call what publishes, and return its result when all is in the log.

        Raises:
            RejectedError: the publisher does not take it (413 or 400), or nothing (503).

        """
        try:
            if self.is_async:
                result = publish()
                await self._publisher.drain()
            else:
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self.threads, publish)
        except MessageError as error:
            raise refusal(error) from error
        except (P2PError, OSError) as error:
            self._failure, self._failed_s = str(error), time.monotonic()
            self._trouble.note(self._failure)
            raise RejectedError(503, "publisher", "it cannot be published now", 5) from error
        self._failed_s = 0.0
        self._trouble.over()
        return result

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
