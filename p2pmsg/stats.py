"""The ledger and the counters of peers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from p2pmsg.errors import LossReport
from recovery import LatencyHistogram

__all__ = [
    "CursorStats",
    "LatencyHistogram",
    "LineStats",
    "LogStats",
    "MulticastLineStats",
    "MulticastStats",
    "PublisherStats",
    "ServingStats",
    "Stats",
    "StreamLedger",
    "SubscriberStats",
]


_LOSS = ("topic", "session", "publisher", "start", "stop", "reason")


class Stats:
    """What all counters have; each subclass is a dataclass."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def native(self) -> str:
        """Which hot functions run here, "compiled" or "python"; see `p2pmsg.native`."""
        from p2pmsg.native import NAME

        return NAME

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as what `json.dumps` takes; a number that is not finite is None."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, Stats):
        return value.to_dict()
    if isinstance(value, LossReport):
        return {name: _plain(getattr(value, name)) for name in _LOSS}
    if isinstance(value, LatencyHistogram):
        return {"count": value.count, "p50_ns": value.percentile(50), "max_ns": value.max}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if type(value) in (int, float, str, bool, type(None)) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLedger(Stats):
    """The ledger of one stream at one subscriber: published = delivered + outstanding + lost.

    Where only the newest value of each key is wanted (`on_gap="latest"`), conflated is added.

    Attributes:
        topic, session, publisher: which stream.
        start: the first sequence that this subscriber wants.
        head: the highest next sequence that it knows of; published is `head - start`.
        delivered: messages handed to the application.
        outstanding: messages that are missing, or wait for the application.
        lost: messages reported lost.
        committed: where a restart on the cursor goes on; None without one, or from the beginning.
        conflated: messages in whose place the application got a newer one of the same key.

    """

    topic: str
    session: int
    publisher: str
    start: int
    head: int
    delivered: int
    outstanding: int
    lost: int
    committed: int | None = None
    conflated: int = 0

    @property
    def published(self) -> int:
        """How many messages are known to have been published since `start`."""
        return self.head - self.start

    @property
    def balanced(self) -> bool:
        """Whether the equation holds; it always does."""
        return self.published == self.delivered + self.outstanding + self.lost + self.conflated


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorStats(Stats):
    """A subscriber's durable position; the positions themselves are in `StreamLedger.committed`.

    Attributes:
        path: of the file.
        commits: how often positions were written, since the subscriber was made.
        sessions, streams: how many it remembers.
        sessions_dropped, streams_dropped: what was forgotten at the bounds.

    """

    path: str
    commits: int
    sessions: int
    streams: int
    sessions_dropped: int
    streams_dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineStats(Stats):
    """What one of a subscriber's endpoints brought.

    Attributes:
        endpoint: which.
        frames: frames that came over it; in a multicast, datagrams.
        first: messages that it brought before other lines did; 0 where it is the only line.
        second: messages that another line had brought, and were dropped.
        missing: messages that other lines brought and it did not, after others which it did. What
            came since nothing comes over it any more counts after 2.5 s.
        lag: how much later than the first it brings what is second, smoothed, in seconds.
        kernel_drops: datagrams that the kernel dropped for lack of space in the receive buffer.
            They are lost here, not in the network.
        buffer_bytes: size of the kernel's receive buffer in bytes, by the kernel's count; 0: not a
            datagram line.
        frames_invalid: frames that were dropped, as those of a program that is no p2pmsg peer.
        found: what is at the endpoint where no welcome has ever come from it, for people: nobody,
            a socket of another kind, another program. It is examined after 5 s, then each minute.
            Or who is heard there and does not answer at its recovery endpoint, or why who is there
            is refused. Or for how long nothing has come over it while other lines brought what it
            did not. Or which publisher of a group is not reached by UDP, or only heard over TCP.
        connected: whether a publisher or relay there was joined, and answers; see
            `Subscriber.connected`.

    """

    endpoint: str
    frames: int
    first: int
    second: int
    missing: int
    lag: float
    kernel_drops: int
    buffer_bytes: int
    frames_invalid: int = 0
    found: str = ""
    connected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MulticastLineStats(Stats):
    """What a publisher counts of one of the groups, or addresses, that it sends to.

    Attributes:
        endpoint: which.
        unsent: datagrams that the system did not send: there is no route, the interface is away, a
            firewall drops them. They are repaired as those that are lost on the way.
        failing: why the last one was not sent, for people; "" where it was.

    """

    endpoint: str
    unsent: int = 0
    failing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MulticastStats(Stats):
    """What a publisher to a multicast counts in addition.

    Attributes:
        datagrams_sent: datagrams that were to go out, repairs included, each counted once for all
            lines.
        nacks: NACKs that came by UDP.
        messages_repaired, bytes_repaired: messages and bytes that were sent again by UDP.
        receivers_waited_for: how many the flow control looks at.
        window_waits: times that it made the publisher wait.
        invalid: datagrams that came in and were dropped, by reason; `token` are those of unknown
            senders.
        kernel_drops: datagrams from receivers that the kernel dropped for lack of space.
        buffer_bytes: size in bytes of the kernel's buffer for them, at the smallest socket.
        lines: one entry an endpoint, with what could not be sent there.

    """

    datagrams_sent: int
    nacks: int
    messages_repaired: int
    bytes_repaired: int
    receivers_waited_for: int
    window_waits: int
    invalid: dict[str, int]
    kernel_drops: int = 0
    buffer_bytes: int = 0
    lines: list[MulticastLineStats] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberStats(Stats):
    """A subscriber's ledger and counters, over all streams since it was made.

    Attributes:
        published, delivered, outstanding, lost, conflated: the sums of the ledgers of `streams`,
            and of streams that ended and were forgotten, to make space for others.
        repaired: messages that were missing and then repaired, by the source that had them.
        duplicates: messages that came again and were dropped.
        late: messages that came after they had been reported lost, and were dropped.
        losses: what was lost, with exact ranges and reasons (bounded for each stream).
        streams: one ledger a stream.
        repair_latency: from the moment a gap was seen to its repair, in ns.
        nacks_sent: NACKs, one a gap and attempt.
        frames_invalid: frames that were dropped, by reason; `unanswered` counts publishers that
            were announced to a group, and did not answer over TCP within 10 s.
        frames_shed: frames not taken in, because nobody read for longer than `stall_timeout`; they
            count as missing and are asked for later.
        bytes_held: bytes of frames that wait.
        publishers: names of the publishers connected to now.
        cursor: of the durable position; None without one.
        lines: one entry an endpoint.
        sessions_unjoined: sessions whose publisher was gone before it could be joined. What came
            from them was delivered; what is known to have been before that was reported lost. In a
            multicast, where anybody can announce one, it was dropped, and is not counted here.
        values_invalid: messages whose value did not fit its type; they count as delivered.
        streams_rewound: times that a publisher's log was found to be shorter than what was
            received of a stream, so that sequences are used again. `streams` has a ledger for each
            time, up to 16 a session.
        denied: with `security`, what was denied to this subscriber, or by it to those who send:
            each topic or prefix of each of them counts once.

    """

    published: int
    delivered: int
    outstanding: int
    lost: int
    repaired: dict[str, int]
    duplicates: int
    late: int
    losses: list[LossReport]
    streams: list[StreamLedger]
    repair_latency: LatencyHistogram
    nacks_sent: int
    frames_invalid: dict[str, int]
    frames_shed: int
    bytes_held: int
    publishers: list[str]
    cursor: CursorStats | None = None
    lines: list[LineStats] = field(default_factory=list)
    conflated: int = 0
    sessions_unjoined: int = 0
    values_invalid: int = 0
    streams_rewound: int = 0
    denied: int = 0

    @property
    def balanced(self) -> bool:
        """Whether every stream's equation holds; it always does."""
        return all(stream.balanced for stream in self.streams)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats(Stats):
    """A publisher's log.

    Attributes:
        directory: where it is.
        bytes: its size on disk, in bytes.
        unsynced_bytes: how many bytes a crash of the operating system could still take away.
        skipped: messages skipped when it was opened after such a crash, so that no sequence is
            used twice.
        failed: why nothing more is written to it (`on_error="continue"`), or None.
        errors: how often writing a frame, forcing it to the disk, reserving sequences or deleting
            what is too old failed. Each call that raised `LogFailedError` since its frame could not
            be written counts once, and so does each further try to write what was accepted before;
            a call that is refused after a failed fsync does not count again.
        retrying: what fails now and is tried again (writing a frame, forcing it to the disk,
            reserving sequences, deleting what is too old), or None. Writing is tried again with the
            next frame.

    """

    directory: str
    bytes: int
    unsynced_bytes: int
    skipped: int
    failed: str | None
    errors: int
    retrying: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingStats(Stats):
    """What a publisher and a relay count alike.

    Attributes:
        name, endpoint, recovery_endpoint: who and where it is.
        subscribers: how many have confirmed that they receive.
        replay_bytes: what the replay buffer holds, in bytes.
        repaired: messages sent again, by the source that had them: `buffer`, `log`.
        log: the local log, or None where there is none.
        frames_shed: frames sent although a slow subscriber's queue had no space; it repairs them.
        stalls: times that a full queue made it wait.
        stalled: how long it waited in all, in seconds.
        frames_invalid: frames that came in and were dropped, by reason.
        undelivered: subscribers that had not confirmed that they have everything when it was
            closed; those who were forgotten are in it.
        subscribers_forgotten: by name, how many had joined, were not heard of for
            `subscriber_timeout`, and have not come back; a clean closing does not count. "" are
            those without a name, and those beyond 1,024.
        control_dropped: answers that were dropped, to joining subscribers and over the recovery
            channel: too many waited, or they found no space for a second, or no descriptor was left
            to read the log with. A peer that gets no answer asks again.
        heads_throttled: questions about heads that were not answered, because who asked had used up
            its budget.
        connections: connections to both of its sockets now, also those of unknown programs.
        connections_refused: connections that were ended at once, because the process has no
            descriptors to spare for more; with `security` also those that had no key, or one that
            is not known. Those for which there is no descriptor at all wait, and a warning says so.
        connections_oversubscribed: connections that were ended because of their subscriptions:
            more than 65,536, or more than 512 KiB in all.
        requests_denied: with `security`, requests that were denied by its rules, as a whole or in
            part: questions about streams, repairs, keys.
        subscriptions_refused: with `security`, subscriptions that were not taken on.
        connections_ended: connections that were ended because their rights had changed.
        connections_revoked: connections that were ended because their key had been revoked.

    """

    name: str
    endpoint: str
    recovery_endpoint: str
    subscribers: int
    replay_bytes: int
    repaired: dict[str, int]
    log: LogStats | None
    frames_shed: int
    stalls: int
    stalled: float
    frames_invalid: dict[str, int]
    undelivered: int
    subscribers_forgotten: dict[str, int]
    control_dropped: int
    heads_throttled: int
    connections: int
    connections_refused: int
    connections_oversubscribed: int
    requests_denied: int
    subscriptions_refused: int
    connections_ended: int
    connections_revoked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherStats(ServingStats):
    """A publisher's counters since it was made, besides those of `ServingStats`.

    Attributes:
        session: which one it is.
        published: messages accepted, by this publisher and by those whose log it goes on with.
        pending: accepted messages that wait in open batches for others to share their frame.
        unsent_frames: frames that wait for space in a subscriber's queue.
        streams: (earliest kept sequence, next sequence) by topic.
        messages_evicted: messages that the replay buffer no longer holds.
        messages_repaired: messages sent again, by whichever way.
        multicast: what counts where the endpoint is `udp://`; None elsewhere.

    """

    session: int
    published: int
    pending: int
    unsent_frames: int
    streams: dict[str, tuple[int, int]]
    messages_evicted: int
    messages_repaired: int
    multicast: MulticastStats | None
