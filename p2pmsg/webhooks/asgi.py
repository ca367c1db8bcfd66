"""What applications of ASGI have in common: answers, headers, and a body within its bounds."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Final

from p2pmsg.webhooks.schemes import RejectedError

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

UNREAD: Final = "p2pmsg.unread"
"""True in the scope of a request whose connection was ended since its client read nothing."""


HEADERS: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-type": "text/plain; charset=utf-8",
}


class Application:
    """An ASGI application; a subclass answers the requests.

    Attributes:
        statuses: answers by status.
        rejected: requests that were refused, by the reason in a word.
        failure: why it could not start; None where it could.

    """

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.rejected: Counter[str] = Counter()
        self.failure: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] == "lifespan":
            with suppress(asyncio.CancelledError):  # Ctrl-C ends the loop; the server would log it
                await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                await self._answer(scope, receive, send)
            except RejectedError as error:
                self.rejected[error.why] += 1
                await self._respond(send, error.status, error.headers, str(error))

    async def _start(self) -> None:
        """Do what is to be done when the server starts; what it raises ends the server."""

    async def _stop(self) -> None:
        """Do what is to be done when the server stops."""

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; raises `RejectedError`."""
        raise NotImplementedError

    async def _respond(
        self, send: Send, status: int, headers: Mapping[str, str], body: str | bytes = b""
    ) -> None:
        """Send a whole answer; a text gets a line's end."""
        self.statuses[status] += 1
        if isinstance(body, str):  # a name in the request, or of a file, may be no UTF-8
            body = f"{body}\n".encode(errors="backslashreplace")
        found = {**HEADERS, **headers}
        if status != 204:
            found["content-length"] = str(len(body))
        await send({"type": "http.response.start", "status": status, "headers": raw(found)})
        await send({"type": "http.response.body", "body": body})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                try:
                    await self._start()
                except Exception as error:  # whatever it is, uvicorn ends with a status of its own
                    self.failure = error
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif event["type"] == "lifespan.shutdown":
                await self._stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


def raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers as ASGI has them."""
    return [(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()]


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers; of one that is there twice, both, with a comma."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


async def read_body(
    headers: Mapping[str, str], receive: Receive, bytes_max: int, timeout: float
) -> bytes:
    """Return a request's body.

    Args:
        headers: of the request.
        receive: of ASGI.
        bytes_max: its size at most, in bytes.
        timeout: how long it may take to come, in seconds.

    Raises:
        RejectedError: it is compressed, too large or too slow, or the client has gone.

    """
    coding = headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        taken = {"accept-encoding": "identity"}
        raise RejectedError(415, "encoding", "the body must not be compressed", headers=taken)
    said = headers.get("content-length", "")
    too_large = RejectedError(413, "size", f"the body has more than {bytes_max} bytes")
    if said.isdecimal() and (len(said) > 15 or int(said) > bytes_max):
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(timeout):
            while True:
                event = await receive()
                if event["type"] != "http.request":
                    raise RejectedError(400, "disconnected", "the client has gone")
                part = event.get("body", b"")
                size += len(part)
                if size > bytes_max:
                    raise too_large
                parts.append(part)
                if not event.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        # After a 413 the server reads on for a while instead: see serving.py.
        said, close = f"the body took more than {timeout:g} s", {"connection": "close"}
        raise RejectedError(408, "slow", said, headers=close) from None
