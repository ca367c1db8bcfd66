"""Where a publisher's streams stand, and what it gives no right to. No I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from p2pmsg import control
from p2pmsg.errors import AccessDeniedError, denied_by_peer
from p2pmsg.ranges.place import Presence
from p2pmsg.topics import check_topic


@dataclass(frozen=True, slots=True)
class StreamHead:
    """One stream's place."""

    earliest: int
    """The earliest sequence that is kept."""

    next: int
    """The next sequence: messages from `earliest` up to this one can be fetched."""

    first_at: int | None = None
    """Where a time was asked for: the first kept message of that time or later, or `next`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """A publisher and the heads of its streams, at one moment."""

    publisher: str
    """Its name."""

    session: int
    """The 64-bit id of its sequence space."""

    recovery_endpoint: str
    """Where ranges are asked for, as seen from here."""

    streams: dict[str, StreamHead]
    """By topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointHeads:
    """What is known of one endpoint that is followed."""

    sessions: Mapping[int, Heads] = field(default_factory=dict)
    """The last known heads, by session: of a publisher one, of a relay of all that it serves, of a
    group of each publisher there. Empty where nobody has answered yet, and at a relay that serves
    none."""

    former: Mapping[int, Heads] = field(default_factory=dict)
    """The last heads of sessions that have ended there meanwhile, 256 at most."""

    reachable: bool = False
    """Whether it has answered lately."""

    is_relay: bool = False
    """Whether there is a relay, as far as is known."""

    denied: Mapping[str, AccessDeniedError] = field(default_factory=dict)
    """What there is no right to now, by topic or prefix; each is logged once as a warning, too."""

    unanswered: str = ""
    """Who is there, where no welcome has come for 5 s, or why we are refused, in words; both are
    logged once as a warning, too. Or who is there and has not answered. "" where all is well."""

    @property
    def only(self) -> Heads | None:
        """The heads of the session there, where it is the only one."""
        return next(iter(self.sessions.values())) if len(self.sessions) == 1 else None


def check_patterns(patterns: Iterable[str]) -> list[str]:
    """Return topics, and prefixes that end in `*`, once each; `MessageError` for others."""
    found = list(dict.fromkeys(patterns))
    for each in found:
        if each != "*":
            check_topic(each.removesuffix("*"))
    return found


def heads_of(peer: Presence, body: control.Heads, *, with_time: bool = False) -> Heads:
    """Return what a HEADS frame says."""
    streams = {
        head.topic: StreamHead(head.earliest, head.next, head.start if with_time else None)
        for head in body.streams
    }
    return Heads(
        publisher=body.name,
        session=peer.session,
        recovery_endpoint=str(peer.recovery),
        streams=streams,
    )


def denied_by(publisher: str, pattern: str, why: str = "") -> AccessDeniedError:
    """Return what is raised where a publisher gives no right to a topic, or to a prefix.

    `why` is what it says itself.
    """
    return denied_by_peer("subscribe", pattern, f"publisher {publisher!r}", why)


def all_denied_by(publisher: str, denied: control.Denied) -> dict[str, AccessDeniedError]:
    """Return the same by pattern, of all that a publisher denies; it says why of the first one."""
    return {
        each: denied_by(publisher, each, "" if at else denied.why)
        for at, each in enumerate(denied.patterns)
    }
