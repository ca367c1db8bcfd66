"""The compiled functions make of messages what Python does: bytes, counts, errors."""

import enum
import inspect
import threading
from datetime import UTC, datetime
from decimal import Decimal
from mmap import PAGESIZE, mmap
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2pmsg import codec, wire
from p2pmsg.driver.section import Section
from p2pmsg.native import twin
from p2pmsg.peers.publisher import PublisherBase
from p2pmsg.publisher.batch import Batch, OpenBatches
from p2pmsg.publisher.packing import lone_frame
from recovery.log.tail import TailSlot
from tests.property.test_native import compiled, scalars

PUBLISH = inspect.unwrap(PublisherBase.publish)
FRAME_BYTES = 2 * PAGESIZE
NUMBERS = ("first", "next", "end", "limit", "beyond")


class Colour(enum.IntEnum):
    RED = 1


class Surprise:
    """Its dict loses a key while it is packed."""


def subclass_of(kind, *given):
    return type(kind.__name__, (kind,), {})(*given)


def changed_by(value):
    """What a program's `enc_hook` does to the value that is being packed."""
    if isinstance(value, Surprise):
        for each in CHANGING:
            each.pop("a", None)
        return 1
    raise TypeError(value)


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value] if levels % 2 else {"k": value}
    return value


ENDLESS = []
ENDLESS.append(ENDLESS)
CHANGING = []
SIZES = (0, 1, 15, 16, 31, 32, 255, 256, 1000, 4079, 4080, 4086, 4087, 4091, 4092, 4096, 5000)
HOSTILE = [
    "\ud800", {"\ud800": 1}, {"a": "\ud800"}, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1,
    float("nan"), float("-inf"), -0.0, Colour.RED, Decimal("1.5"), datetime(2026, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 1), (1, 2), {1}, frozenset(), object(), {1: 2}, {None: 1}, {b"a": 1},
    {(1, 2): 3}, {1.5: "x"}, bytearray(b"abc"), memoryview(b"abc"), memoryview(b"abcdef")[::2],
    subclass_of(str, "s"), subclass_of(int, 5), subclass_of(float, 1.5), subclass_of(bytes, b"b"),
    subclass_of(dict, {"a": 1}), subclass_of(list, [1]), {subclass_of(str, "s"): 1}, ENDLESS,
    codec.Ext(5, b"x"), codec.Raw(b"\x01"), [object()], {"a": [{"b": Decimal(1)}]},
    *map(nested, (30, 31, 32, 33, 34, 500, 501, 2000)),
]  # fmt: skip
hostile = st.integers(0, len(HOSTILE) - 1).map(lambda at: HOSTILE[at])
sized = st.builds(
    lambda make, size: make(size),
    st.sampled_from([
        bytes, "a".__mul__, "\u00e9".__mul__, "\U0001f600".__mul__, [7].__mul__,
        lambda size: dict.fromkeys(map(str, range(size))), lambda size: [bytes(size)],
    ]),
    st.sampled_from(SIZES),
)  # fmt: skip
surprises = st.just(None).map(lambda _: {"a": 1, "b": Surprise(), "c": 3})
published = st.recursive(
    scalars | st.text(max_size=8) | st.binary(max_size=40) | st.integers(-300, 300) | hostile,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner,
        max_size=4), max_leaves=6,
) | sized | surprises  # fmt: skip
topics = st.sampled_from(
    ["t"] * 8 + ["other", "none", subclass_of(str, "t"), "".join(["o", "ther"]), None, 5, b"t", []]
)
parts = st.sampled_from(
    [(None,) * 3] * 12 + [("k", None, None), ("\ud800", None, None), (None, 5, {"h": 1}), (3, 1, 2)]
)
messages = st.tuples(topics, published, parts)


class Face:
    """What `publish` needs, and what it has left to others."""

    publish = PUBLISH
    _peer = SimpleNamespace(needs_turn=False)

    def __init__(self, logged, hook):
        self._section, self._batches, self.left, self.calls = Section(bool), OpenBatches(), [], 0
        self._publish_alone = lambda *message: -1
        self._encode = codec.encoder.encode_into
        if hook:
            self._encode = codec.ExactEncoder(changed_by).encode_into
        self.logged = logged
        for topic in ("other", "t"):
            self.begin(topic, 250)

    def begin(self, topic, sequence):
        slot = TailSlot(0, mmap(-1, 3 * PAGESIZE)) if self.logged else None
        prefix = wire.stream_prefix(topic, 7)
        size = min(FRAME_BYTES, slot.bytes_max) if slot else FRAME_BYTES
        given = prefix, sequence, 10**18, 0, size, bytearray(), FRAME_BYTES, self._encode, slot
        batch = self._batches[topic] = Batch(*given)
        if slot:
            slot.begin(7, topic.encode(), sequence, 10**18, batch.end)

    def _publish(self, topic, *message):
        self.left.append((repr(topic), type(message[0]), repr(message[1:])))
        if type(topic) is str and (batch := self._batches.pop(topic, None)) is not None:
            self.left.append(bytes(batch.seal()[0]))
            self.begin(topic, batch.next)
        return -7

    def state(self):
        found = [*self.left, self._section.busy]
        for topic, batch in sorted(self._batches.items()):
            found += [topic, bytes(batch.buffer), *(getattr(batch, name) for name in NUMBERS)]
            found += [] if batch.slot is None else [bytes(batch.slot.memory)]
            found.append(batch.seal())
        return found


