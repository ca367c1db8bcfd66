"""A subscriber written from `p2pmsg/PROTOCOL.md` alone, with pyzmq, struct and msgpack."""

import struct
import time

import msgpack
import pytest
import zmq

import p2pmsg

HEADER = struct.Struct("!2sBBBBQQIIq")
DATA, HEARTBEAT, WELCOME, PROBE, ECHO = 1, 2, 16, 17, 18
JOINED, NACK, REFUSED, LEAVE = 19, 20, 21, 24
LATE_S = 60.0


def frame(kind, session, body, sequence=0):
    packed = msgpack.packb(body)
    return b"\0" + HEADER.pack(b"p2", 1, kind, 0, 0, session, sequence, 0, len(packed), 0) + packed


def parse(data):
    topic, _, rest = data.partition(b"\0")
    magic, version, kind, _, _, session, sequence, count, length, base = HEADER.unpack_from(rest)
    assert (magic, version, length) == (b"p2", 1, len(rest) - HEADER.size)
    body = msgpack.unpackb(rest[HEADER.size :]) if length else None
    return topic.decode(), kind, session, sequence, count, base, body


def control_prefix(kind):
    return b"\0p2\x01" + bytes((kind,))


class Stranger:
    """A subscriber in another language, so to speak."""

    def __init__(self, endpoint, topic):
        self.context = zmq.Context()
        self.data = self.context.socket(zmq.SUB)
        self.data.subscribe(topic.encode() + b"\0")
        self.data.subscribe(control_prefix(WELCOME))
        self.data.connect(endpoint)
        self.recovery = self.context.socket(zmq.DEALER)
        self.topic = topic
        self.values = {}
        self.next = 0

    def close(self):
        self.context.destroy(linger=500)

    def expect(self, socket, kind):
        """Return the next frame of a kind; DATA on the way is taken."""
        end = time.monotonic() + LATE_S
        while socket.poll(max(0, 1000 * (end - time.monotonic()))):
            found = parse(socket.recv())
            self.take(found)
            if found[1] == kind:
                return found
        raise AssertionError(f"no frame of kind {kind}")

    def take(self, found):
        _, kind, _, sequence, count, base, body = found
        if kind != DATA:
            return
        values, timestamps, keys, headers = body
        assert len(values) == count
        for at, value in enumerate(values):
            timestamp = base + (timestamps[at] if timestamps else 0)
            key = keys[at] if keys else None
            self.values[sequence + at] = (value, timestamp, key, headers[at] if headers else None)

    def join(self, start):
        _, _, self.session, _, _, _, (name, where, *_) = self.expect(self.data, WELCOME)
        self.recovery.connect(where)
        probe = 0x1122334455667788
        self.data.subscribe(control_prefix(ECHO) + b"\0\0" + probe.to_bytes(8, "big"))
        self.recovery.send(frame(PROBE, self.session, [probe, [self.topic], start]))
        heads = self.expect(self.data, ECHO)[6]
        self.recovery.send(frame(JOINED, self.session, [4711, "stranger"]))
        assert heads[0] == name == "feed"
        return {head[0]: head[1:] for head in heads[1]}

    def ask(self, start, stop):
        self.recovery.send(frame(NACK, self.session, [self.topic, [[start, stop]]]))


@pytest.fixture
def publisher():
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed") as publisher:
        yield publisher


@pytest.fixture
def connect():
    made = []

    def make(publisher):
        made.append(Stranger(publisher.endpoint, "prices"))
        return made[-1]

    yield make
    for stranger in made:
        stranger.close()


def test_a_subscriber_made_from_the_protocol_page_joins_repairs_and_leaves(publisher, connect):
    for number in range(100):
        publisher.publish(
            "prices", {"n": number}, "EUR", timestamp_ns=10**18 + number, headers={"h": number}
        )
    publisher.flush()
    stranger = connect(publisher)
    earliest, following, start = stranger.join("earliest")["prices"][:3]
    assert (earliest, following, start) == (0, 100, 0)
    assert not stranger.values
    stranger.ask(0, 100)
    end = time.monotonic() + LATE_S
    while len(stranger.values) < 100 and time.monotonic() < end:
        stranger.expect(stranger.recovery, DATA)
    assert stranger.values == {n: ({"n": n}, 10**18 + n, "EUR", {"h": n}) for n in range(100)}
    assert publisher.stats().subscribers == 1

    publisher.publish("prices", b"live")
    while 100 not in stranger.values:
        stranger.expect(stranger.data, DATA)
    assert stranger.values[100][0] == b"live"
    while (beat := stranger.expect(stranger.data, HEARTBEAT))[3] < 101:
        pass
    assert beat[0] == "prices"

    stranger.recovery.send(frame(LEAVE, stranger.session, [4711, "stranger"]))
    end = time.monotonic() + LATE_S
    while publisher.stats().subscribers and time.monotonic() < end:
        time.sleep(0.01)
    assert publisher.stats().subscribers == 0


def test_what_cannot_be_had_is_refused_with_its_range_and_reason(connect):
    config = p2pmsg.PublisherConfig(replay_bytes=4096)
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed", config=config) as publisher:
        for _ in range(100):
            publisher.publish("prices", bytes(1000))
            publisher.flush()
        stranger = connect(publisher)
        earliest = stranger.join("earliest")["prices"][0]
        stranger.ask(0, 100)
        topic, ranges, reason = stranger.expect(stranger.recovery, REFUSED)[6]
        stranger.recovery.send(frame(LEAVE, stranger.session, [4711, "stranger"]))
    assert 0 < earliest < 100
    assert (topic, ranges, reason) == ("prices", [[0, earliest]], "evicted")
