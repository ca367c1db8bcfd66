"""The exit: what is taken, put back and folded, and that all counts agree after each step."""

import gc
import sys
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import p2pmsg
from p2pmsg.message import Message
from p2pmsg.subscriber import conflation
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.ready import ReadyQueue
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.wire import Frame
from recovery import Delivery, Loss, LossReason, ReceiverConfig, Rewound
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.interrupts import interrupt_at
from tests.unit.p2pmsg.subscriber_talk import session

PACKAGE = str(Path(p2pmsg.__file__).parent)


class Exit:
    """A queue and one stream of it, with a receiver that hands frames on."""

    def __init__(self, policy="wait", start=0):
        self.invalid = Counter()
        self.queue = ReadyQueue(GapPolicy(policy), self.invalid)
        self.stream = Stream(session(), "t", ReceiverConfig(), Random(1), None)
        self.stream.receiver.start_at(start, now_ns=0)
        self.following = start

    def frame(self, size, keys=None):
        first = self.following
        self.following += size
        columns = (None, keys, None)
        values = list(range(first, first + size))
        return frames.data(values, topic="t", sequence=first, columns=columns)

    def add(self, *sizes, keys=None):
        for size in sizes:
            frame = Frame(self.frame(size, keys))
            assert self.stream.receiver.accept(frame.sequence, size)
            self.queue.append_frame(self.stream, frame)

    def lose(self, size):
        receiver, first = self.stream.receiver, self.following
        self.following += size
        receiver.observe_head(self.following, now_ns=0)
        receiver.give_up(LossReason.TIMEOUT)
        self.queue.append(self.stream, receiver.next_output())
        assert first + size == receiver.head

    def take(self, count_max=2**32, **options):
        """Return the sequences taken, or (start, stop) of a loss; None where nothing is ready."""
        taken = self.queue.take(count_max, **options)
        if taken is None:
            return None
        _, loss, _, _, messages = taken
        return [m.sequence for m in messages] if loss is None else (loss.start, loss.stop)

    def check(self, delivered, position):
        """All messages are somewhere once, and what is held is what is in the queue."""
        waiting = sum(o.count for _, o in self.queue if isinstance(o, Delivery))
        ledger = self.stream.ledger(waiting)
        assert ledger.balanced, ledger
        assert ledger.delivered == delivered
        assert self.stream.position == position
        assert self.stream.delivered_count == self.stream.receiver.handed - waiting
        held = self.queue.bytes_held
        self.queue.recount()
        assert held == self.queue.bytes_held
        assert held > 0 if waiting else held == 0


def test_a_publisher_that_went_back_moves_no_position():
    one = Exit(start=7)
    one.queue.append(one.stream, Rewound(3, 7, LossReason.REWOUND))
    assert one.take() == (3, 7)
    assert one.stream.position == 7


@pytest.mark.parametrize("policy", ["wait", "latest"])
def test_a_malformed_frame_is_counted_and_taken_as_a_loss(policy):
    one = Exit(policy)
    one.add(1)
    bad = Frame(frames.header(sequence=1, count=1, body=b"\x94\x91\xc1\xc0\xc0\xc0"))
    one.stream.receiver.accept(1, 1)
    one.following = 2
    one.queue.append_frame(one.stream, bad)
    one.add(1)
    assert [one.take(), one.take(), one.take()] == [[0], (1, 2), [2]]
    one.check(2, 3)
    assert sum(one.invalid.values()) == 1


class Several(Exit):
    """A queue with several streams, one value of each that is added."""

    def __init__(self, *topics, policy="latest"):
        super().__init__(policy)
        self.streams = {
            topic: Stream(session(), topic, ReceiverConfig(), Random(1), None) for topic in topics
        }
        self.sequences = dict.fromkeys(topics, 0)
        for stream in self.streams.values():
            stream.receiver.start_at(0, now_ns=0)

    def add(self, topic, *keys):
        stream, first = self.streams[topic], self.sequences[topic]
        self.sequences[topic] += len(keys)
        columns = (None, list(keys), None)
        values = list(range(first, first + len(keys)))
        frame = Frame(frames.data(values, topic=topic, sequence=first, columns=columns))
        assert stream.receiver.accept(first, len(keys))
        self.queue.append_frame(stream, frame)

    def take(self, now_ns):
        """Return the topic and the keys of what comes next: a message, as `receive` does."""
        self.queue.next_turn(now_ns)
        first = self.queue.entries[0][0]
        stream, loss, _, _, messages = self.queue.take(1, now_ns=now_ns)
        assert (stream, loss) == (first, None)
        return stream.topic, *[(message.key, message.value) for message in messages]


