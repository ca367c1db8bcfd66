"""Values become their types, and each that does not fit comes once, in its place."""

from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.errors import ConfigError, InvalidValueError
from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.typed import InvalidValue, ValueType, ValueTypes
from p2pmsg.wire import Frame
from recovery import Delivery
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.interrupts import interrupt_at
from tests.unit.p2pmsg.subscriber.test_fast_path import joined
from tests.unit.p2pmsg.subscriber.test_ready import Exit, is_ours, state


@dataclass
class Item:
    n: int


class Sifting(Exit):
    """A queue whose stream has a type; values at some sequences do not fit it."""

    def __init__(self, bad, policy="wait"):
        super().__init__(policy)
        self.stream.typed = ValueType(Item)
        self.bad, self.now_ns = set(bad), 0

    def frame(self, size, keys=None):
        first = self.following
        self.following += size
        values = [{"n": "x" if at in self.bad else at} for at in range(first, first + size)]
        return frames.data(values, topic="t", sequence=first, columns=(None, keys, None))

    def read(self, count_max=2**32, left=0):
        """Take what is next, put the last `left` back; return (sequence, fits) of the others."""
        self.now_ns += 10**9  # long enough that newer values are folded in
        taken = self.queue.take(count_max, now_ns=self.now_ns)
        if taken is None:
            return None
        stream, instead, batch, _, messages = taken
        if isinstance(instead, InvalidValue):
            assert isinstance(instead.error, InvalidValueError)
            assert (instead.error.path, instead.error.item.value) == ("$.n", {"n": "x"})
            assert instead.start == instead.error.item.sequence
            return [(instead.start, False)]
        assert instead is None
        found = list(messages)
        assert all(message.value == Item(message.sequence) for message in found)
        if 0 < left <= len(found):
            self.queue.put_back(stream, batch if batch is not None else found[0], left)
            found = found[: len(found) - left]
        return [(message.sequence, True) for message in found]

    def check_counts(self, seen, bad_seen):
        self.check(seen, self.stream.position)
        assert self.queue.values_invalid == bad_seen


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=5),
    st.sets(st.integers(0, 60)),
    st.data(),
)
def test_each_message_comes_once_as_its_type_or_as_invalid(sizes, bad, draw):
    one = Sifting(bad)
    one.add(*sizes)
    found, bad_seen = [], 0
    while one.queue:
        count_max = draw.draw(st.sampled_from([1, 2, 5, 2**32]))
        read = one.read(count_max, draw.draw(st.sampled_from([0, 0, 0, 1, 3])))
        assert len(read) <= count_max
        found += read
        bad_seen += sum(not fits for _, fits in read)
        one.check_counts(len(found), bad_seen)
        assert one.stream.position == len(found)
    assert found == [(at, at not in bad) for at in range(sum(sizes))]


def test_of_a_conflated_stream_the_newest_of_a_key_is_read_or_reported():
    one = Sifting({2, 5}, policy="latest")
    one.add(3, keys=["a", "b", "a"])
    one.add(4, keys=["b", "c", "c", "d"])  # newest: a 2 (bad), b 3, c 5 (bad), d 6

    assert one.read() == [(2, False)]
    one.check_counts(*(delivered(one), 1))
    one.add(1, keys=["d"])  # 7 takes the place of 6
    assert one.read() == [(3, True)]
    assert one.read() == [(5, False)]
    assert one.read() == [(7, True)]
    assert one.read() is None
    assert one.queue.values_invalid == 2
    assert one.stream.conflated == 4
    assert one.stream.ledger(0).balanced
    assert one.queue.bytes_held == 0


def delivered(one):
    waiting = sum(o.count for _, o in one.queue if isinstance(o, Delivery))
    return one.stream.ledger(waiting).delivered


def test_the_fast_path_decodes_or_leaves_the_frame():
    fast, stream = joined()
    stream.typed = ValueType(Item)
    good = frames.data([{"n": 5}], sequence=5)
    many = frames.data([{"n": 6}, {"n": 7}], sequence=6)
    bad = frames.data([{"n": 8}, {"n": None}], sequence=8)
    lone = frames.data([b"plain bytes"], sequence=8)

    taken = fast.core.take_frame(stream, good, 1, 7)
    assert isinstance(taken, Message)
    assert taken.value == Item(5)
    taken = fast.core.take_frame(stream, many, 5, 7)
    assert isinstance(taken, MessageBatch)
    assert taken.values == [Item(6), Item(7)]
    assert fast.core.take_frame(stream, bad, 5, 7) is None
    assert fast.core.take_frame(stream, lone, 1, 7) is None
    assert stream.delivered_to == 8


def test_what_a_type_of_the_user_s_raises_is_reported_as_invalid():
    @dataclass
    class Strange:
        n: int

        def __post_init__(self):
            if self.n:
                raise KeyError("strange")

    (found, *_), bad = ValueType(Strange).sift(Frame(frames.data([{"n": 0}, {"n": 1}, {"n": 0}])))
    assert bad
    assert (found[1].path, found[1].value) == ("$", {"n": 1})
    assert "strange" in found[1].reason


def test_types_go_by_topic_then_by_the_longest_prefix():
    types = ValueTypes(None, {"quotes.us": int, "quotes*": str, "q*": float}, "raise")
    assert types.of("trades") is None
    data = {"quotes.us": 1, "quotes.eu": "a", "q": 1.5}
    for topic, value in data.items():
        assert not types.of(topic).sift(Frame(frames.data([value])))[1]
    assert types.of("quotes.us").sift(Frame(frames.data(["a"])))[1]


class Unknown:
    pass


@pytest.mark.parametrize(
    ("arguments", "field", "limit"),
    [
        ((int, {"t": int}, "raise"), "types", "left out"),
        ((None, [int], "raise"), "types", "by topic"),
        ((None, {"": int}, "raise"), "types", "by topic"),
        ((None, {5: int}, "raise"), "types", "by topic"),
        ((int, None, "log"), "on_invalid", '"skip"'),
        ((Unknown, None, "raise"), "type", "Unknown"),
        ((None, {"t": list[Unknown]}, "raise"), "types", "Unknown"),
        (("Trade", None, "raise"), "type", "Trade"),
    ],
)  # fmt: skip
def test_what_is_no_type_is_refused(arguments, field, limit):
    with pytest.raises(ConfigError, match=limit) as caught:
        ValueTypes(*arguments)
    assert caught.value.field == field


@pytest.mark.parametrize("event", ["signal", "call"])
@pytest.mark.parametrize("taken_before", [0, 1], ids=["a run", "a bad one"])
def test_an_exception_comes_before_all_of_a_take_or_after_all_of_it(event, taken_before):
    def start():
        one = Sifting({2, 4})
        one.add(6, 3)
        for _ in range(taken_before):
            one.read()
        return one

    before = state(start())
    for step in count():
        one = start()
        invalid = one.queue.values_invalid
        if interrupt_at(step, one.queue.take, is_ours, event) is None:
            break
        assert (state(one), one.queue.values_invalid) == (before, invalid), step
    assert step > 1
    assert state(one) != before
