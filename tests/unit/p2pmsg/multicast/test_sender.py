"""A multicast publisher's part of the protocol, without a core."""

from random import Random

import pytest

from p2pmsg import control, wire
from p2pmsg.config import PublisherConfig
from p2pmsg.multicast import datagram
from p2pmsg.multicast.sender import MulticastSender
from p2pmsg.publisher.served import PublisherStream
from p2pmsg.wire import Frame, Kind, decode_columns
from recovery import ReplayBuffer
from tests.unit.p2pmsg.frames import SESSION
from tests.unit.p2pmsg.publisher.served import FakeServed, kept

DATAGRAM_BYTES = 400
SOURCE = ("10.0.0.1", 5)


def sender(*frames, head=None, frames_max=100):
    served = FakeServed(*frames, heads=head and {"t": head})
    replay = ReplayBuffer(frames_max=frames_max)
    for one in frames:
        count = one.stop - one.start
        replay.append("t", one.start, count, one.frame, now_ns=0, timestamp_ns_max=0)
    return MulticastSender(served, replay, PublisherConfig(), DATAGRAM_BYTES, Random(1))


def admitted(multicast, subscriber=7):
    """Return the token that a subscriber gets."""
    body = control.read_body(Frame(multicast.admit(subscriber, b"it")), control.Admitted)
    return body.token


def ask(multicast, *ranges, token, now_ns=0):
    nack = wire.control_frame(Kind.NACK, SESSION, control.Nack("t", list(ranges), 1, token=token))
    multicast.receive(datagram.with_checksum(nack), SOURCE, now_ns=now_ns)
    repairs = []
    while (repair := multicast.next_repair(now_ns=now_ns)) is not None:
        multicast.repair_sent(repair, now_ns=now_ns)
        repairs.append((repair.start, repair.stop))
    return repairs


def test_who_has_joined_is_repaired():
    multicast = sender(kept(0, 3), kept(3), kept(4))
    assert ask(multicast, (0, 4), token=admitted(multicast)) == [(0, 3), (3, 4)]
    assert (multicast.nacks, multicast.messages_repaired) == (1, 4)


@pytest.mark.parametrize("leaves", [False, True])
def test_who_has_not_joined_or_has_left_is_not_repaired(leaves):
    multicast = sender(kept(0, 3))
    token = admitted(multicast) if leaves else 99
    multicast.dismiss(7)
    assert ask(multicast, (0, 3), token=token) == []
    assert multicast.invalid == {"token": 1}


@pytest.mark.parametrize(("start", "stop", "repaired"), [(0, 3, []), (2, 4, [(3, 4)])])
def test_what_the_buffer_has_forgotten_is_not_answered(start, stop, repaired):
    multicast = sender(kept(0, 3), kept(3), kept(4), frames_max=2)
    assert ask(multicast, (start, stop), token=admitted(multicast)) == repaired


def test_what_is_not_known_to_be_published_is_not_answered():
    """Its frame is in the buffer, but not on the disk yet."""
    multicast = sender(kept(0, 3), kept(3), head=(0, 3))
    assert ask(multicast, (0, 4), token=admitted(multicast)) == [(0, 3)]


@pytest.mark.parametrize("keyed", [False, True])
def test_values_are_packed_into_frames_of_a_datagram_each(keyed):
    multicast = sender()
    stream = PublisherStream(FakeServed(), "t", b"t", 0)
    values = [bytes(20)] * 200
    keys = [f"k{number}" for number in range(200)] if keyed else None
    at, sizes = 0, []
    while at < len(values):
        rest = keys and keys[at:]
        made = multicast.pack(stream, at, values[at:], rest, None, wall_ns=1, buffer=bytearray())
        for start, count, data, _ in made:
            frame = Frame(data)
            assert (frame.sequence, frame.count, start) == (at, count, at)
            part_keys = None if keys is None else keys[at : at + count]
            assert decode_columns(frame)[::2] == (values[at : at + count], part_keys)
            sizes.append(len(data))
            at += count
    assert max(sizes) <= multicast.frame_bytes
    assert sizes[-2] > 0.9 * multicast.frame_bytes, "it learns how many fit"
