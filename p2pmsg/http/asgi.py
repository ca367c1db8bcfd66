"""What all applications of ASGI here share: start and stop, health, answers, bodies, limits."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from encodings import normalize_encoding
from encodings.aliases import aliases
from math import isfinite
from typing import Any, Final, Literal

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

UNREAD: Final = "p2pmsg.unread"
"""True in the scope of a request whose connection was ended since its client read nothing."""
ENDING: Final = "p2pmsg.ending"
"""True in the scope of a request that is to be answered soon, since the server ends."""
_HEADERS: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-type": "text/plain; charset=utf-8",
}
_S: Final = 1_000_000_000
_CLIENTS_MAX: Final = 10_000
_BODY_S: Final = 10.0
"""How long a body may take to come."""
_CHARSET: Final = re.compile(r';\s*charset\s*=\s*"?([^\s";,]+)', re.IGNORECASE)
_CHARSETS: Final = frozenset(
    [*aliases, *aliases.values(), "cp737", "cp874", "koi8_t", "koi8_u", "utf_8_sig"]
)
"""Python keeps each name that it was ever asked for, so it is asked for these alone."""
_SHOWN_MAX: Final = 40


class RejectedError(Exception):
    """A request is not taken.

    Attributes:
        status: of the answer.
        why: one of few words, for counters.
        headers: of the answer: those given, and `retry-after`, in seconds, where there is one.

    """

    def __init__(
        self,
        status: int,
        why: str,
        text: str = "",
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, why, text, retry_after, headers)
        self.status = status
        self.why = why
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["retry-after"] = str(retry_after)

    def __str__(self) -> str:
        return str(self.args[2] or self.why)


class Limits:
    """How many requests a second are taken, over all and of each client; None: not limited."""

    def __init__(self, rate: int | None, client_rate: int | None = None) -> None:
        self.rate = rate
        self._client_rate = client_rate
        self._busy_ns = 0
        self._clients: dict[str, int] = {}

    def check(self, scope: Scope, now_ns: int) -> None:
        """Raise `RejectedError` where it is one too many."""
        if self._client_rate is not None:
            client = str((scope.get("client") or [""])[0])
            busy_ns = _taken(self._clients.get(client, 0), self._client_rate, now_ns)
            self._clients.pop(client, None)
            self._clients[client] = busy_ns  # the last one in the order of the dict
            if len(self._clients) > _CLIENTS_MAX:
                del self._clients[next(iter(self._clients))]
        if self.rate is not None:
            self._busy_ns = _taken(self._busy_ns, self.rate, now_ns)


def _taken(busy_ns: int, rate: int, now_ns: int) -> int:
    """Return until when what was taken is enough, one more included: for a second at most."""
    busy_ns = max(busy_ns, now_ns) + _S // rate
    if busy_ns > now_ns + _S:
        raise RejectedError(429, "rate", "too many requests", 1)
    return busy_ns


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
        if isinstance(body, str):  # a name in the request, or of a file, may be no UTF-8
            body = f"{body}\n".encode(errors="backslashreplace")
        size = {} if status == 204 else {"content-length": str(len(body))}
        await self._begin(send, status, {**headers, **size})
        await send({"type": "http.response.body", "body": body})

    async def _begin(self, send: Send, status: int, headers: Mapping[str, str]) -> None:
        """Send the status and the headers of an answer."""
        self.statuses[status] += 1
        raw = [
            (name.encode("latin-1"), text.encode("latin-1"))
            for name, text in {**_HEADERS, **headers}.items()
        ]
        await send({"type": "http.response.start", "status": status, "headers": raw})

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


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers; of one that is there twice, both, with a comma."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


async def read_body(headers: Mapping[str, str], receive: Receive, bytes_max: int) -> bytes:
    """Return a request's body, which may have so many bytes, and takes 10 s at most.

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
        async with asyncio.timeout(_BODY_S):
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
        said, close = f"the body took more than {_BODY_S:g} s", {"connection": "close"}
        raise RejectedError(408, "slow", said, headers=close) from None


def _number(token: str) -> float:
    if isfinite(value := float(token)):
        return value
    raise ValueError(f"{_shown(token)} is larger than a float can be")


def _no_constant(token: str) -> Any:
    raise ValueError(f"{token} is not JSON")


_decode: Final = json.JSONDecoder(parse_float=_number, parse_constant=_no_constant).decode


def kind_of(headers: Mapping[str, str]) -> str:
    """Return the content type without its parameters, in lower case; empty where there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def value_of(
    headers: Mapping[str, str], body: bytes, errors: Literal["strict", "replace"] = "strict"
) -> Any:
    """Return a body as the value that its content type says: JSON, text, else bytes.

    Args:
        headers: of the request, by lower-case names.
        body: in UTF-8, or for `text/…` in the charset that is named; JSON also in UTF-16 or UTF-32.
        errors: what is done about bytes of text that its charset does not have. Default: refused.

    Raises:
        RejectedError: the body is not what its content type says (400), or Python does not know
            its charset (415).

    """
    kind = kind_of(headers)
    if kind == "application/json" or kind.endswith("+json"):
        return json_of(body, kind)
    if kind.startswith("text/"):
        found = _CHARSET.search(headers["content-type"])
        return _text(kind, body, found[1] if found else "utf-8", errors)
    return body


def json_of(body: bytes, kind: str = "JSON") -> Any:
    """Return the value of a JSON text; `RejectedError` says where it is none.

    NaN and the infinities are none, nor are numbers that would become infinite.
    """
    try:
        return _decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise RejectedError(400, "body", f"the body is no {kind}: {error}") from error


def _text(kind: str, body: bytes, charset: str, errors: str) -> str:
    unknown = RejectedError(415, "charset", f"the charset {_shown(charset)!r} is not known here")
    if normalize_encoding(charset).lower() not in _CHARSETS:
        raise unknown
    try:
        return body.decode(charset, errors)
    except LookupError:  # Python has it by another name alone, or it is none of text
        raise unknown from None
    except ValueError as error:
        raise RejectedError(400, "body", f"the body is no {kind}: {error}") from error


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
