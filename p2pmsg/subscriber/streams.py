"""Begins the streams of all sessions, delivers what of them is in order, and ends them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

from p2pmsg.config import SubscriberConfig
from p2pmsg.control import Head
from p2pmsg.start import Start
from p2pmsg.subscriber.gaps import GapScheduler
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.redundancy import Redundancy
from p2pmsg.subscriber.resume import Resume, WentBack
from p2pmsg.subscriber.sessions import Session, Stream
from p2pmsg.subscriber.typed import UNTYPED, ValueTypes
from p2pmsg.wire import Frame, FrameError
from recovery import Delivery, LatencyHistogram, Loss, LossReason, ReceiverConfig, Rewound
from recovery.checks import to_ns

_UNASKED_S: Final = 0.02
"""How long a gap waits that nobody can be asked for (`mold://` without `request=`) until it is
reported lost; the wait for a second line comes on top. What a network reorders is less than 1 ms
late."""
FORMER_MAX: Final = 16
"""Former streams of a session whose ledgers are still shown; of others only the sums are kept."""

Deliver = Callable[[Stream, Delivery[Frame] | Loss], None]


class StreamTable:
    """Begins streams, delivers what is in order, and ends them.

    Args:
        by_line: which line brought what; None: there is only one.
        deliver: takes what is ready.

    Attributes:
        gaps: the streams that miss something.
        count: how many streams there are, those that have ended included.
        rewound: streams whose publisher has gone back.
        forgotten: the counters of streams that are not remembered.
        repair_latency: how old gaps were when they were repaired.

    """

    def __init__(
        self,
        config: SubscriberConfig,
        receiver_config: ReceiverConfig,
        *,
        start: Start,
        policy: GapPolicy,
        types: ValueTypes = UNTYPED,
        cursor: Resume | None,
        by_line: Redundancy | None,
        deliver: Deliver,
        rng: Random,
    ) -> None:
        self.config = config
        self.receiver_config = receiver_config
        deadline = min(_UNASKED_S, config.repair_timeout)
        self._unasked = replace(receiver_config, asks=False, deadline=deadline)
        self.start = start
        self.policy = policy
        self.types = types
        self.gaps = GapScheduler(to_ns(config.repair_timeout))
        self.count = self.rewound = 0
        self.forgotten: Counter[str] = Counter()
        self.repair_latency = LatencyHistogram()
        self._cursor = cursor
        self._by_line = by_line
        self._deliver = deliver
        self._rng = rng

    @property
    def is_full(self) -> bool:
        """Whether there are as many streams as there may be."""
        return self.count >= self.config.streams_max

    def add(self, peer: Session, topic: str, *, can_ask: bool = True) -> Stream:
        """Add a stream; `can_ask`: whether somebody can be asked for repairs."""
        self.count += 1
        config = self.receiver_config if can_ask else self._unasked
        if self.policy.skips(topic):
            config = replace(config, wait_for_repair=False)
        stream = Stream(peer, topic, config, self._rng, peer.answer if can_ask else None)
        stream.typed = self.types.of(topic)
        peer.streams[topic] = stream
        return stream

    def open(self, peer: Session, topic: str, now_ns: int) -> Stream:
        """Add a stream that a frame mentions; `FrameError` where it cannot be."""
        if not topic:
            raise FrameError("topic")
        if self.is_full:
            raise FrameError("streams_max")
        stream = self.add(peer, topic)
        if peer.joined:
            # It began after the echo, which does not have it: nothing of it is too old.
            self.begin(stream, now_ns=now_ns)
        return stream

    def begin(
        self, stream: Stream, otherwise: int | None = None, *, now_ns: int, following: int = 0
    ) -> None:
        """Start a stream where the cursor says, else at `otherwise`, else as a new one.

        Frames that came before are dropped if they are more than `jump_max` beyond there, or beyond
        `following`.
        """
        of_new = self.start.position if self.start.kind == "sequence" else 0
        start = of_new if otherwise is None else otherwise
        if self._cursor is not None:
            resumed = self._cursor.start_of(stream.peer.session, stream.topic, of_new)
            start = start if resumed is None else resumed
        head_max = max(start, following) + stream.jump_max
        stream.receiver.start_at(start, now_ns=now_ns, head_max=head_max)

    def take_head(self, peer: Session, head: Head, now_ns: int) -> bool:
        """Take where a stream of a session that is joined stands; False: it has no space."""
        stream = peer.streams.get(head.topic)
        if stream is None:
            if self.is_full:
                return False
            stream = self.add(peer, head.topic)
        if not stream.receiver.started:
            self.begin(stream, now_ns=now_ns)
        stream.receiver.observe_head(head.next, now_ns=now_ns)
        self.drain(stream)
        return True

    def drain(self, stream: Stream) -> None:
        """Deliver what is in order, and note whether gaps remain."""
        receiver, deliver = stream.receiver, self._deliver
        while (output := receiver.next_output()) is not None:
            deliver(stream, output)
        if receiver.missing or not receiver.started:
            if self.gaps.note(stream):
                stream.peer.gaps += 1
        elif self.gaps.discard(stream):
            stream.peer.gaps -= 1
            self.record_ages(stream)
            for route in stream.peer.routes:  # nothing of it is missing
                route.refused.pop(stream.topic, None)

    def record_ages(self, stream: Stream) -> None:
        """Note how old gaps of a stream were when they were repaired."""
        for age_ns in stream.receiver.drain_repair_ages():
            self.repair_latency.record(age_ns)

    def rewind(self, peer: Session, back: WentBack, now_ns: int) -> None:
        """End a stream whose publisher has gone back; begin it where the new incarnation did."""
        topic, had, began, following = back
        stream, cursor = peer.streams.get(topic) or self.add(peer, topic), self._cursor
        receiver = stream.receiver
        has_begun = receiver.started
        if not has_begun:  # what the publisher's former incarnation sent before its echo
            limit = None if peer.group is None else following + stream.jump_max
            resumed = None if cursor is None else cursor.start_of(peer.session, topic, 0)
            first = max(began, receiver.first_known, resumed or 0)
            receiver.start_at(first, now_ns=now_ns, head_max=limit)
        receiver.observe_head(had, now_ns=now_ns)  # it may have been taken back since
        head = receiver.head
        receiver.give_up(LossReason.REWOUND)
        self.drain(stream)
        if self._by_line is not None:
            self._by_line.forget(stream)
        peer.former.append(stream)
        if len(peer.former) > FORMER_MAX:
            self.forgotten.update(peer.former.pop(0).totals())
            self.count -= 1
        new = self.add(peer, topic)
        new.repairs.history = following  # in a multicast, a log has it
        if cursor is not None:
            cursor.rewind(peer, topic, began)
        self.rewound += 1
        self._deliver(new, Rewound(began, head, LossReason.REWOUND))
        if has_begun:  # else its echo says where it begins
            new.receiver.start_at(began, now_ns=now_ns)
        self.drain(new)

    def forget(self, peer: Session) -> None:
        """Forget the streams of a session; what they counted stays counted."""
        self.count -= len(peer.streams) + len(peer.former)
        for stream in (*peer.former, *peer.streams.values()):
            self.gaps.discard(stream)
            if self._by_line is not None:
                self._by_line.forget(stream)
            self.forgotten.update(stream.totals())
