"""Posts to one endpoint, by aiohttp: signed, in time, and to allowed addresses only.

Why a request failed is said without what a URL may hold of tokens: an answer is its status alone.
"""

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, Final

from p2pmsg.errors import MissingExtraError
from p2pmsg.webhooks.addresses import check_address, parse_networks
from p2pmsg.webhooks.delivery import Failure
from p2pmsg.webhooks.endpoint import Endpoint
from p2pmsg.webhooks.formats import Request
from p2pmsg.webhooks.signatures import (
    content_of,
    github_signature,
    secrets_of,
    signature_header,
    signers,
)

_ANSWER_BYTES_MAX: Final = 65_536
"""How much of an answer's body is read, so that its connection can be used again."""
_BODY_S: Final = 1.0
"""How long a body is waited for once status and headers are there, which decide."""
_AGENT: Final = "p2pmsg-webhooks"


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

    """

    def __init__(self, endpoint: Endpoint, resolver: Any = None) -> None:
        aiohttp = import_aiohttp()
        self._endpoint = endpoint
        self._keys = signers(endpoint.secret) if endpoint.scheme == "standard" else []
        self._allowed = parse_networks(endpoint.allow)
        self._errors = (TimeoutError, OSError, ValueError, aiohttp.ClientError)
        self._ended = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
        self._unmade = aiohttp.ClientConnectorError
        is_tls = endpoint.url.startswith("https:")
        self._tls = ssl.create_default_context() if is_tls else True
        self._session = self._make_session(resolver, is_kept=True)
        self._fresh = self._make_session(resolver, is_kept=False)

    async def post(self, request: Request, hook_id: str) -> Failure | int:
        """Send a request; return why it failed, or the status, from 200 to 299.

        Where the connection ends before an answer, the request goes out once more, on a new one:
        the endpoint may have closed a kept connection before it saw the request.
        """
        headers = self._signed(request, hook_id)
        try:
            async with asyncio.timeout(self._endpoint.timeout):
                try:
                    return await self._ask(self._session, request, headers)
                except self._ended as error:
                    if isinstance(error, self._unmade):
                        raise
                    return await self._ask(self._fresh, request, headers)
        except self._errors as error:
            return Failure(reason_of(error, self._endpoint.timeout))

    async def _ask(self, session: Any, request: Request, headers: dict[str, str]) -> Failure | int:
        async with session.post(
            self._endpoint.url, data=request.body, headers=headers, allow_redirects=False
        ) as answer:
            await _drain(answer, self._errors)
            status = int(answer.status)
            if 200 <= status < 300:
                return status
            return Failure(f"answered {status}", status, _retry_after(answer.headers))

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
            (secret,) = secrets_of(self._endpoint.secret)
            headers["x-hub-signature-256"] = github_signature(secret, request.body)
        elif self._endpoint.format in ("standard", "json"):
            headers["webhook-id"] = hook_id
        return headers

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await self._fresh.close()

    def _make_session(self, resolver: Any, *, is_kept: bool) -> Any:
        """Return a session, which keeps connections for further requests, or makes new ones."""
        aiohttp, endpoint = import_aiohttp(), self._endpoint
        connector = aiohttp.TCPConnector(
            limit=endpoint.concurrency,
            use_dns_cache=False,  # a name that is looked up again is checked again
            resolver=resolver,
            socket_factory=self._make_socket,
            ssl=self._tls,
            force_close=not is_kept,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
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


async def _drain(answer: Any, errors: tuple[type[Exception], ...]) -> None:
    """Read a body as far as it comes, so that its connection can be used again.

    The status and the headers have come and decide: no error of the body takes them back. Where it
    does not end well, aiohttp closes the connection.
    """
    with suppress(asyncio.IncompleteReadError, *errors):
        async with asyncio.timeout(_BODY_S):
            await answer.content.readexactly(_ANSWER_BYTES_MAX)


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


def reason_of(error: BaseException, timeout: float) -> str:
    """Return why a request failed that raised this.

    Of the texts only the system's, the resolver's and those of OpenSSL about a certificate are
    taken: aiohttp's own may have the URL, and with it a token.
    """
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s"
    cause = getattr(error, "os_error", error)
    if isinstance(cause, PermissionError) and cause.errno is None:  # of `check_address`
        return str(cause)
    number = getattr(cause, "errno", None) or 0
    if number in errno.errorcode and not isinstance(cause, ssl.SSLError | socket.gaierror):
        return f"the connection failed: {os.strerror(number)}"
    said = getattr(getattr(error, "certificate_error", None), "verify_message", "")
    if isinstance(cause, socket.gaierror):
        said = cause.strerror
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