def test_a_stream_that_changes_all_the_time_keeps_no_other_waiting():
    several = Several("book", "trades")
    found = []
    for now_ms in range(0, 40, 2):
        several.add("book", "a", "b", "c")
        several.add("trades", None)
        found.append(several.take(now_ms * 10**6)[0])
    assert found == ["book", "trades"] * 10


def test_taking_one_looks_at_no_other_stream():
    """It looked through all that was ready: with 12,000 topics, 120 messages a second."""
    steps = {}
    for count_of_others in (10, 2000):
        several = Several("t", *[f"other {number}" for number in range(count_of_others)])
        several.add("t", "a", "b")
        for topic in several.streams:
            several.add(topic, "a")
        steps[count_of_others] = 0
        gc.disable()  # Hypothesis is called at each collection
        sys.setprofile(partial(count_calls, steps, count_of_others))
        several.queue.next_turn(0)
        several.queue.take()
        sys.setprofile(None)
        gc.enable()
    assert steps[2000] == steps[10] > 10


def count_calls(steps, which, frame, event, argument):
    steps[which] += event in ("call", "c_call")


FOLDS = st.one_of(
    st.tuples(st.just("add"), st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6)),
    st.tuples(st.just("add"), st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6)),
    st.tuples(st.sampled_from(("lose", "put back")), st.integers(1, 3)),
    st.tuples(st.just("take"), st.integers(1, 5)),
    st.tuples(st.sampled_from(("fold", "interrupt")), st.integers(0, 60)),
)


@pytest.mark.parametrize("part", [1, 2, 5, 8192])
@settings(max_examples=300)
@given(steps=st.lists(FOLDS, max_size=30), now_ns=st.sampled_from((0, 10**9)))
def test_in_any_order_of_calls_the_newest_message_of_each_key_comes_once(part, steps, now_ns):
    """What did not come was followed by one of its key, with no loss in between, that did."""
    one, got, keys, epochs, epoch = Exit("latest"), [], [], [], 0
    with mock.patch.object(conflation, "PART", part):
        for what, value in steps:
            if what == "add":
                one.add(len(value), keys=value)
                keys += value
                epochs += [epoch] * len(value)
            elif what == "lose":
                epoch += 1
                one.lose(value)
                keys += [None] * value
                epochs += [epoch] * value
            elif what == "fold":
                one.queue.fold_all()
            elif what == "interrupt":
                interrupt_at(value, one.queue.fold_all, is_ours, "call")
                if one.queue:
                    interrupt_at(value, partial(one.queue.fold, one.stream), is_ours, "call")
            else:
                taken = one.queue.take(value, now_ns=now_ns)
                if taken is None or taken[1] is not None:
                    continue
                batch = taken[2] if taken[2] is not None else conflation.batch_of(*taken[4])
                if what == "put back":
                    left = min(value, len(batch))
                    one.queue.put_back(one.stream, batch, left)
                    batch = batch[: len(batch) - left]
                got += [message.sequence for message in batch]
            one.check(one.stream.delivered_count - one.stream.conflated, one.stream.position)
        while (taken := one.take()) is not None:
            got += taken if isinstance(taken, list) else []
    assert got == sorted(set(got))
    known = enumerate(zip(keys, epochs, strict=True))
    last = {(key, epoch): sequence for sequence, (key, epoch) in known if key is not None}
    assert set(got) >= set(last.values())
    assert len(got) + one.stream.conflated == sum(key is not None for key in keys)
    one.check(len(got), one.following)


STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 4)),
    st.tuples(st.just("lose"), st.integers(1, 3)),
    st.tuples(st.just("take"), st.integers(1, 5)),
    st.tuples(st.just("fast"), st.integers(1, 3)),
    st.tuples(st.just("put back"), st.integers(1, 3)),
)


