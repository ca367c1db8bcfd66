"""A relay's counters."""

from dataclasses import dataclass

from p2pmsg.errors import LossReport
from p2pmsg.stats import ServingStats, Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedSessionStats(Stats):
    """One session at a relay.

    Attributes:
        session, publisher: which one, and its publisher's name.
        hops: how many relays are between the publisher and who asks this one: at least 1.
        is_live: whether any upstream carries it now; one that ended is served on.
        streams: (earliest kept sequence, next sequence) by topic.

    """

    session: int
    publisher: str
    hops: int
    is_live: bool
    streams: dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStats(ServingStats):
    """A relay's counters since it was made, besides those of `ServingStats`.

    Attributes:
        relay: its 64-bit id.
        sessions: what it serves.
        received: messages that came and were kept.
        lost: messages that were lost on their way here, and `losses` which, with their reasons, as
            they are reported on (bounded for each stream).
        repaired_from: messages that were missing here and repaired, by the source that had them.
        outstanding: messages that are missing here, and asked for.
        upstreams: names of the publishers and relays connected to now.
        loops_refused: how often an upstream was refused, because it gets what it has from here.
        refused: the endpoints that are refused now for that.
        refusals: why upstreams are refused now, for that or because they have no right to send
            anything here, for people, by endpoint; each is tried again after 5 to 10 s.
        sessions_refused, streams_refused: what was not taken on because a bound was met.
        streams_rewound: times that a publisher's log was found to be shorter than what was received
            of a stream; the messages that have sequences in use are dropped here.
        unanswered: what is at upstreams' endpoints from which no welcome has ever come, for
            people, by endpoint. It is examined after 5 s, then each minute.
        answering: by upstream's endpoint, whether somebody there was joined, and answers.
        denied: as in `SubscriberStats`, of what it receives.

    """

    relay: int
    sessions: list[RelayedSessionStats]
    received: int
    lost: int
    losses: list[LossReport]
    repaired_from: dict[str, int]
    outstanding: int
    upstreams: list[str]
    loops_refused: int
    refused: list[str]
    refusals: dict[str, str]
    sessions_refused: int
    streams_refused: int
    streams_rewound: int
    unanswered: dict[str, str]
    answering: dict[str, bool]
    denied: int

    @property
    def streams(self) -> dict[tuple[int, str], tuple[int, int]]:
        """(earliest kept sequence, next sequence) by (session, topic)."""
        return {
            (each.session, topic): head
            for each in self.sessions
            for topic, head in each.streams.items()
        }
