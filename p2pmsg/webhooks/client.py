"""Posts to one endpoint, by aiohttp: signed, in time, and to allowed addresses only."""

import asyncio
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache, partial
from typing import Any, Final

from p2pmsg.errors import MissingExtraError
from p2pmsg.webhooks.addresses import check_address, parse_networks
from p2pmsg.webhooks.delivery import Failure
from p2pmsg.webhooks.endpoint import Endpoint
from p2pmsg.webhooks.formats import Request
from p2pmsg.webhooks.reasons import Reasons
from p2pmsg.webhooks.signatures import content_of, github_signature, signature_header, signers

_ANSWER_BYTES_MAX: Final = 65_536
"""How much of an answer's body is read, so that its connection can be used again."""
_BODY_S: Final = 1.0
"""How long a body is waited for once status and headers are there, which decide."""
_END: Final = b"\r\n\r\n"
_AGENT: Final = "p2pmsg-webhooks"
_LEAST_S: Final = 0.001


@dataclass(slots=True)
class _Exchange:
    """What a connection did for a request.

    Attributes:
        is_reused: whether it had another request before.
        is_answered: whether anything came since this one.

    """

    is_reused: bool = False
    is_answered: bool = False

    @property
    def is_stale(self) -> bool:
        """Whether the endpoint may have closed the connection before the request was sent."""
        return self.is_reused and not self.is_answered


_current: ContextVar[_Exchange | None] = ContextVar("_current", default=None)
"""What the connection of this task's request does."""


def import_aiohttp() -> Any:
    """Return aiohttp; `MissingExtraError` where it is not installed."""
    try:
        import aiohttp
    except ImportError as error:
        raise MissingExtraError("webhooks.Sender", str(error.name), "webhooks") from error
    return aiohttp


class Client:
    """Posts requests to an endpoint; must be made, used and closed in one event loop.

    The address is checked where the socket for it is made, after names are looked up: a name that
    resolves to another address the second time is checked again.

    Args:
        endpoint: where to.
        resolver: aiohttp's, to look names up; None: the system's.

    Attributes:
        is_allowed: whether the handshake was done, or none is needed.
        rate: requests a second that the handshake allowed; None: not limited.
        repeated: requests that were sent again at once, since a kept connection had ended.
        reasons: say why a request failed, without what the URL holds.

    """

    def __init__(self, endpoint: Endpoint, resolver: Any = None) -> None:
        aiohttp = import_aiohttp()
        self._endpoint = endpoint
        self.reasons = Reasons(endpoint)
        self._keys = signers(endpoint.secret) if endpoint.scheme == "standard" else []
        self._allowed = parse_networks(endpoint.allow)
        self._errors = (TimeoutError, OSError, ValueError, aiohttp.ClientError)
        self._ended_errors = (OSError, aiohttp.ClientConnectionError)
        self.is_allowed = endpoint.handshake is None
        self.rate: float | None = None
        self.repeated = 0
        self._timeout = aiohttp.ClientTimeout
        self._asking = asyncio.Lock()
        self._session = self._make_session(resolver, is_kept=True)
        self._fresh = self._make_session(resolver, is_kept=False)

    async def post(self, request: Request, hook_id: str) -> Failure | int:
        """Send a request; return why it failed, or the status, from 200 to 299.

        A kept connection that ended before any byte of an answer came is no failure: the endpoint
        may have closed it before it saw the request, which goes out once more, on a new one.
        """
        if not self.is_allowed:
            async with self._asking:
                failure = None if self.is_allowed else await self._shake_hands()
            if failure is not None:
                return failure
        headers = self._signed(request, hook_id)
        exchange = _Exchange()
        _current.set(exchange)
        begun_s = time.monotonic()
        try:
            try:
                return await self._ask(self._session, request, headers, self._endpoint.timeout)
            except self._ended_errors as error:
                if isinstance(error, TimeoutError) or not exchange.is_stale:
                    raise
            self.repeated += 1
            left_s = self._endpoint.timeout - (time.monotonic() - begun_s)
            return await self._ask(self._fresh, request, headers, max(_LEAST_S, left_s))
        except self._errors as error:
            return Failure(self.reasons.of_error(error))

    async def _ask(
        self, session: Any, request: Request, headers: dict[str, str], timeout_s: float
    ) -> Failure | int:
        async with session.post(
            self._endpoint.url,
            data=request.body,
            headers=headers,
            allow_redirects=False,
            timeout=self._timeout(total=timeout_s),
        ) as answer:
            body = await _read(answer, self._errors)
            if 200 <= answer.status < 300:
                return int(answer.status)
            return self._failure(answer, body)

    def _signed(self, request: Request, hook_id: str) -> dict[str, str]:
        """Return a request's headers, with those of the signature."""
        headers = dict(request.headers)
        if self._keys:
            stamp = int(time.time())
            headers["webhook-id"] = hook_id
            headers["webhook-timestamp"] = str(stamp)
            content = content_of(hook_id, stamp, request.body)
            headers["webhook-signature"] = signature_header(self._keys, content)
        elif self._endpoint.scheme == "github":
            headers["x-github-delivery"] = hook_id
            (secret,) = self._endpoint.secrets
            headers["x-hub-signature-256"] = github_signature(secret, request.body)
        elif self._endpoint.format in ("standard", "json"):
            headers["webhook-id"] = hook_id
        return headers

    def _failure(self, answer: Any, body: bytes) -> Failure:
        status, said = int(answer.status), self.reasons.short(body.decode(errors="replace"))
        reason = f"answered {status}: {said}" if said else f"answered {status}"
        return Failure(reason, status, _retry_after(answer.headers))

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await self._fresh.close()

    async def _shake_hands(self) -> Failure | None:
        """Ask whether posting is allowed, as CloudEvents has it; return why it is not."""
        origin = str(self._endpoint.handshake)
        try:
            async with self._session.options(
                self._endpoint.url,
                headers={"WebHook-Request-Origin": origin},
                allow_redirects=False,
            ) as answer:
                status = int(answer.status)
                allowed = answer.headers.get("WebHook-Allowed-Origin", "")
                rate = answer.headers.get("WebHook-Allowed-Rate", "*")
                pause_s = _retry_after(answer.headers)
        except self._errors as error:
            return Failure(self.reasons.of_error(error))
        if status == 410:
            return Failure("the handshake was answered 410", status)
        if pause_s is not None and not 200 <= status < 300:
            return Failure(f"the handshake was answered {status}", retry_after=pause_s)
        if not 200 <= status < 300 or allowed.strip().lower() not in ("*", origin.lower()):
            shown = self.reasons.short(f"{status}, allowed {allowed!r}")
            return Failure(f"the endpoint does not allow {origin!r} to post: {shown}")
        if rate.strip().isdecimal() and int(rate) > 0:
            self.rate = int(rate) / 60  # a minute
        self.is_allowed = True
        return None

    def _make_session(self, resolver: Any, *, is_kept: bool) -> Any:
        """Return a session, which keeps connections for further requests, or makes new ones."""
        aiohttp, endpoint = import_aiohttp(), self._endpoint
        connector = aiohttp.TCPConnector(
            limit=endpoint.rules.concurrency,
            use_dns_cache=False,  # a name that is looked up again is checked again
            resolver=resolver,
            socket_factory=self._make_socket,
            ssl=True if endpoint.tls is None else endpoint.tls,
            force_close=not is_kept,
        )
        connector._factory = partial(_protocol(), loop=asyncio.get_running_loop())
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=endpoint.timeout),
            headers={"user-agent": _AGENT, "accept-encoding": "identity", **endpoint.headers},
            auto_decompress=False,
            trust_env=False,
        )

    def _make_socket(self, address: tuple[Any, Any, int, str, tuple[Any, ...]]) -> socket.socket:
        family, kind, protocol, _, place = address
        check_address(str(place[0]), self._allowed)
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made


