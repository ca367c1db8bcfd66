"""Why a request failed, for people: without what a URL or a header may hold of tokens."""

import errno
import html
import os
import re
import ssl
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, urlsplit

from p2pmsg.webhooks.endpoint import Endpoint

_REASON_MAX: Final = 200
_READ_MAX: Final = 4096
"""How many characters of a text are looked at; the rest is not shown."""
_HIDDEN_MIN: Final = 4
"""What is shorter is no token, and would be found in many words."""
_HIDDEN: Final = "***"
_NUMBER: Final = re.compile(r"\[Errno -?[0-9]+\] ")
_OCTET: Final = re.compile(r"\\+x([0-9a-f]{2})", re.IGNORECASE)
_CODE: Final = re.compile(r"\\+u([0-9a-f]{4})", re.IGNORECASE)


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
