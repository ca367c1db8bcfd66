"""A relay's counters."""

from dataclasses import dataclass, field

from p2pmsg.errors import LossReport
from p2pmsg.stats import LogStats, RequesterStats, Stats


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
class RelayStats(Stats):
    """A relay's counters since it was made.

    Attributes:
        name, relay, endpoint, recovery_endpoint: who and where it is; `relay` is its 64-bit id.
        sessions: what it serves.
        received: messages that came and were kept.
        lost: messages that were lost on their way here, and `losses` which, with their reasons, as
            they are reported on (bounded for each stream).
        repaired_from: messages that were missing here and repaired, by the source that had them.
        repaired: messages sent again to those who missed them, by their source: `buffer`,
            `log`.
        outstanding: messages that are missing here, and asked for.
        subscribers: how many have confirmed that they receive.
        upstreams: names of the publishers and relays connected to now.
        loops_refused: how often an upstream was refused, because it gets what it has from here.
        refused: the endpoints that are refused now for that.
        refusals: why upstreams are refused now, for that or because they have no right to send
            anything here, for people, by endpoint; each is tried again after 5 to 10 s.
        replay_bytes: what the replay buffer holds, in bytes.
        log: the local log, or None.
        requesters: who asked for repairs, a session each.
        frames_shed: frames sent although a slow subscriber's queue had no space; it repairs them.
        frames_invalid: frames that came in and were dropped, by reason.
        sessions_refused, streams_refused: what was not taken on because a bound was met.
        streams_rewound: times that a publisher's log was found to be shorter than what was received
            of a stream; the messages that have sequences in use are dropped here.
        memo_errors: how often what it keeps next to its log (names, losses) could not be written;
            that is tried again.
        undelivered: subscribers that had not got everything when the relay was closed.
        subscribers_forgotten: as in `PublisherStats`.
        control_dropped, heads_throttled: as in `PublisherStats`.
        connections, connections_refused, connections_oversubscribed: as there.
        unanswered: what is at upstreams' endpoints from which no welcome has ever come, for
            people, by endpoint. It is examined after 5 s, then each minute.
        answering: by upstream's endpoint, whether somebody there was joined, and answers.
        requests_denied, subscriptions_refused, connections_ended, connections_revoked: as in
            `PublisherStats`.
        denied: as in `SubscriberStats`, of what it receives.

    """

    name: str
    relay: int
    endpoint: str
    recovery_endpoint: str
    sessions: list[RelayedSessionStats]
    received: int
    lost: int
    losses: list[LossReport]
    repaired_from: dict[str, int]
    repaired: dict[str, int]
    outstanding: int
    subscribers: int
    upstreams: list[str]
    loops_refused: int
    refused: list[str]
    replay_bytes: int
    log: LogStats | None
    requesters: list[RequesterStats]
    frames_shed: int
    frames_invalid: dict[str, int]
    sessions_refused: int
    streams_refused: int
    undelivered: int
    subscribers_forgotten: dict[str, int] = field(default_factory=dict)
    streams_rewound: int = 0
    control_dropped: int = 0
    heads_throttled: int = 0
    connections: int = 0
    connections_refused: int = 0
    connections_oversubscribed: int = 0
    memo_errors: int = 0
    unanswered: dict[str, str] = field(default_factory=dict)
    answering: dict[str, bool] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    requests_denied: int = 0
    subscriptions_refused: int = 0
    connections_ended: int = 0
    connections_revoked: int = 0
    denied: int = 0

    @property
    def streams(self) -> dict[tuple[int, str], tuple[int, int]]:
        """(earliest kept sequence, next sequence) by (session, topic)."""
        return {
            (each.session, topic): head
            for each in self.sessions
            for topic, head in each.streams.items()
        }