@given(st.lists(STEPS, max_size=20))
def test_in_any_order_of_calls_each_message_comes_once_and_in_order(steps):
    one, delivered, got, expected = Exit(), 0, [], []
    for what, size in steps:
        if what in ("add", "lose"):
            expected += range(one.following, one.following + size) if what == "add" else []
            getattr(one, what)(size)
            continue
        if what == "fast":
            frame, first = one.frame(size), one.following - size
            batch = one.queue.take_frame(one.stream, frame, size)
            batch = [batch] if isinstance(batch, Message) else batch
            if batch is None:
                one.following = first
            else:
                expected += range(first, first + size)
        else:
            taken = one.queue.take(size)
            batch = None if taken is None or taken[1] is not None else taken[2] or list(taken[4])
        if not batch:
            continue
        if what == "put back" and not isinstance(batch, list):
            left = min(size, len(batch))
            one.queue.put_back(one.stream, batch, left)
            batch = batch[: len(batch) - left]
        got += [message.sequence for message in batch]
        delivered = len(got)
        assert one.stream.delivered_count == delivered
    while (taken := one.take()) is not None:
        got += taken if isinstance(taken, list) else []
    assert got == expected
    one.check(len(got), one.following)


def is_ours(code):
    return code.co_filename.startswith(PACKAGE) and code.co_name != "<genexpr>"


def before():
    one = Exit()
    one.add(3, 2)
    return one


def taken_before():
    one = before()
    one.taken = one.queue.take()
    return one


def conflated_before():
    one = Exit("latest")
    one.add(3, keys=["a", "b", "c"])
    one.queue.fold(one.stream)
    return one


def conflated_and_lost_before():
    one = conflated_before()
    one.lose(2)
    return one


def conflated_taken_before(then=0):
    one = Exit("latest")
    one.add(3, keys=["a", "b", "c"])
    one.taken = one.queue.take()
    if then:
        one.add(then)
    return one


def put_back(one):
    one.queue.put_back(one.stream, one.taken[2], 2)


CALLS = {
    "take": (before, lambda one: one.queue.take()),
    "take a part": (before, lambda one: one.queue.take(2)),
    "put back": (taken_before, put_back),
    "take conflated": (conflated_before, lambda one: one.queue.take()),
    "take a part of conflated": (conflated_before, lambda one: one.queue.take(2)),
    "take what is followed by a loss": (conflated_and_lost_before, lambda one: one.queue.take()),
    "put back conflated": (conflated_taken_before, put_back),
    "put back to newer": (partial(conflated_taken_before, 1), put_back),
}


@pytest.mark.parametrize("event", ["signal", "call"])
@pytest.mark.parametrize("what", CALLS)
def test_an_exception_comes_before_all_of_it_or_after_all_of_it(what, event):
    start, call = CALLS[what]
    done = start()
    call(done)
    ends = [state(start()), state(done)]
    for step in count():
        one = start()
        if interrupt_at(step, partial(call, one), is_ours, event) is None:
            break
        assert state(one) in (ends if what.startswith("put back") else ends[:1]), step
    assert step > 1


def state(one):
    entries = [(o.start if isinstance(o, Loss) else o.sequence, o.count) for _, o in one.queue]
    return entries, one.stream.position, one.stream.delivered_count, one.queue.bytes_held


def test_all_streams_are_folded_in_one_pass_and_what_is_malformed_is_lost_in_its_place():
    one = Exit("latest")
    other = Stream(session(), "u", ReceiverConfig(), Random(2), None)
    other.receiver.start_at(0, now_ns=0)
    for first in (0, 2):
        one.add(2)
        assert other.receiver.accept(first, 2)
        body = frames.data([first, first + 1], topic="u", sequence=first)
        one.queue.append_frame(other, Frame(body[:-1] + b"\xc1" if first else body))
    assert one.queue.unfolded == 8
    one.queue.fold_all()
    assert one.queue.unfolded == 0
    found = []
    while (taken := one.queue.take()) is not None:
        stream, loss, _, _, messages = taken
        found += [(stream.topic, m.value) for m in messages] or [(loss.start, loss.stop)]
    assert found == [("t", 3), ("u", 1), (2, 4)]
    assert sum(one.invalid.values()) == 1
    one.check(1, 4)
