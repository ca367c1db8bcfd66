"""What a kept batch has accepted can be put together from its slot at any moment."""

import mmap
import struct
from functools import partial

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmsg import wire
from p2pmsg.errors import MessageError
from p2pmsg.frames import decode_frame
from p2pmsg.publisher import batch as batch_module
from p2pmsg.publisher import tail_frames
from p2pmsg.publisher.batch import Batch
from p2pmsg.publisher.tail_frames import ends_of_values, frame_of
from recovery.log import MemoryStore, Tail, TailContent, TailSlot
from tests.unit.p2pmsg.interrupts import interrupt_at

TOPIC, SESSION = "é/t", 2**63 + 5
PREFIX = wire.stream_prefix(TOPIC, SESSION)
SLOT = 8192
INSIDE = (batch_module.__file__, tail_frames.__file__)


def slot_of(slot_bytes=SLOT):
    return Tail(MemoryStore(), slot_bytes).take()


def batch_of(slot, first=7, base_ns=10**18):
    batch = Batch(PREFIX, first, base_ns, 0, slot.bytes_max, bytearray(), slot=slot)
    slot.begin(SESSION, TOPIC.encode(), first, base_ns, batch.end)
    return batch


def add(batch, value, key=None, timestamp_ns=None, headers=None):
    """Accept a message, as the core does; False where there is no space."""
    return batch.put(value, key, timestamp_ns, headers, bytes_max=2**31) >= 0


def left_by_a_kill(slot):
    """Return the messages that the next process finds, from a copy of the memory as it is."""
    copy = mmap.mmap(-1, len(slot.memory))
    copy[:] = slot.memory[:]
    content = TailContent(TailSlot(slot.number, copy))
    made = frame_of(content)
    if made is None:
        return content, [], None
    frame, count, latest = made
    messages = list(decode_frame(frame))
    assert len(messages) == count
    return content, messages, latest


@pytest.mark.parametrize("event", ["line", "signal"])
@pytest.mark.parametrize("what", ["seal", "add", "add beyond the slot", "repair"])
def test_an_interrupt_at_any_place_leaves_what_was_accepted_once(what, event):
    actions = {
        "seal": lambda batch: batch.seal(),
        "add": lambda batch: add(batch, "this", key="k"),
        "add beyond the slot": lambda batch: add(batch, bytes(2 * SLOT)),
        "repair": lambda batch: batch.repair(),
    }
    step, struck = 0, True
    while struck:
        batch = batch_of(slot_of())
        for value in ("a", "b"):
            add(batch, value, key=value)
        struck = interrupt_at(
            step, partial(actions[what], batch), lambda code: code.co_filename in INSIDE, event
        )
        batch.repair()  # as the shell does
        accepted = batch.count
        again = bytes(batch.seal()[0])
        messages = [(m.value, m.key) for m in decode_frame(again)]
        assert messages[:2] == [("a", "a"), ("b", "b")], struck
        assert len(messages) == accepted, struck
        assert bytes(batch.seal()[0]) == again, struck
        step += 1
    assert step > 2


def test_columns_beyond_the_slot_are_refused():
    batch = batch_of(slot := slot_of())
    assert add(batch, 1, headers={"h": bytes(SLOT - 100)})
    assert not add(batch, 2, headers={"h": bytes(100)})

    assert [message.value for message in left_by_a_kill(slot)[1]] == [1]


def test_a_refused_value_beyond_the_slot_takes_none_along():
    batch = batch_of(slot := slot_of())
    add(batch, 1, key="k")
    for number in (2, 3):
        with pytest.raises(MessageError):
            batch.put(bytes(2 * SLOT), "k", None, {}, bytes_max=SLOT)
        assert batch.put(number, None, None, None) >= 0

    assert [message.value for message in left_by_a_kill(slot)[1]] == [1, 2, 3]
    for _ in range(2):  # the log may not take the frame at once
        assert [m.value for m in decode_frame(bytes(batch.seal()[0]))] == [1, 2, 3]


def test_a_refused_column_leaves_the_batch_as_it_was():
    batch = batch_of(slot := slot_of())
    add(batch, 1)
    refused = [(5, None, None), ("k", 2**80, None), (None, None, {1: 2}), (None, -(2**62), None)]
    for columns in refused:
        with pytest.raises(MessageError):
            batch.put(2, *columns)
    add(batch, 3)

    assert [(m.value, m.key, m.headers) for m in left_by_a_kill(slot)[1]] == [
        (1, None, None),
        (3, None, None),
    ]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(max_size=40) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20)
    | st.dictionaries(st.text(max_size=5), inner, max_size=20),
    max_leaves=20,
)  # fmt: skip
TIMES = st.none() | st.integers(10**18 - 10**9, 10**18 + 10**9)
KEYS = st.none() | st.text(max_size=10)
HEADERS = st.none() | st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=3)
MESSAGES = st.tuples(VALUES, KEYS, TIMES, HEADERS)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(MESSAGES, st.booleans()), max_size=20))
def test_at_any_moment_what_was_accepted_is_left(steps):
    batch = batch_of(slot := slot_of(64 * 1024))
    wanted = []
    for (value, key, timestamp_ns, headers), is_repaired in steps:
        if is_repaired:  # it is refused, with its columns
            with pytest.raises(MessageError):
                batch.put(value, key, timestamp_ns, headers, bytes_max=0)
        assert add(batch, value, key, timestamp_ns, headers)
        wanted.append((value, key, 10**18 if timestamp_ns is None else timestamp_ns, headers))

        _, messages, latest = left_by_a_kill(slot)
        assert [(m.value, m.key, m.timestamp_ns, m.headers) for m in messages] == wanted
        assert latest >= max(time_ns for _, _, time_ns, _ in wanted)
    if steps:
        messages = decode_frame(bytes(batch.seal()[0]))
        assert [(m.value, m.key, m.timestamp_ns, m.headers) for m in messages] == wanted


@given(st.lists(VALUES, max_size=10))
def test_the_ends_of_values_are_where_another_library_put_them(values):
    ends, data = [], b""
    for value in values:
        data += msgpack.packb(value)
        ends.append(len(data))

    assert ends_of_values(data) == ends


@given(st.binary(min_size=1, max_size=60))
def test_no_bytes_at_all_do_anything_but_raise(data):
    try:
        ends = ends_of_values(data)
    except ValueError:
        return
    assert ends[-1] == len(data)
    assert ends == sorted(ends)


@pytest.mark.parametrize("at", range(7))
@pytest.mark.parametrize("number", [0, 2**64 - 1, 2**40])
def test_a_damaged_slot_is_reported_and_read_by_nobody(at, number):
    batch = batch_of(slot := slot_of())
    add(batch, 1, key="k")
    struct.pack_into("=Q", slot.memory, len(slot.memory) - 4096 + 8 * at, number)
    try:
        content = TailContent(TailSlot(0, slot.memory))
        frame_of(content)
    except ValueError as error:
        assert "damaged" in str(error) or "message" in str(error) or "values" in str(error)
