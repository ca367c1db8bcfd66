"""Frames for the tests: valid ones of every kind, and what a header looks like by hand."""

import struct

from p2pmsg import control, wire
from p2pmsg.wire import Kind

SESSION = 0x0102030405060708


def data(values, *, topic="t", session=SESSION, sequence=0, base_ns=1000, columns=(None,) * 3):
    """A DATA frame, packed by hand from columns."""
    body = wire.encoder.encode([values, *columns])
    return header(
        topic=topic.encode(), session=session, sequence=sequence, count=len(values),
        base_ns=base_ns, body=body,
    )  # fmt: skip


def header(
    *,
    topic=b"t",
    magic=b"p2",
    version=1,
    kind=1,
    flags=0,
    compression=0,
    session=SESSION,
    sequence=0,
    count=1,
    length=None,
    base_ns=0,
    body=b"\x94\x91\x01\xc0\xc0\xc0",
):
    """A frame made field by field, right or wrong."""
    fixed = struct.pack(
        ">2sBBBBQQIIq", magic, version, kind, flags, compression, session, sequence, count,
        len(body) if length is None else length, base_ns,
    )  # fmt: skip
    return topic + b"\0" + fixed + body


def welcome(
    session=SESSION, *, name="feed", recovery="memory://r", stall_ms=1000.0, flags=0, incarnation=0
):
    body = control.Welcome(name, recovery, stall_ms, incarnation=incarnation)
    return wire.control_frame(Kind.WELCOME, session, body, flags=flags)


def heartbeat(following, *, earliest=0, topic="t", session=SESSION, incarnation=0):
    return wire.control_frame(
        Kind.HEARTBEAT,
        session,
        control.Heartbeat(earliest, incarnation=incarnation),
        sequence=following,
        topic=topic.encode(),
    )


def echo(probe, *heads, name="feed", incarnation=0):
    return wire.control_frame(
        Kind.ECHO, probe, control.Heads(name, list(heads), incarnation=incarnation)
    )


def nack(*ranges, topic="t", session=SESSION):
    return wire.control_frame(Kind.NACK, session, control.Nack(topic, list(ranges)))


def refused(*ranges, reason="evicted", topic="t", session=SESSION):
    body = control.Refused(topic, list(ranges), reason)
    return wire.control_frame(Kind.REFUSED, session, body)


def probe(number=7, topics=("*",), start="latest", position=0, *, session=SESSION):
    body = control.Probe(number, list(topics), start, position)
    return wire.control_frame(Kind.PROBE, session, body)


def joined(subscriber=1, name="s", *, complete=False, session=SESSION):
    body = control.Joined(subscriber, name, complete)
    return wire.control_frame(Kind.JOINED, session, body)


VALID = {
    "data": data([b"a", "b", {"c": [1, None, 2.5]}]),
    "data with columns": data(
        [b"a", b"b"], columns=([0, -5], ["k", None], [None, {"h": 1}]), sequence=9
    ),
    "heartbeat": heartbeat(4, earliest=2),
    "welcome": welcome(),
    "echo": echo(7, control.Head("t", 0, 5, 3)),
    "nack": nack((0, 3), (5, 9)),
    "refused": refused((0, 3)),
    "probe": probe(),
    "joined": joined(),
    "heads request": wire.control_frame(Kind.HEADS_REQUEST, SESSION, sequence=3),
    "leave": wire.control_frame(Kind.LEAVE, SESSION, control.Joined(1, "s")),
    "settled": wire.control_frame(Kind.SETTLED, SESSION, control.Settled("t", 3)),
}
"""One valid frame of every kind."""
