"""What a subscriber knows of a publisher's session, and of each of its streams."""

from dataclasses import KW_ONLY, InitVar, dataclass, field
from random import Random
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from p2pmsg.control import Welcome
from p2pmsg.errors import LossReport
from p2pmsg.message import Origin
from p2pmsg.start import Start
from p2pmsg.subscriber.handshake import Handshake
from p2pmsg.subscriber.states import IS_OVER, TRANSITIONS, WAS_JOINED, Event, State
from p2pmsg.subscriber.typed import ValueType
from p2pmsg.wire import FLAG_PLAIN, SEQUENCE_MAX, Frame, single_struct, stream_prefix
from recovery import (
    AnswerTime,
    Delivery,
    Feedback,
    Loss,
    LossReason,
    RangeSet,
    ReceiverConfig,
    StreamReceiver,
)
from recovery.nack import answer_time

if TYPE_CHECKING:
    from p2pmsg.stats import StreamLedger

MALFORMED_MAX: Final = 1024
"""Ranges of malformed messages that are distinguished."""
REFUSED_MAX: Final = 1024
"""Refused ranges that are remembered for each stream and route. Beyond it all are forgotten, and
asked for once more."""

_BLOCKED: Final = b"\0\0"
"""No frame begins so."""

Refusals = dict[str, dict[LossReason, RangeSet]]


