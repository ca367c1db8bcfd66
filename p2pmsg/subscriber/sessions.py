"""What a subscriber knows of a publisher's session, and of each of its streams."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from p2pmsg.control import Welcome
from p2pmsg.errors import LossReport
from p2pmsg.message import Origin
from p2pmsg.multicast.progress import ProgressMarks
from p2pmsg.start import Start
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.route import Route
from p2pmsg.subscriber.states import (
    IS_OVER,
    TRANSITIONS,
    WAS_JOINED,
    Event,
    RouteState,
    State,
)
from p2pmsg.subscriber.typed import ValueType
from p2pmsg.wire import FLAG_PLAIN, SEQUENCE_MAX, Frame, stream_prefix
from recovery import (
    AnswerTime,
    Delivery,
    Feedback,
    Loss,
    LossReason,
    ReceiverConfig,
    StreamReceiver,
)
from recovery.loss import LossRanges
from recovery.nack import answer_time

if TYPE_CHECKING:
    from p2pmsg.stats import StreamLedger

HISTORY_MESSAGES: Final = 65_536
"""A gap of a multicast with more messages is asked for over the recovery channel at once: what one
subscriber missed while it was away should not fill the network of all. The same holds for a stream
of which it misses a sixteenth of that, if for a second more came than it could read."""
MALFORMED_MAX: Final = 1024
"""Ranges of malformed messages that are distinguished."""
VAIN_MAX: Final = 8
"""Gaps in a row that were asked for by UDP in vain; then they are asked for over TCP at once. Where
half of all datagrams are lost, this happens once in 10,000 times."""
_BLOCKED: Final = b"\0\0"
"""No frame begins so."""


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
    marks: ProgressMarks = field(default_factory=ProgressMarks)
    """Which of its marks were read."""

    def place(self, lines: Sequence[Connection]) -> tuple[int, Any]:
        """Return where its publisher hears us, a line and an address; there are `sources`."""
        return max(self.sources.items(), key=lambda place: lines[place[0]].last_heard_ns)

    def begin_incarnation(self) -> None:
        """Start over: its publisher was started again, or is elsewhere."""
        self.token = self.vain = 0
        self.marks = ProgressMarks()


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
    was_relayed: bool = False
    """Whether there ever was one."""
    answer: AnswerTime = field(default_factory=answer_time)
    """How long answers to its NACKs take."""
    group: GroupState | None = None
    """What it has in addition in a multicast; None: it is none."""

    def __post_init__(self, welcome: Welcome, now_ns: int) -> None:
        self.origin = Origin(self.session, welcome.name)
        self.last_heard_ns = now_ns
        self.own = Route(
            self.session, -1, 0, state=RouteState.ABSENT,
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
        return self.own.state not in (RouteState.ABSENT, RouteState.CLOSED)

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
        return self.own.probe

    @property
    def closing(self) -> bool:
        """Whether its publisher says that it is closing."""
        return self.own.closing

    @property
    def is_asking(self) -> bool:
        """Whether its publisher, or a relay of it, was asked about heads and has not answered."""
        return self.own.is_asking or any(route.is_asking for route in self.relayed)

    @property
    def routes(self) -> list[Route]:
        """All routes to it, its publisher first."""
        return [self.own, *self.relayed] if self.direct else list(self.relayed)

    @property
    def missing(self) -> bool:
        """Whether anything of it is missing."""
        return any(stream.receiver.missing for stream in self.streams.values())


@dataclass(slots=True)
class Conflation:
    """What is ready of a stream of which only the newest value of each key matters.

    `ReadyQueue` owns it.
    """

    waiting: list[Delivery[Frame] | Loss] | None = None
    """What is ready; None: nothing."""
    fold_in: int = 0
    """How many messages may come until `waiting` is folded."""


@dataclass(slots=True)
class Repairs:
    """Who may have what is missing of a stream."""

    history: int = 0
    """In a multicast, up to where it is asked for over TCP."""
    relayed: int = 0
    """Messages that were missing and came from a relay."""
    relay_heads: dict[int, int] = field(default_factory=dict)
    """How far relays were by their last heartbeats, by line."""


@dataclass(slots=True)
class Compared:
    """What the next echo is compared with, to see whether the publisher has gone back.

    `resume` owns it.
    """

    probed: int = 0
    """The stream's head when the session was last probed."""
    unseen: bool = False
    """Whether the publisher began another incarnation, and denied it then."""
    published: int = 0
    """Up to where the publisher's incarnation that is known was, as it said itself."""


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
    typed: ValueType | None = None
    """Decodes its values; None: into what msgpack says that they are."""
    delivered_to: int | None = None
    """Up to where the application took messages or losses; None: it took none."""
    delivered_count: int = 0
    """How many messages it took."""
    conflated: int = 0
    """Messages in whose place newer ones of the same key were given."""
    conflation: Conflation = field(default_factory=Conflation)
    repairs: Repairs = field(default_factory=Repairs)
    compared: Compared = field(default_factory=Compared)
    malformed: LossRanges = field(default_factory=LossRanges)
    """Messages whose frame turned out to be malformed; they count as lost."""
    malformed_count: int = 0
    """How many there were; of `malformed` the first ones are forgotten."""

    def __post_init__(self, config: ReceiverConfig, rng: Random, answer: AnswerTime | None) -> None:
        session = self.peer.session
        self.prefix = stream_prefix(self.topic, session)
        self.plain_prefix = stream_prefix(self.topic, session, FLAG_PLAIN)
        self.receiver = StreamReceiver(config, rng, self.peer.feedback, answer)

    def block(self, is_blocked: bool) -> None:
        """Let no frame take the fast path, where its server may not send it any more."""
        session = self.peer.session
        self.prefix = _BLOCKED if is_blocked else stream_prefix(self.topic, session)

    def on_malformed(self, start: int, count: int) -> Loss:
        """Count messages that were received but cannot be read."""
        loss = Loss(start, start + count, LossReason.MALFORMED)
        self.malformed.add(loss)
        self.malformed_count += count
        if len(self.malformed) > MALFORMED_MAX:
            self.malformed.forget_first()
        return loss

    @property
    def retired(self) -> bool:
        """Whether it has ended, and another one has its place: the publisher has gone back."""
        return self.peer.streams.get(self.topic) is not self

    @property
    def jump_max(self) -> int:
        """By how many messages a frame may be ahead of what is known of, to be taken."""
        return SEQUENCE_MAX if self.peer.group is None else HISTORY_MESSAGES

    @property
    def position(self) -> int:
        """The sequence after what was taken from the core."""
        return self.receiver.start if self.delivered_to is None else self.delivered_to

    def ledger(self, waiting: int, committed: int | None = None) -> "StreamLedger":
        """Return the ledger, where `waiting` of the messages handed on are not delivered yet."""
        from p2pmsg.stats import StreamLedger

        receiver, malformed = self.receiver, self.malformed_count
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
        receiver, malformed = self.receiver, self.malformed_count
        return {
            "published": receiver.handed + receiver.lost,
            "delivered": receiver.handed - malformed - self.conflated,
            "lost": receiver.lost + malformed,
            "repaired": receiver.repaired - self.repairs.relayed,
            "relayed": self.repairs.relayed,
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
