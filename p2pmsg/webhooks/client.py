"""Posts to one endpoint, by aiohttp: signed, in time, and to allowed addresses only.

Why a request failed is said without what a URL or a header may hold of tokens.
"""

import asyncio
import errno
import html
import os
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import unquote, urlsplit

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
_REASON_MAX: Final = 200
_READ_MAX: Final = 4096
"""How many characters of a text are looked at; the rest is not shown."""
_HIDDEN_MIN: Final = 4
"""What is shorter is no token, and would be found in many words."""
_HIDDEN: Final = "***"
_NUMBER: Final = re.compile(r"\[Errno -?[0-9]+\] ")
_OCTET: Final = re.compile(r"\\+x([0-9a-f]{2})", re.IGNORECASE)
_CODE: Final = re.compile(r"\\+u([0-9a-f]{4})", re.IGNORECASE)


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
        reasons: say why a request failed, without what the URL holds.

    """

    def __init__(self, endpoint: Endpoint, resolver: Any = None) -> None:
        aiohttp = import_aiohttp()
        self._endpoint = endpoint
        self.reasons = Reasons(endpoint)
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
            return Failure(self.reasons.of_error(error))

    async def _ask(self, session: Any, request: Request, headers: dict[str, str]) -> Failure | int:
        async with session.post(
            self._endpoint.url, data=request.body, headers=headers, allow_redirects=False
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
            (secret,) = secrets_of(self._endpoint.secret)
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


class Reasons:
    """Says why requests to an endpoint failed.

    Of errors only those texts are taken that are made of no URL. An endpoint may repeat the URL, or
    a header, in its answer: it is shown without escapes, and each part of the URL's path, each
    value of its query and each value of a header is `***` where it has 4 characters or more.

    Args:
        endpoint: whose URL and headers are hidden.

    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        found = {_plain(part) for part in _parts(endpoint)}
        self._secrets = sorted((each for each in found if len(each) >= _HIDDEN_MIN), key=len)
        longest_first = "|".join(map(re.escape, reversed(self._secrets)))
        self._pattern = re.compile(longest_first or "(?!)", re.IGNORECASE)

    def short(self, text: str) -> str:
        """Return a text's beginning, 200 characters at most, as a line with all secrets hidden."""
        return " ".join(self.hidden(text[:_READ_MAX]).split())[:_REASON_MAX]

    def hidden(self, text: str) -> str:
        """Return a text without escapes, with all secrets hidden, also one that is cut off."""
        found = self._pattern.sub(_HIDDEN, _plain(text))
        ends = [
            size
            for secret in self._secrets
            for size in range(_HIDDEN_MIN, min(len(secret), len(found) + 1))
            if found[-size:].lower() == secret[:size].lower()
        ]
        return found[: -max(ends)] + _HIDDEN if ends else found

    def of_error(self, error: BaseException) -> str:
        """Return why a request failed that raised this."""
        if isinstance(error, TimeoutError):
            return f"no answer within {self._endpoint.timeout:g} s"
        cause = getattr(error, "os_error", error)
        if isinstance(cause, PermissionError) and cause.errno is None:  # of `check_address`
            return str(cause)
        is_ssl = isinstance(cause, ssl.SSLError)
        number = (getattr(cause, "errno", None) or 0) if not is_ssl else 0
        if number in errno.errorcode:  # not of a name that cannot be looked up
            return f"the connection failed: {os.strerror(number)}"
        # Texts of the system, of TLS and of the resolver have the host alone; aiohttp's may not.
        is_known = cause is not error or is_ssl
        said = self.short(_NUMBER.sub("", str(cause))) if is_known else ""
        return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _parts(endpoint: Endpoint) -> Iterator[str]:
    """Yield all that may be a token."""
    parts = urlsplit(endpoint.url)
    yield from parts.path.split("/")
    for part in parts.query.split("&"):
        name, _, value = part.partition("=")
        yield value or name
    for value in endpoint.headers.values():
        yield value.strip()
        yield from value.split()[-1:]  # without `Bearer`


def _plain(text: str) -> str:
    """Return a text without what URLs, Python, JSON and HTML write in the place of characters."""
    text = _OCTET.sub(r"%\1", text)
    while (found := unquote(text)) != text:
        text = found
    text = _CODE.sub(lambda match: chr(int(match[1], 16)), html.unescape(text))
    return text.replace("\\", "").replace("+", " ").encode(errors="replace").decode()