class CompiledFace(Face):
    publish = compiled.appending(PUBLISH)


def result(face, topic, value, others):
    CHANGING[:] = [value] if isinstance(value, dict) else []
    try:
        return face.publish(topic, value, *others)
    except Exception as error:
        return type(error), str(error)


def compare_appends(rounds):
    @settings(max_examples=rounds, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(messages, max_size=40), st.booleans(), st.booleans())
    def cases(some, logged, hook):
        faces = CompiledFace(logged, hook), Face(logged, hook)
        for topic, value, others in some:
            is_surprise = isinstance(value, dict) and any(
                isinstance(each, Surprise) for each in value.values()
            )
            one, other = (
                result(face, topic, dict(value) if is_surprise else value, others) for face in faces
            )
            assert one == other
        assert faces[0].state() == faces[1].state()

    cases()


PREFIX = wire.stream_prefix("t", 7)
numbers = st.tuples(
    st.sampled_from([0, 255, 2**32 + 1, 2**63 - 1]), st.sampled_from([0, -1, 10**18, -(2**63)])
)
keys = st.none() | st.text(max_size=5) | st.sampled_from(["\ud800", "k" * 300, "k" * 4070, b"k", 1])


def lone(module, numbers, value, key, bytes_max):
    """What becomes of a message that gets a frame of its own."""
    try:
        frame = module.pack_lone(PREFIX, *numbers, value, key, bytes_max)
        if frame is None:
            ready = codec.prepare(value, None)
            frame, _ = lone_frame(PREFIX, *numbers, ready, key, None, bytes_max)
        return frame
    except Exception as error:
        return type(error), str(error)


def compare_lone(rounds):
    @settings(max_examples=rounds, deadline=None, suppress_health_check=list(HealthCheck))
    @given(numbers, st.lists(published, max_size=20), keys, st.sampled_from([10, 300, 2**20]))
    def cases(numbers, some, key, bytes_max):
        for value in some:
            given = numbers, value, key, bytes_max
            assert lone(compiled, *given) == lone(twin, *given)

    cases()


def sealed(module, buffer, body_at, numbers, count, columns):
    frame = bytearray(buffer)
    frame.extend(bytes(max(0, body_at + 6 - len(frame))))
    module.seal_frame(frame, body_at, *numbers, count, columns)
    with memoryview(frame), pytest.raises(BufferError):
        module.seal_frame(frame, body_at, *numbers, count, columns)
    return frame


@pytest.mark.rounds(60, 25_000)
def test_batches_are_sealed_alike(rounds):
    buffers, columns = st.binary(max_size=300), st.binary(min_size=1, max_size=20)
    batches = st.tuples(buffers, st.integers(24, 100), numbers, st.integers(1, 2**32 - 1), columns)

    @settings(max_examples=rounds, deadline=None)
    @given(batches)
    def cases(given):
        assert sealed(compiled, *given) == sealed(twin, *given)

    cases()


@pytest.mark.rounds(60, 25_000)
def test_messages_are_appended_alike(rounds):
    compare_appends(rounds)


@pytest.mark.rounds(60, 25_000)
def test_lone_messages_are_packed_alike(rounds):
    compare_lone(rounds)


PLAIN = [
    b"", b"x" * 128, b"x" * 3000, "", "text", "\u00e9", 0, -1, 2**62, 1.5, float("nan"), None, True,
    False, [], {}, [1, "a", [None]], {"price": 1.5, "size": 3, "of": {"deep": [True]}},
]  # fmt: skip


@pytest.mark.parametrize("logged", [False, True], ids=["no log", "log"])
def test_common_messages_need_no_python(logged):
    """Else the comparison above would compare Python with itself."""
    face = CompiledFace(logged, hook=False)
    face._section.lock = None  # nobody takes it
    for number, value in enumerate(PLAIN):
        assert compiled.pack_lone(PREFIX, 1, 2, value, "key", 2**20) is not None
        for at, topic in enumerate(("t", "other")):
            face._batches[topic].limit = 2**30
            face._batches[topic].encode_into = None
            assert face.publish(topic, value) == 250 + number, at


def test_nothing_is_appended_while_somebody_is_inside():
    face = CompiledFace(False, False)
    inside, done = threading.Event(), threading.Event()
    batch, found = face._batches["t"], []

    def hold():
        inside.set()
        done.wait(60)
        found.append(batch.next)

    holder = threading.Thread(target=face._section.run, args=(hold,))
    holder.start()
    inside.wait(60)
    publisher = threading.Thread(target=face.publish, args=("t", 1))
    publisher.start()
    done.set()
    publisher.join()
    holder.join()
    assert found == [250]
    assert batch.next == 251


def test_nobody_appends_in_a_thread_that_must_not_enter():
    def refuse():
        raise RuntimeError("not here")

    face = CompiledFace(False, False)
    face._section = Section(bool, refuse)
    errors = []

    def publish():
        errors.append(result(face, "t", 1, ()))

    publisher = threading.Thread(target=publish)
    publisher.start()
    publisher.join()
    assert errors == [(RuntimeError, "not here")]
    assert face.publish("t", 1) == 250
    face._section.end(refuse)
    assert result(face, "t", 1, ()) == errors[0]
    assert face._batches["t"].next == 251