@cache
def _protocol() -> Any:
    """Return aiohttp's protocol, which gives headers to its parser before the body.

    Where both come at once and the body is malformed, the parser fails, and the status is lost. It
    also notes what the connection did for the request.
    """
    from aiohttp.client_proto import ResponseHandler

    class HeadersFirst(ResponseHandler):  # type: ignore[misc,unused-ignore]
        exchange: _Exchange | None = None
        is_used = False

        def set_response_params(self, **params: Any) -> None:
            self.exchange = _current.get()  # aiohttp calls this in the request's task
            if self.exchange is not None:
                self.exchange.is_reused = self.is_used
            self.is_used = True
            super().set_response_params(**params)

        def data_received(self, data: bytes) -> None:
            if self.exchange is not None:
                self.exchange.is_answered = True
            end = data.find(_END) + len(_END)
            if len(_END) <= end < len(data):
                super().data_received(data[:end])
                data = data[end:]
            super().data_received(data)

    return HeadersFirst


async def _read(answer: Any, errors: tuple[type[Exception], ...]) -> bytes:
    """Read a body as far as it comes; where it does not end well, its connection is closed.

    The status and the headers have come and decide: no error of the body takes them back.
    """
    content, found = answer.content, bytearray()
    with suppress(*errors):
        async with asyncio.timeout(_BODY_S):
            while len(found) < _ANSWER_BYTES_MAX:
                more = await content.read(_ANSWER_BYTES_MAX - len(found))
                if not more:
                    break
                found += more
    if content.exception() is not None or not content.at_eof():
        answer.close()
    return bytes(found)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `Retry-After`, which may be a date; None where there is none."""
    text = headers.get("Retry-After", "").strip()
    if not text:
        return None
    if text.isascii() and text.isdecimal():
        return float(text[:12])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
