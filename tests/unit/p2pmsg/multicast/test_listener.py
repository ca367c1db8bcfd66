"""What an onlooker makes of the datagrams that come by."""

from p2pmsg import wire
from p2pmsg.control import Heartbeat, Welcome
from p2pmsg.mold import codec
from p2pmsg.multicast import datagram
from p2pmsg.multicast.listener import Listener
from p2pmsg.publisher.batch import pack_slice

HERE = ("10.0.0.1", 4000)
SESSION = 0xABCD


def data(sequence, count, topic="t"):
    prefix = wire.stream_prefix(topic, SESSION)
    return pack_slice(prefix, sequence, 0, [b"x"] * count, None, None, bytearray())[0]


def give(listener, frame):
    sealed = datagram.with_checksum(frame)
    listener.receive(memoryview(sealed), len(sealed), HERE)


def test_streams_are_distinguished_and_counted():
    listener = Listener()
    give(listener, wire.control_frame(wire.Kind.WELCOME, SESSION, Welcome("feed", "tcp://h:1", 0)))
    give(listener, data(10, 5))
    give(listener, data(15, 5))
    give(listener, data(0, 1, "u"))
    view = listener.streams[f"{SESSION:016x}", "t"]
    assert (view.publisher, view.address) == ("feed", "10.0.0.1:4000")
    assert (view.messages, view.next, view.missing_count) == (10, 20, 0)
    assert len(listener.streams) == 2


def test_what_does_not_come_is_missing_until_it_is_repaired():
    listener = Listener()
    give(listener, data(0, 5))
    give(listener, data(10, 5))
    beat = wire.control_frame(wire.Kind.HEARTBEAT, SESSION, Heartbeat(0), sequence=20, topic=b"t")
    give(listener, beat)
    (view,) = listener.streams.values()
    assert list(view.missing) == [(5, 10), (15, 20)]
    give(listener, datagram.with_flags(data(5, 5), add=wire.FLAG_RETRANSMISSION))
    assert (view.missing_count, view.repairs, view.messages) == (5, 1, 10)
    give(listener, data(0, 5))
    assert view.duplicates == 5


def test_garbage_is_counted():
    listener = Listener()
    for size in (0, 10, 100):
        listener.receive(memoryview(bytes(size)), size or 1, HERE)
    assert listener.invalid == {"truncated": 2, "crc": 1}
    assert not listener.streams


def test_streams_are_bounded(monkeypatch):
    monkeypatch.setattr("p2pmsg.multicast.listener.STREAMS_MAX", 3)
    listener = Listener()
    for index in range(5):
        give(listener, data(0, 1, f"t{index}"))
    assert len(listener.streams) == 3


def test_a_mold_feed_is_one_stream_a_session():
    listener = Listener(mold=True)
    for packet in (
        codec.packet(b"S1        ", 1, [b"a", b"b"]),
        codec.packet(b"S1        ", 5, [b"e"]),
        codec.heartbeat(b"S1        ", 8),
    ):
        listener.receive(memoryview(packet), len(packet), HERE)
    (view,) = listener.streams.values()
    assert (view.session, view.messages, view.next, view.missing_count) == ("S1", 3, 8, 4)
