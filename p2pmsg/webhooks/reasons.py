"""Why a request failed, for people: without what a URL or a header may hold of tokens."""

import errno
import html
import os
import re
import ssl
from collections.abc import Iterator
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit

from p2pmsg.webhooks.endpoint import Endpoint

_REASON_MAX: Final = 200
_READ_MAX: Final = 4096
"""How many characters of a text are looked at; the rest is not shown."""
_HIDDEN_MIN: Final = 4
"""What is shorter is no token, and would be found in many words."""
_HIDDEN: Final = "***"
_NUMBER: Final = re.compile(r"\[Errno -?[0-9]+\] ")
_ESCAPE: Final = re.compile(
    r"%(?:25)*(?P<percent>[0-9a-f]{2})|\\+x(?P<x>[0-9a-f]{2})|\\+u(?P<u>[0-9a-f]{4})"
    r"|&(?:#x[0-9a-f]{1,6}|#[0-9]{1,7}|[a-z]{2,5});|\\+|\+",
    re.IGNORECASE,
)
"""What URLs, Python, JSON and HTML write in the place of a character."""


class Reasons:
    """Says why requests to an endpoint failed.

    Of errors only those texts are taken that are made of no URL. An endpoint may repeat the URL, or
    a header, in its answer: in all that is said, each part of the URL's path, each value of its
    query and each value of a header is `***` where it has 4 characters or more, also where it is
    percent-encoded, or escaped as HTML and JSON have it.

    Args:
        endpoint: whose URL and headers are hidden.

    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def short(self, text: str) -> str:
        """Return a text's beginning, 200 characters at most, as a line with all secrets hidden."""
        return " ".join(self.hidden(text[:_READ_MAX]).split())[:_REASON_MAX]

    def hidden(self, text: str) -> str:
        """Return a text with all secrets hidden, also one that is cut off at its end."""
        plain, places = _plain(text)
        spans: list[tuple[int, int]] = []
        for secret in self._secrets:
            at = plain.find(secret)
            while at >= 0:
                spans.append((at, at + len(secret)))
                at = plain.find(secret, at + len(secret))
            sizes = range(min(len(secret) - 1, len(plain)), _HIDDEN_MIN - 1, -1)
            size = next((size for size in sizes if plain.endswith(secret[:size])), 0)
            if size:
                spans.append((len(plain) - size, len(plain)))
        shown, end = "", 0
        for first, last in sorted(spans):
            if places[first] >= end:
                shown += text[end : places[first]] + _HIDDEN
            end = max(end, places[last])
        return shown + text[end:]

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
        said = self.short(_NUMBER.sub("", _text_of(error, cause)))
        return f"{type(error).__name__}: {said}" if said else type(error).__name__

    @cached_property
    def _secrets(self) -> list[bytes]:
        found = {bytes(_plain(part)[0]) for part in _parts(self._endpoint)}
        return [part for part in found if len(part) >= _HIDDEN_MIN]


def _text_of(error: BaseException, cause: BaseException) -> str:
    """Return what an error says, if no URL is in it; aiohttp's own texts may have it."""
    if cause is not error or isinstance(error, ssl.SSLError):
        return str(cause)  # of the system, of TLS or of the resolver: these know the host alone
    message = getattr(error, "message", None)
    if isinstance(message, str):
        return message  # of the parser: what the endpoint sent
    if hasattr(error, "description"):
        return str(error.description or "the URL is not valid")
    return "the connection failed" if isinstance(error, OSError) else ""


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


def _plain(text: str) -> tuple[bytearray, list[int]]:
    """Return a text without escapes and in lower case as UTF-8, and where each byte comes from."""
    plain, at = bytearray(), 0
    places: list[int] = []

    def add(octets: bytes, place: int) -> None:
        plain.extend(octets.lower())
        places.extend([place] * len(octets))

    for match in _ESCAPE.finditer(text):
        for place in range(at, match.start()):
            add(text[place].lower().encode(errors="replace"), place)
        at = match.end()
        add(_unescaped(match), match.start())
    for place in range(at, len(text)):
        add(text[place].lower().encode(errors="replace"), place)
    places.append(len(text))
    return plain, places


def _unescaped(match: re.Match[str]) -> bytes:
    octet, code, character = match["percent"] or match["x"], match["u"], match[0]
    if octet:
        return bytes([int(octet, 16)])
    if code:
        return chr(int(code, 16)).encode(errors="replace")
    if character == "+":
        return b" "
    return b"" if character[0] == "\\" else html.unescape(character).encode(errors="replace")
