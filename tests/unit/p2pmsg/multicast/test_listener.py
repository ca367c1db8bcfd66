"""What an onlooker makes of the datagrams that come by."""

from p2pmsg import wire
from p2pmsg.control import Heartbeat
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
