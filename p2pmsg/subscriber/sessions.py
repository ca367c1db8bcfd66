"""What a subscriber knows of a publisher's session, and of each of its streams."""

from random import Random
from typing import Any, Final, NamedTuple

from p2pmsg.control import Heads, Welcome
from p2pmsg.errors import LossReport
from p2pmsg.message import Origin
from p2pmsg.stats import StreamLedger
from p2pmsg.subscriber.handshake import Handshake
from p2pmsg.wire import FLAG_PLAIN, SEQUENCE_MAX, Frame, single_struct, stream_prefix
from recovery import Feedback, Loss, LossReason, RangeSet, ReceiverConfig, StreamReceiver

MALFORMED_MAX: Final = 1024
"""Ranges of malformed messages that are told apart."""
FIRST_WAIT_NS: Final = 10_000_000
"""Between two questions to one multicast session, as long as their hints are true."""
REFUSED_MAX: Final = 1024
"""Refused ranges that are remembered for each stream and route. Beyond it all are forgotten, and
asked for once more."""

Refusals = dict[str, dict[LossReason, RangeSet]]


class Route:
    """One way to a session.

    Attributes:
        key: what the shell calls the recovery channel: the session at its publisher, or a relay.
        hops: how many relays are in between; 0: it is the publisher itself.
        handshake: how far the subscriber and the other side have agreed over it.
        asked_ns: since when a NACK is without an answer, or None.
        refused: what cannot be had here, by topic and reason.
        announced_ns: when the relay last said that it has the session.

    """

    __slots__ = (
        "announced_ns",
        "asked_ns",
        "handshake",
        "hops",
        "key",
        "refused",
    )

    def __init__(self, key: int, line: int, hops: int, *, now_ns: int) -> None:
        self.key = key
        self.hops = hops
        self.handshake = Handshake(line)
        self.asked_ns: int | None = None
        self.refused: Refusals = {}
        self.announced_ns = now_ns

    def note_refused(self, topic: str, start: int, stop: int, reason: LossReason) -> None:
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


class GroupState:
    """What a multicast session's publisher said over the recovery channel.

    Attributes:
        token: what makes its publisher listen to datagrams; 0: there is none.
        life: which life of the session it is; None: not known.
        parity: how many parity datagrams it sends after a block, once `life` is known.
        is_old: its publisher does not answer as those do that give tokens.
        met_ns: when it was first announced.
        answered_ns: when anything last came over the recovery channel.
        proof: the probe whose echo showed where its datagrams come from, and `places` where, by
            line.

    """

    __slots__ = (
        "all_ns",
        "answered_ns",
        "asked",
        "asked_ns",
        "due_ns",
        "everything",
        "is_old",
        "join_ns",
        "join_tries",
        "life",
        "met_ns",
        "parity",
        "places",
        "proof",
        "request",
        "snapshot",
        "suspect",
        "suspect_ns",
        "token",
        "topics",
        "wait_ns",
    )

    def __init__(self, now_ns: int) -> None:
        self.token = 0
        self.life: int | None = None
        self.parity = 0
        self.is_old = False
        self.met_ns = now_ns
        self.answered_ns = -1
        self.proof: int | None = None
        self.places: dict[int, Any] = {}
        self.suspect: tuple[int, Welcome] | None = None
        self.suspect_ns = 0
        self.join_ns = self.join_tries = 0
        self.topics: dict[str, int] = {}  # and the head that was heard of; 0: none
        self.everything = False
        self.asked: dict[str, int] | None = None  # None: all of them
        self.request: int | None = None
        self.snapshot: dict[str, int] = {}
        self.asked_ns = self.due_ns = self.all_ns = 0
        self.wait_ns = FIRST_WAIT_NS

    @property
    def is_asking(self) -> bool:
        """Whether something is asked, or is to be."""
        return self.request is not None or bool(self.topics) or self.everything

    @property
    def sends_parity(self) -> bool:
        """Whether parity of it may be believed."""
        return self.parity > 0 or self.is_old


