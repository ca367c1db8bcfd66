"""Requests of ASGI: headers, and a body within its bounds."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from p2pmsg.webhooks.schemes import RejectedError

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

UNREAD: Final = "p2pmsg.unread"
"""True in the scope of a request whose connection was ended since its client read nothing."""


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
        raise RejectedError(408, "slow", f"the body took more than {timeout:g} s") from None
