"""Who may ask for what: tokens, the host that is asked for, and the page that asks."""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Final

from p2pmsg.http.asgi import RejectedError
from p2pmsg.toolkit import check

TOKEN_CHARACTERS_MIN: Final = 16
_BEARER: Final = "bearer "
_ORIGIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\x00-\x20/@?#]+/?")


class Access:
    """Checks requests.

    Args:
        tokens: any one of them opens; none: no token is asked for.
        query_token: whether `?token=` is taken, too; proxies write it into their logs.
        hosts: names that a request may be for, besides `localhost` and addresses.
        origins: pages of other origins that may ask; `*` for all.

    Raises:
        ConfigError: a token is too short, a host or an origin is none, or `*` is given without
            tokens.

    """

    def __init__(
        self,
        tokens: Sequence[str] = (),
        *,
        query_token: bool = False,
        hosts: Sequence[str] = (),
        origins: Sequence[str] = (),
    ) -> None:
        for token in tokens:
            ok = len(token) >= TOKEN_CHARACTERS_MIN and token.isascii() and token.isprintable()
            limit = f"at least {TOKEN_CHARACTERS_MIN} characters of ASCII without spaces each"
            check("tokens", f"{len(token)} characters", ok and " " not in token, limit)
        check("allow_origins", list(origins), bool(tokens) or "*" not in origins,
              "without * where there are no tokens: any page that is open in a browser here "
              "could read and publish")  # fmt: skip
        for host in hosts:
            limit = "names or addresses, without scheme and port"
            ok = _is_address(host) or not re.search(r"[\x00-\x20/:@]", host)
            check("allow_hosts", host, bool(host) and ok, limit)
        for origin in origins:
            ok = origin == "*" or _ORIGIN.fullmatch(origin) is not None
            check("allow_origins", origin, ok, "such as https://app.example.com:8443, without path")
        self._digests = [_digest(token) for token in tokens]
        self._query_token = query_token
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._origins = {origin.lower().rstrip("/") for origin in origins}

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse a request for a name that is not known: that is how DNS rebinding comes."""
        host = _host_of(headers.get("host", ""))
        if host in self._hosts or _is_address(host):
            return
        raise RejectedError(421, "host", f"not for the host {host[:100]!r}: see --allow-host")

    def check_origin(self, headers: Mapping[str, str]) -> str | None:
        """Return the origin of a page that may ask from elsewhere, or None where it is our own.

        Raises:
            RejectedError: it may not.

        """
        origin = headers.get("origin")
        if origin is None:
            if headers.get("sec-fetch-site") == "cross-site":
                raise RejectedError(403, "origin", "a page of another site may not ask")
            return None
        plain = origin.lower().rstrip("/")
        host = headers.get("host", "").lower()
        if host and plain in (f"http://{host}", f"https://{host}"):
            return None
        if self._origins & {plain, "*"}:
            return origin
        raise RejectedError(403, "origin", f"the origin {origin[:100]!r} may not ask: see "
                            "--allow-origin")  # fmt: skip

    def check_token(self, headers: Mapping[str, str], query: Mapping[str, list[str]]) -> None:
        """Refuse a request without a token, where one is asked for."""
        if not self._digests:
            return
        given = headers.get("authorization", "")
        token = given[len(_BEARER) :] if given.lower().startswith(_BEARER) else ""
        if not token and self._query_token:
            token = (query.get("token") or [""])[0]
        found = _digest(token)
        if sum([hmac.compare_digest(found, each) for each in self._digests]) == 0:
            asked = {"www-authenticate": "Bearer"}
            said = "a token is asked for: Authorization: Bearer …"
            raise RejectedError(401, "token", said, headers=asked)


def _digest(token: str) -> bytes:
    """Return what is compared: of one length, whatever was sent."""
    return hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()


def _host_of(value: str) -> str:
    if value.startswith("["):
        return value[1:].partition("]")[0].lower()
    return value.rpartition(":")[0].lower() if ":" in value else value.lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