class Session:
    """A publisher's session.

    Attributes:
        began_ns: in a multicast, when its publisher started, as its last announcement has it.
        returning: another session was at its place before, so that nothing of it is too old.
        joined: an echo came, over any route.
        feedback: how to ask in a multicast; None: it is none.
        gone: another session has taken its place.
        former: streams that ended because the publisher has gone back, the oldest first.
        given_up: it fell silent before it was joined, and what came of it was delivered.
        group: in a multicast, what its publisher said over the recovery channel; None: it is none.
        own: the route to the publisher itself, and `direct` whether there is one now; `handshake`
            is that with the publisher.
        relayed: the routes over relays.
        current: the route that is asked for what is missing; `tried_ns` since when it was without
            an answer.
        ending_ns: since when no route leads to it, while relays are asked whether they have it.
        held: first echoes, by route, until the others have come; `held_ns` since when.
        late: its relay announced it when the others had been joined.
        blamed: what is missing will be lost as `publisher_gone`, for it is silent.
        gaps: how many of its streams miss something.
        life: which life of its publisher the last echo was of; 0: not known. `next_life` another
            one that was heard of, and `doubt_until_ns` until when nothing of the session is taken,
            unless its echo comes.
        origin: what its messages say of where they come from.

    """

    __slots__ = (
        "began_ns",
        "blamed",
        "current",
        "direct",
        "doubt_until_ns",
        "ending_ns",
        "feedback",
        "former",
        "gaps",
        "given_up",
        "gone",
        "group",
        "handshake",
        "heard_ns",
        "held",
        "held_ns",
        "joined",
        "late",
        "life",
        "next_life",
        "origin",
        "own",
        "recovery",
        "relayed",
        "returning",
        "session",
        "stall_ms",
        "streams",
        "tried_ns",
    )

    def __init__(self, session: int, welcome: Welcome, *, returning: bool, now_ns: int) -> None:
        self.session = session
        self.origin = Origin(session, welcome.name)
        self.recovery = welcome.recovery
        self.stall_ms = welcome.stall_ms
        self.returning = returning
        self.heard_ns = now_ns
        self.began_ns = now_ns - int(welcome.age_ms * 1e6)
        self.streams: dict[str, Stream] = {}
        self.own = Route(session, -1, 0, now_ns=now_ns)
        self.handshake = self.own.handshake
        self.relayed: list[Route] = []
        self.current: Route | None = None
        self.tried_ns: int | None = None
        self.ending_ns: int | None = None
        self.held: dict[int, Heads] = {}
        self.held_ns = 0
        self.direct = self.late = False
        self.joined = self.gone = self.blamed = False
        self.given_up = False
        self.former: list[Stream] = []
        self.gaps = self.life = self.next_life = self.doubt_until_ns = 0
        self.feedback: Feedback | None = None
        self.group: GroupState | None = None

    @property
    def name(self) -> str:
        """Its name; it may come to be known later, and change where it restarts on its log."""
        return self.origin.publisher

    @name.setter
    def name(self, name: str) -> None:
        self.origin = Origin(self.session, name)

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


class Stream:
    """One stream at this subscriber.

    Attributes:
        conflated: messages in whose place newer ones of the same key were given.
        delivered_to: up to where the application took messages or losses; None: it took none.
        delivered_count: how many messages it took.
        history: in a multicast, where it stood when it was joined.
        relayed: messages that were missing and came from a relay.
        malformed: messages whose frame turned out to be malformed; they count as lost.
        progress_ns: when a relay's progress is noted again at the soonest; `relay_heads` how far
            relays were by their last heartbeats, by line.
        probed: its head when the session was last probed; in a multicast, up to where messages had
            come or were confirmed, or `probed_early` where frames ended that came before it began.
        published: up to where its publisher's life that is known was, as it said itself.
        retired: it has ended, and another one has its place: the publisher has gone back.
        prefix: how its frames begin; `plain_prefix` those that have values only.
        single: reads `prefix`, the header behind it, and four bytes of the body.
        watched: whether repair ages may be waiting.
        unasked: there is nobody to ask for what is missing, so that it is given up soon.
        jump_max: by how many messages a frame may be ahead of what is known of, to be believed.
        confirmed: in a multicast, up to where the publisher said itself that it has published.
        doubted: whether datagrams told of messages of it that never were.
        hinted: in a multicast, up to where datagrams told of messages that nobody has confirmed,
            where that is too far to be believed; 0: nothing such.
        doubt_ns: since when a loss waits for the publisher to say so; -1: none does.

    """

    __slots__ = (
        "confirmed",
        "conflated",
        "delivered_count",
        "delivered_to",
        "doubt_ns",
        "doubted",
        "hinted",
        "history",
        "jump_max",
        "malformed",
        "malformed_between",
        "peer",
        "plain_prefix",
        "prefix",
        "probed",
        "probed_early",
        "progress_ns",
        "published",
        "receiver",
        "relay_heads",
        "relayed",
        "retired",
        "single",
        "topic",
        "unasked",
        "watched",
    )

    def __init__(self, peer: Session, topic: str, config: ReceiverConfig, rng: Random) -> None:
        self.peer = peer
        self.topic = topic
        self.prefix = stream_prefix(topic, peer.session)
        self.plain_prefix = stream_prefix(topic, peer.session, FLAG_PLAIN)
        self.single = single_struct(len(self.prefix))
        self.receiver: StreamReceiver[Frame] = StreamReceiver(config, rng, peer.feedback)
        self.history = self.probed = self.progress_ns = self.published = 0
        self.probed_early: tuple[int, ...] = ()
        self.relay_heads: dict[int, int] = {}
        self.retired = False
        self.conflated = 0
        self.delivered_to: int | None = None
        self.delivered_count = self.relayed = 0
        self.malformed: list[Loss] = []
        self.malformed_between = 0
        self.watched = self.unasked = self.doubted = False
        self.jump_max = SEQUENCE_MAX
        self.confirmed, self.hinted, self.doubt_ns = 0, 0, -1

    def note_malformed(self, start: int, count: int) -> Loss:
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
    def position(self) -> int:
        """The sequence after what was taken from the core."""
        return self.receiver.start if self.delivered_to is None else self.delivered_to

    def ledger(self, waiting: int, committed: int | None = None) -> StreamLedger:
        """Return the ledger, where `waiting` of the messages handed on are not delivered yet."""
        receiver = self.receiver
        malformed = sum(loss.count for loss in self.malformed) - self.malformed_between
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
        receiver = self.receiver
        return {
            "handed": receiver.handed,
            "lost": receiver.lost,
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
