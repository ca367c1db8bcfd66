"""The ends of a bridge, as text: `zmq+sub://HOST:PORT?bind=1`, `tcp://HOST:PORT`.

=====================================  ===================================================
`zmq+sub://HOST:PORT`                  a plain ZeroMQ socket of this kind: sub, pub, pull, push
`sp+sub://HOST:PORT`                   the same of nanomsg and nng (extra `nng`)
`zmq+sub+ipc://PATH`                   the same at a Unix socket; `+inproc` in this process
`…?bind=1`                             it binds; without it, it connects
`…?key=KEY`                            it connects with keys, and the peer there has to hold this
`…?curve=1`, `…?bind=1&curve=1`        with keys: the peer's from the file of known peers; only
                                       known peers may connect
`tcp://…`, `ipc://…`, `udp://…`        ours: a stream opposite sub and pub, else a queue
`sp+rep://…`, `sp+req://…`             requests, opposite a `Responder` or a `Requester` of ours
`sp+respondent://…`, `sp+surveyor://…` the same as surveys, which many answer
`stream+tcp://…`, `queue+tcp://…`      ours, said in so many words
=====================================  ===================================================
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from p2pmsg.plain import Endpoint, EndpointError, parse_endpoint
from p2pmsg.security import is_key_text

KINDS: Final = {
    "zmq": {"sub": "source", "pull": "source", "pub": "target", "push": "target"},
    "sp": {
        "sub": "source", "pull": "source", "rep": "source", "respondent": "source",
        "pub": "target", "push": "target", "req": "target", "surveyor": "target",
    },
}  # fmt: skip
"""By protocol: the kinds of sockets, and which end of a bridge each can be."""
_SCHEMES: Final = {"zmq": ("tcp", "ipc", "inproc"), "sp": ("tcp", "ipc")}
_OPPOSITE: Final = {
    "sub": "stream", "pub": "stream", "pull": "queue", "push": "queue", "req": "requests",
    "rep": "requests", "surveyor": "requests", "respondent": "requests",
}  # fmt: skip
_PLAIN: Final = re.compile(r"([a-z]+)\+([a-z]+)(?:\+([a-z]+))?://(.*)", re.DOTALL)
_OURS: Final = ("stream", "queue", "requests")


@dataclass(frozen=True, slots=True)
class PlainEnd:
    """A socket of another library.

    Attributes:
        protocol: one of `KINDS`.
        kind: one of those of the protocol.
        endpoint: where it binds or connects; with the key that the peer there has to hold.
        binds: whether it binds.
        curve: whether it has keys: ZeroMQ's CURVE.

    """

    protocol: str
    kind: str
    endpoint: Endpoint
    binds: bool
    curve: bool = False

    @property
    def opposite(self) -> str:
        """What ours is at the other end, if it does not say so."""
        return _OPPOSITE[self.kind]

    @property
    def fans_out(self) -> bool:
        """Whether each message is for all who listen, and not for one of them."""
        return self.kind in ("sub", "pub")

    def name_at(self, endpoint: str) -> str:
        """Return the end as text, at the endpoint where it really is."""
        options = "&".join(["bind=1"] * self.binds + ["curve=1"] * self.curve)
        return f"{self.protocol}+{self.kind}+{endpoint}{'?' if options else ''}{options}"


@dataclass(frozen=True, slots=True)
class OurEnd:
    """A publisher, subscriber, pusher or puller of p2pmsg.

    Attributes:
        role: `stream`, `queue`, `requests`, or "": by the other end.
        endpoint: where it binds or connects.

    """

    role: str
    endpoint: str


def parse_end(text: str) -> PlainEnd | OurEnd:
    """Return what an end's text says; `EndpointError` where it is not well-formed."""
    match = _PLAIN.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return OurEnd("", _ours(text))
    first, kind, scheme, rest = match.groups()
    if first in _OURS:
        if scheme is not None:
            raise EndpointError(text, "scheme", f"unknown scheme {kind}+{scheme!r}")
        return OurEnd(first, str(parse_endpoint(f"{kind}://{rest}")))
    if first not in KINDS:
        known = ", ".join((*KINDS, *_OURS))
        raise EndpointError(text, "scheme", f"unknown {first!r} before the + (known: {known})")
    if kind not in KINDS[first]:
        known = ", ".join(KINDS[first])
        raise EndpointError(text, "scheme", f"{first} has no {kind!r} here (known: {known})")
    scheme = scheme or "tcp"
    if scheme not in _SCHEMES[first]:
        known = ", ".join(_SCHEMES[first])
        raise EndpointError(text, "scheme", f"{first} goes over {known}, not {scheme!r}")
    place, question, given = rest.partition("?")
    options = _options(text, first, given) if question else {}
    try:
        endpoint = parse_endpoint(f"{scheme}://{place}")
    except EndpointError as error:  # of the text as it was given
        raise EndpointError(text, error.part, error.reason) from None
    binds, key = "bind" in options, options.get("key")
    if key is not None:
        endpoint = replace(endpoint, options=(("key", key),))
    if not binds and (endpoint.is_wildcard or (endpoint.has_port and not endpoint.port)):
        reason = f"cannot connect to {place!r}: it binds with ?bind=1"
        raise EndpointError(text, "host" if endpoint.is_wildcard else "port", reason)
    curve = key is not None or "curve" in options
    if curve and scheme == "inproc":
        reason = "inproc:// stays within the process, and takes no keys"
        raise EndpointError(text, "option", reason)
    return PlainEnd(first, kind, endpoint, binds, curve)


def _ours(text: str) -> str:
    try:
        return str(parse_endpoint(text))
    except EndpointError as error:
        if error.part != "scheme" or not isinstance(text, str):
            raise
        known = ", ".join(f"{first}+{kind}" for first, kinds in KINDS.items() for kind in kinds)
        reason = f"{error.reason}; plain sockets: {known}"
        raise EndpointError(text, "scheme", reason) from None


def _options(text: str, protocol: str, given: str) -> dict[str, str]:
    """Return what stands after the `?`, checked."""
    found: dict[str, str] = {}
    for option in given.split("&"):
        name, _, value = option.partition("=")
        if name == "key" and not is_key_text(value):  # not shown: it may be a secret one
            raise EndpointError(text, "option", "key is 43 characters of base64url")
        if name != "key" and option not in ("bind=1", "curve=1"):
            known = "bind=1, curve=1, key=KEY"
            raise EndpointError(text, "option", f"unknown option {option!r} (known: {known})")
        found[name] = value
    if protocol == "sp" and found.keys() & {"curve", "key"}:
        reason = "nanomsg and nng have no CURVE, and so no keys: put a tunnel around it"
        raise EndpointError(text, "option", reason)
    if "bind" in found and "key" in found:
        reason = "a key is pinned where one connects; what binds says curve=1"
        raise EndpointError(text, "option", reason)
    return found
