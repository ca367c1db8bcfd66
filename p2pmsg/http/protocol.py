"""uvicorn's HTTP protocol with limits for slow clients; only `serving` imports it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from h11 import IDLE, SEND_RESPONSE
from uvicorn.protocols.http.h11_impl import H11Protocol

from p2pmsg.http.asgi import ENDING, UNREAD


class ImpatientProtocol(H11Protocol):  # type: ignore[misc,unused-ignore]
    """A connection that is closed where its client takes too long.

    uvicorn itself waits without end for the rest of a request's headers, for a client that reads
    nothing, and for the rest of a body that was answered before all of it came, which it throws
    away: closing at once would reset the connection, and a client that sends everything before it
    reads would never see the answer.

    Args:
        timeout: how long headers may take, and how long a client may read nothing, in seconds.
        logger: gets what uvicorn says.

    """

    def __init__(
        self, *arguments: Any, timeout: float, logger: logging.Logger, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.logger = logger
        self._timeout = timeout
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._end("headers")
        self._end("writing")
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        self._begin("writing", self._end_unread)

    def resume_writing(self) -> None:
        """Note that it reads."""
        self._end("writing")
        super().resume_writing()

    def shutdown(self) -> None:
        """Close, at once where the client reads nothing; an application sees that it is to end."""
        super().shutdown()
        if self.cycle is not None:
            self.cycle.scope[ENDING] = True
            self.cycle.message_event.set()
        if "writing" in self._timers:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, also once it has answered."""
        if self.cycle is not None:  # its application sees that the client has gone
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (IDLE, SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _end_unread(self) -> None:
        """End a connection whose client reads nothing; its application sees that."""
        if self.cycle is not None:
            self.cycle.scope[UNREAD] = True
        self.transport.abort()

    def _watch(self) -> None:
        """Start the time when headers begin, and end it when they are there."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._end("headers")
        elif "headers" not in self._timers:
            self._begin("headers", self._give_up)

    def _give_up(self) -> None:
        del self._timers["headers"]
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _begin(self, what: str, then: Callable[[], None]) -> None:
        self._timers[what] = asyncio.get_running_loop().call_later(self._timeout, then)

    def _end(self, what: str) -> None:
        if what in self._timers:
            self._timers.pop(what).cancel()