@dataclass(slots=True, eq=False)
class Route:
    """One way to a session."""

    key: int
    """What the shell calls the recovery channel: the session at its publisher, or a relay."""
    line: InitVar[int]
    """The connection over which its frames come; -1 where that is not known yet."""
    hops: int
    """How many relays are in between; 0: it is the publisher itself."""
    _: KW_ONLY
    now_ns: InitVar[int]
    handshake: Handshake = field(init=False)
    is_open: bool = False
    """Whether it leads to the session, where it is that to the publisher itself."""
    recovery: str = ""
    """The publisher's recovery endpoint, where it is that to the publisher itself."""
    stall_ms: float = -1.0
    """How long a full subscriber may hold up the server there; negative: it may not."""
    user: str = ""
    """Whose session it is, by the key of its publisher; "" where that is not asked."""
    asked_ns: int | None = None
    """Since when a NACK is without an answer."""
    tried_ns: int | None = None
    """The same, for as long as it is the one that is asked."""
    repaired_ns: int = -1
    """When messages last came over it, those that had come before included."""
    refused: Refusals = field(default_factory=dict)
    """What cannot be had here, by topic and reason."""
    met_ns: int = 0
    """When it was first announced."""
    announced_ns: int = 0
    """When the relay last said that it has the session, or a group's publisher that it is there."""

    def __post_init__(self, line: int, now_ns: int) -> None:
        self.handshake = Handshake(line)
        self.announced_ns = self.met_ns = now_ns

    def on_refused(self, topic: str, start: int, stop: int, reason: LossReason) -> None:
        """Remember that `[start, stop)` cannot be had here."""
        by_reason = self.refused.setdefault(topic, {})
        by_reason.setdefault(reason, RangeSet()).add(start, stop)
        if sum(map(len, by_reason.values())) > REFUSED_MAX:
            del self.refused[topic]

    def not_refused(self, topic: str, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of `[start, stop)` that may be had here."""
        parts = [(start, stop)]
        for ranges in self.refused.get(topic, {}).values():
            parts = [part for a, b in parts for part in ranges.missing(a, b)]
        return parts

    def reasons(self, topic: str, start: int, stop: int) -> list[Loss]:
        """Return the parts of `[start, stop)` that were refused here, and why."""
        return [
            Loss(a, b, reason)
            for reason, ranges in self.refused.get(topic, {}).items()
            for a, b in ranges.overlap(start, stop)
        ]


@dataclass(slots=True, eq=False)
class GroupState:
    """What a session of a multicast has in addition."""

    feedback: Feedback
    """Draws how long its NACKs wait, by the size of the group."""
    token: int = 0
    """What makes its publisher listen to datagrams; 0: there is none."""
    parity: int = 0
    """How many parity datagrams it sends after a block."""
    proof: int | None = None
    """The probe whose echo showed where its datagrams come from."""
    sources: dict[int, Any] = field(default_factory=dict)
    """Where its datagrams come from, by line."""
    moved: bool = False
    """Whether the last echo came from another place than those before, over each of its lines."""
    vain: int = 0
    """How many gaps in a row were asked for by UDP in vain, of those at one time the first."""
    is_followed: bool = False
    """Whether any was asked for since the last one that was in vain."""
    by_udp_ns: int = 0
    """When to ask by UDP again, where many were."""


@dataclass(slots=True, eq=False)
class Session:
    """A publisher's session."""

    session: int
    welcome: InitVar[Welcome]
    _: KW_ONLY
    start: Start
    """Where its streams are to begin: other than the subscriber's, if all of it is its."""
    now_ns: InitVar[int]
    state: State = State.MET
    origin: Origin = field(init=False)
    """What its messages say of where they come from."""
    incarnation: int = 0
    """Which incarnation of its publisher the last echo was of; 0: not known."""
    last_heard_ns: int = 0
    """When anything of its streams last came over the data path; later where silence is excused."""
    answered_ns: int = -1
    """When anything last came over its recovery channel; negative: never."""
    streams: "dict[str, Stream]" = field(default_factory=dict)
    former: "list[Stream]" = field(default_factory=list)
    """Streams that ended because the publisher has gone back, the oldest first."""
    gaps: int = 0
    """How many of its streams miss something."""
    own: Route = field(init=False)
    """The route to the publisher itself."""
    relayed: list[Route] = field(default_factory=list)
    """The routes over relays."""
    current: Route | None = None
    """The route that is asked for what is missing."""
    answer: AnswerTime = field(default_factory=answer_time)
    """How long answers to its NACKs take."""
    group: GroupState | None = None
    """What it has in addition in a multicast; None: it is none."""

    def __post_init__(self, welcome: Welcome, now_ns: int) -> None:
        self.origin = Origin(self.session, welcome.name)
        self.last_heard_ns = now_ns
        self.own = Route(
            self.session, -1, 0,
            recovery=welcome.recovery, stall_ms=welcome.stall_ms, now_ns=now_ns,
        )  # fmt: skip

    def on(self, event: Event) -> None:
        """Take note of something that happens."""
        self.state = TRANSITIONS[self.state].get(event, self.state)

    @property
    def joined(self) -> bool:
        """Whether an echo came, over any route."""
        return self.state in WAS_JOINED

    @property
    def gone(self) -> bool:
        """Whether another session has its place."""
        return self.state in IS_OVER

    @property
    def is_decided(self) -> bool:
        """Whether it is known where its streams begin, or nobody will say so."""
        return self.state is not State.MET

    @property
    def is_one_way(self) -> bool:
        """Whether it answers over the recovery channel only."""
        return self.state is State.ONE_WAY

    @property
    def is_silent(self) -> bool:
        """Whether nothing of it comes, over any channel."""
        return self.state is State.SILENT

    @property
    def is_held(self) -> bool:
        """Whether nothing of it is taken until its echo."""
        return self.state is State.UNCONFIRMED

    @property
    def direct(self) -> bool:
        """Whether there is a route to the publisher itself."""
        return self.own.is_open

    @property
    def handshake(self) -> Handshake:
        """That with the publisher itself."""
        return self.own.handshake

    @property
    def name(self) -> str:
        """Its name; it may come to be known later, and change where it restarts on its log."""
        return self.origin.publisher

    @name.setter
    def name(self, name: str) -> None:
        self.origin = Origin(self.session, name)

    @property
    def heard_ns(self) -> int:
        """When anything of it last came, over any channel."""
        return max(self.last_heard_ns, self.answered_ns, self.own.announced_ns)

    @property
    def repaired_ns(self) -> int:
        """When messages last came over a recovery channel."""
        return max(route.repaired_ns for route in (self.own, *self.relayed))

    @property
    def feedback(self) -> Feedback | None:
        """How to ask in a multicast; None: it is none."""
        return None if self.group is None else self.group.feedback

    @property
    def probe(self) -> int | None:
        """The id of the echo that its publisher itself is to send, or None."""
        return self.handshake.probe

    @property
    def closing(self) -> bool:
        """Whether its publisher says that it is closing."""
        return self.handshake.closing

    @property
    def routes(self) -> list[Route]:
        """All routes to it, its publisher first."""
        return [self.own, *self.relayed] if self.direct else list(self.relayed)

    @property
    def missing(self) -> bool:
        """Whether anything of it is missing."""
        return any(stream.receiver.missing for stream in self.streams.values())


@dataclass(slots=True, eq=False)
class Stream:
    """One stream at this subscriber."""

    peer: Session
    topic: str
    config: InitVar[ReceiverConfig]
    rng: InitVar[Random]
    answer: InitVar[AnswerTime | None]
    receiver: StreamReceiver[Frame] = field(init=False)
    prefix: bytes = b""
    """How its frames begin."""
    plain_prefix: bytes = b""
    """How those begin that have values only."""
    single: Struct = field(init=False)
    """Reads `prefix`, the header after it, and four bytes of the body."""
    typed: ValueType | None = None
    """Decodes its values; None: into what msgpack says that they are."""
    delivered_to: int | None = None
    """Up to where the application took messages or losses; None: it took none."""
    delivered_count: int = 0
    """How many messages it took."""
    conflated: int = 0
    """Messages in whose place newer ones of the same key were given."""
    waiting: list[Delivery[Frame] | Loss] | None = None
    """What is ready, where only the newest value of each key matters; None: nothing."""
    fold_in: int = 0
    """How many messages may come until `waiting` is folded."""
    relayed: int = 0
    """Messages that were missing and came from a relay."""
    malformed: list[Loss] = field(default_factory=list)
    """Messages whose frame turned out to be malformed; they count as lost."""
    malformed_between: int = 0
    history: int = 0
    """In a multicast, where it stood when it was joined."""
    progress_ns: int = 0
    """When a relay's progress is noted again at the soonest."""
    patient_ns: int = 0
    """When its gaps are put off again at the soonest, while nobody can answer."""
    relay_heads: dict[int, int] = field(default_factory=dict)
    """How far relays were by their last heartbeats, by line."""
    probed: int = 0
    """Its head when the session was last probed."""
    unseen: bool = False
    """Whether its publisher began another incarnation, and denied it then: it is still to be
    compared."""
    published: int = 0
    """Up to where its publisher's incarnation that is known was, as it said itself."""
    retired: bool = False
    """It has ended, and another one has its place: the publisher has gone back."""
    watched: bool = False
    """Whether repair ages may be waiting."""
    unasked: bool = False
    """There is nobody to ask for what is missing, so that it is given up soon."""
    jump_max: int = SEQUENCE_MAX
    """By how many messages a frame may be ahead of what is known of, to be believed."""

    def __post_init__(self, config: ReceiverConfig, rng: Random, answer: AnswerTime | None) -> None:
        session = self.peer.session
        self.prefix = stream_prefix(self.topic, session)
        self.plain_prefix = stream_prefix(self.topic, session, FLAG_PLAIN)
        self.single = single_struct(len(self.prefix))
        self.receiver = StreamReceiver(config, rng, self.peer.feedback, answer)

    def block(self, is_blocked: bool) -> None:
        """Let no frame take the fast path, where its server may not send it any more."""
        session = self.peer.session
        self.prefix = _BLOCKED if is_blocked else stream_prefix(self.topic, session)

    def on_malformed(self, start: int, count: int) -> Loss:
        """Count messages that were received but cannot be read."""
        loss = Loss(start, start + count, LossReason.MALFORMED)
        self.malformed.append(loss)
        if len(self.malformed) > MALFORMED_MAX:
            first, second, *rest = self.malformed
            merged = Loss(first.start, second.stop, LossReason.MALFORMED)
            self.malformed_between += second.start - first.stop
            self.malformed = [merged, *rest]
        return loss

    @property
    def _malformed_count(self) -> int:
        return sum(loss.count for loss in self.malformed) - self.malformed_between

    @property
    def position(self) -> int:
        """The sequence after what was taken from the core."""
        return self.receiver.start if self.delivered_to is None else self.delivered_to

    def ledger(self, waiting: int, committed: int | None = None) -> "StreamLedger":
        """Return the ledger, where `waiting` of the messages handed on are not delivered yet."""
        from p2pmsg.stats import StreamLedger

        receiver, malformed = self.receiver, self._malformed_count
        return StreamLedger(
            topic=self.topic,
            session=self.peer.session,
            publisher=self.peer.name,
            start=receiver.start,
            head=receiver.head,
            delivered=receiver.handed - waiting - malformed - self.conflated,
            outstanding=receiver.missing + receiver.buffered + waiting,
            lost=receiver.lost + malformed,
            committed=committed,
            conflated=self.conflated,
        )

    def losses(self) -> list[LossReport]:
        """Return what was lost."""
        peer = self.peer
        return [
            LossReport(self.topic, peer.session, peer.name, loss)
            for loss in [*self.receiver.lost_ranges, *self.malformed]
        ]

    def totals(self) -> dict[str, int]:
        """Return the counters, to be kept when the stream is forgotten."""
        receiver, malformed = self.receiver, self._malformed_count
        return {
            "published": receiver.handed + receiver.lost,
            "delivered": receiver.handed - malformed - self.conflated,
            "lost": receiver.lost + malformed,
            "repaired": receiver.repaired - self.relayed,
            "relayed": self.relayed,
            "duplicates": receiver.duplicates,
            "late": receiver.late,
            "nacks": receiver.nacks.sent,
            "conflated": self.conflated,
        }


class Ending(NamedTuple):
    """A session that is over, once everything before `stop` was delivered.

    `announced`: it said so; otherwise another one took its place.
    """

    stream: Stream
    stop: int
    announced: bool


class RepairIn(NamedTuple):
    """A frame that was missing: it was sent again, or (`is_sent` False) worked out from parity."""

    stream: Stream
    frame: Frame
    is_sent: bool
