"""Where webhooks go, and how: the settings of one endpoint, and what is reported of it."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from p2pmsg.errors import ConfigError
from p2pmsg.stats import Stats
from p2pmsg.toolkit import check, check_fields, hiding
from p2pmsg.webhooks.addresses import (
    Network,
    address_of,
    check_address,
    parse_networks,
)
from p2pmsg.webhooks.formats import Format
from p2pmsg.webhooks.signatures import Secret, secrets_of, signers

Order = Literal["stream", "key", "none"]
ORDERS: Final = ("stream", "key", "none")
STANDARD_DELAYS: Final = (
    0.0, 5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0,
)  # fmt: skip
"""Standard Webhooks' schedule: at once, after 5 s, 5 min, 30 min, 2, 5, 10, 14, 20 and 24 h."""
_DELAYS_MAX: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_RESERVED: Final = ("content-length", "host", "transfer-encoding", "connection")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A URL to which messages are posted. `ConfigError` for a value out of its limits."""

    url: str = field(repr=False)
    """`https://…` (whose certificate the system's authorities have signed, or those of the
    environment's `SSL_CERT_FILE`) or `http://…`. Its path and query, which may hold a token, are in
    no log, error or statistics, and neither is the text of an answer, which may repeat them.
    Redirects are never followed: they count as failures. Where its host is an address, in any
    spelling, it is public or in `allow`; what a name stands for is checked at each connection."""

    _: KW_ONLY

    secret: Secret | Sequence[Secret] = field(default=(), repr=False)
    """What requests are signed with: base64, as the package `standardwebhooks` takes it (`whsec_…`
    or without that, padded or not; HMAC, `v1`), the secret's bytes, or `whsk_…` (an Ed25519 private
    key, `v1a`); several while one is replaced. Default: none, and requests are not signed."""

    scheme: Literal["standard", "github"] = "standard"
    """How requests are signed: `standard` (default) as Standard Webhooks; `github` as GitHub's,
    for receivers that verify those: `X-Hub-Signature-256` by one secret of any text, the id in
    `X-GitHub-Delivery`, the topic in `X-GitHub-Event`. That signs no time and no id."""

    topics: str | Sequence[str] | None = None
    """Topics, and prefixes that end in `*`. Default: all."""

    order: Order = "stream"
    """`stream` (default): the next message of a topic goes when the one before was delivered, or
    became a dead letter. `key`: the same for each key; messages without one have no order. `none`:
    as many as `concurrency`, in any order; one that fails does not hold up others."""

    concurrency: int = 8
    """Requests under way at once. Default: 8; of one stream, or key, there is never more than one
    where order is kept."""

    format: Format = "standard"
    """`standard` (Standard Webhooks), `cloudevents` (1.0, binary mode), `cloudevents-structured`,
    `cloudevents-batch` (of 100 at most), or `json`: the value alone."""

    timeout: float = 20.0
    """How long a request may take in all, in seconds. Default 20, of 15 to 30 that Standard
    Webhooks recommends."""

    retry: Sequence[float] = STANDARD_DELAYS
    """How long to wait before each attempt, in seconds since the one before, 10 % more or less; the
    first is of no use and 0. After the last one fails the message becomes a dead letter. Default:
    Standard Webhooks' schedule, 10 attempts in 75 hours."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What is sent in addition, such as `Authorization`."""

    allow: Sequence[str] = ()
    """Private networks to which requests may go, such as `127.0.0.0/8`. Default: none; loopback,
    private, link-local, multicast and reserved addresses are refused."""

    name: str = ""
    """Names the folder of its cursor and dead letters. Default: host and a hash of the URL. Give it
    one where the URL may change."""

    def __post_init__(self) -> None:
        check_fields(self, concurrency=1, timeout=0.001)
        parts = _checked_url(self.url)
        if self.scheme == "standard":
            signers(self.secret)
        elif len(secrets_of(self.secret)) != 1:
            found = len(secrets_of(self.secret))
            raise ConfigError("secret", 'exactly one with scheme="github"', found or None)
        _check_host(parts, parse_networks(self.allow))
        _check_headers(self.headers)
        if not self.name:
            digest = hashlib.blake2b(self.url.encode(), digest_size=4).hexdigest()
            host = re.sub("[^A-Za-z0-9.-]", "-", parts).strip(".-")[:80] or "endpoint"
            object.__setattr__(self, "name", f"{host}-{digest}")
        limit = "1 to 100 letters, digits, dots, dashes and underscores"
        check("name", self.name, bool(_NAME.fullmatch(self.name)), limit)
        ok = 1 <= len(self.retry) <= _DELAYS_MAX
        check("retry", self.retry, ok, f"1 to {_DELAYS_MAX} times in seconds")

    @property
    def place(self) -> str:
        """Where it is, for people: without what a URL's path and query may have of secrets."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


Endpoint.__init__ = hiding(Endpoint.__init__)  # type: ignore[method-assign]


def _checked_url(url: str) -> str:
    """Return the URL's host; the URL itself, which may hold a token, is in no error."""
    limit = "http:// or https:// with a host, and without user or fragment"
    try:
        parts = urlsplit(url)
        _ = parts.port
        ok = parts.scheme in ("http", "https") and bool(parts.hostname)
    except (ValueError, TypeError, AttributeError):
        raise ConfigError("url", limit, "something else") from None
    ok = ok and "@" not in parts.netloc and not parts.fragment
    ok = ok and not re.search(r"[\x00-\x20\x7f\ud800-\udfff]", url)
    check("url", f"{parts.scheme}://…", ok, limit)
    return str(parts.hostname)


