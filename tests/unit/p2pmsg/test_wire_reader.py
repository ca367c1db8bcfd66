"""A reader written after design.md alone, with another msgpack: any language can read a frame."""

import struct

import msgpack
import pytest

from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.core import PublisherCore

WALL_NS = 1_700_000_000 * 10**9


def read(frame):
    """Topic, zero byte, 38 bytes of header, one msgpack array of four columns."""
    topic, _, rest = frame.partition(b"\0")
    fields = struct.unpack(">2sBBBBQQIIq", rest[:38])
    magic, version, kind, flags, compression, session, sequence, count, length, base_ns = fields
    body = rest[38:]
    assert (magic, version, kind, flags, compression) == (b"p2", 1, 1, 0, 0)
    assert len(body) == length
    values, timestamps, keys, headers = msgpack.unpackb(body, strict_map_key=False)
    assert len(values) == count
    return [
        {
            "topic": topic.decode(),
            "session": session,
            "sequence": sequence + index,
            "value": value,
            "timestamp_ns": base_ns + (timestamps[index] if timestamps else 0),
            "key": keys[index] if keys else None,
            "headers": headers[index] if headers else None,
        }
        for index, value in enumerate(values)
    ]


def core():
    return PublisherCore(
        name="feed", session=99, recovery="memory://r", config=PublisherConfig(), now_ns=0
    )


def rows(publisher):
    publisher.flush(now_ns=10**9)
    return [row for frame in publisher.frames_to_send() for row in read(frame)]


MESSAGES = {
    "bytes": (b"abc", None, None, None),
    "large bytes": (bytes(50_000), None, None, None),
    "a dict": ({"symbol": "BTCUSDT", "price": 1.5, "size": [1, 2]}, None, None, None),
    "a key": ("x", "BTCUSDT", None, None),
    "a time": (1, None, WALL_NS - 5, None),
    "an early time": (1, None, -(10**18), None),
    "headers": (None, None, None, {"trace": b"\x00", "n": 2**64 - 1}),
    "all of them": ([1, None], "k", 7, {}),
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("place", ["alone", "first", "in the middle", "last"])
def test_a_message_can_be_read_by_others(message, place):
    publisher = core()
    before = {"alone": [], "first": [], "in the middle": [b"x"] * 3, "last": [b"x"]}[place]
    after = [b"y"] * 2 if place in ("first", "in the middle") else []
    now_ns = 10**9 if place == "alone" else 0
    if place != "alone":  # so that the stream is busy and gathers
        publisher.publish("t", b"w", None, None, None, now_ns=0, wall_ns=WALL_NS)
        before = [b"w", *before]
    for value in before[place != "alone" :]:
        publisher.publish("t", value, None, None, None, now_ns=now_ns, wall_ns=WALL_NS)
    publisher.publish("t", *message, now_ns=now_ns, wall_ns=WALL_NS)
    for value in after:
        publisher.publish("t", value, None, None, None, now_ns=now_ns, wall_ns=WALL_NS)

    read_rows = rows(publisher)
    value, key, timestamp_ns, headers = message

    assert [row["sequence"] for row in read_rows] == list(range(len(before) + 1 + len(after)))
    assert [row["value"] for row in read_rows] == [*before, value, *after]
    row = read_rows[len(before)]
    assert (row["topic"], row["session"]) == ("t", 99)
    assert (row["key"], row["headers"]) == (key, headers)
    assert row["timestamp_ns"] == (WALL_NS if timestamp_ns is None else timestamp_ns)
    for other in read_rows[: len(before)] + read_rows[len(before) + 1 :]:
        assert (other["key"], other["headers"], other["timestamp_ns"]) == (None, None, WALL_NS)


def test_many_messages_can_be_read_by_others():
    publisher = core()
    values = [{"n": n, "text": "é" * (n % 7)} for n in range(5000)]
    keys = [None if n % 3 else f"k{n}" for n in range(5000)]
    times = [WALL_NS + n * n - 40 * n for n in range(5000)]
    at = 0
    while at < len(values):
        at += publisher.publish_many(
            "t", values, keys, times, at, now_ns=0, wall_ns=WALL_NS, count=2000
        )

    read_rows = rows(publisher)

    assert [row["sequence"] for row in read_rows] == list(range(5000))
    assert [row["value"] for row in read_rows] == values
    assert [row["key"] for row in read_rows] == keys
    assert [row["timestamp_ns"] for row in read_rows] == times
