"""The ends of a bridge, as text: `zmq+sub://HOST:PORT?bind=1`, `tcp://HOST:PORT`.

=====================================  ===================================================
`zmq+sub://HOST:PORT`                  a plain ZeroMQ socket of this kind: sub, pub, pull, push
`sp+sub://HOST:PORT`                   the same of nanomsg and nng (extra `nng`)
`zmq+sub+ipc://PATH`                   the same at a Unix socket; `+inproc` in this process
`…?bind=1`                             it binds; without it, it connects
`tcp://…`, `ipc://…`, `udp://…`        ours: a stream opposite sub and pub, else a queue
`sp+rep://…`, `sp+req://…`             requests, opposite a `Responder` or a `Requester` of ours
`sp+respondent://…`, `sp+surveyor://…` the same as surveys, which many answer
`stream+tcp://…`, `queue+tcp://…`      ours, said in so many words
=====================================  ===================================================
"""

import re
from dataclasses import dataclass
from typing import Final

from transports import Endpoint, EndpointError, parse_endpoint

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
        endpoint: where it binds or connects.
        binds: whether it binds.

    """

    protocol: str
    kind: str
    endpoint: Endpoint
    binds: bool

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
        return f"{self.protocol}+{self.kind}+{endpoint}{'?bind=1' if self.binds else ''}"


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
        return OurEnd("", str(parse_endpoint(text)))
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
    place, question, option = rest.partition("?")
    if question and option not in ("bind=0", "bind=1"):
        raise EndpointError(text, "option", f"unknown option {option!r} (known: bind=0, bind=1)")
    endpoint = parse_endpoint(f"{scheme}://{place}")
    binds = option == "bind=1"
    if not binds and (endpoint.is_wildcard or (endpoint.has_port and not endpoint.port)):
        reason = f"cannot connect to {place!r}: it binds with ?bind=1"
        raise EndpointError(text, "host" if endpoint.is_wildcard else "port", reason)
    return PlainEnd(first, kind, endpoint, binds)