def _check_host(host: str, allowed: Sequence[Network]) -> None:
    """Refuse an address at once: a name is looked up, and checked, at each connection."""
    address = address_of(host)
    if address is None:
        return
    try:
        check_address(address, allowed)
    except PermissionError:
        limit = "at a public address, or at one whose network is in allow (--allow)"
        shown = host if address == host else f"{host} ({address})"
        raise ConfigError("url", limit, shown) from None


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        ok = isinstance(name, str) and isinstance(value, str)
        ok = ok and _HEADER_NAME.fullmatch(name) is not None
        ok = ok and name.lower() not in _RESERVED and _CONTROL.search(value) is None
        limit = "a header's name, with a text without control characters as its value"
        check("headers", name, ok, limit)


EventKind = Literal["opened", "closed", "stopped", "held", "dead", "lost"]


@dataclass(frozen=True, slots=True)
class HookEvent:
    """Something about an endpoint that somebody should know.

    Attributes:
        kind: `opened`: it counts as down, and only probes are sent; `closed`: it works again;
            `stopped`: it answered 410, and nothing is sent any more; `held`: it asked for a pause
            by `Retry-After`; `dead`: a message became a dead letter; `lost`: messages of the stream
            are lost, before they came here.
        endpoint: the endpoint's name.
        reason: for people.
        detail: the `Letter` that is dead, or the `LossReport`; of `held` when it is sent to again,
            a `datetime` in UTC; None for the others.

    """

    kind: EventKind
    endpoint: str
    reason: str
    detail: Any = None


@dataclass(slots=True, kw_only=True)
class EndpointStats(Stats):
    """The delivery to one endpoint, since the sender was started.

    Attributes:
        name: the endpoint's name.
        received: messages that came from the stream.
        delivered: messages that were answered with 2xx.
        requests: requests that were sent.
        failures: requests that failed.
        statuses: answers by status.
        dead: messages that became dead letters; `dead_letters` is how many there are.
        dead_letters: dead letters on the disk.
        parked: messages that failed, and wait on the disk while others go on.
        waiting: messages that are here and not delivered, the parked ones included.
        in_flight: requests under way.
        lost: messages of the stream that are lost.
        is_open: whether the breaker is open: the endpoint counts as down.
        stopped: why nothing is sent any more; None while it is.
        held_s: for how many seconds from now nothing is sent, since the endpoint asked for that by
            `Retry-After`; 0 where it did not.
        connected: publishers and relays that answer; None while no messages are asked for, since
            enough are here.
        reason: why the last request failed; empty if none did.
        error: what keeps the endpoint's subscriber from working now; None while it works.

    """

    name: str = ""
    received: int = 0
    delivered: int = 0
    requests: int = 0
    failures: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    dead: int = 0
    dead_letters: int = 0
    parked: int = 0
    waiting: int = 0
    in_flight: int = 0
    lost: int = 0
    is_open: bool = False
    stopped: str | None = None
    held_s: float = 0.0
    connected: int | None = None
    reason: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderStats(Stats):
    """What a sender did since it was started.

    Attributes:
        endpoints: by the endpoints' names.

    """

    endpoints: dict[str, EndpointStats]

    @property
    def delivered(self) -> int:
        """How many messages were delivered, over all endpoints."""
        return sum(each.delivered for each in self.endpoints.values())
