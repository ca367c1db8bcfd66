"""What a receiver makes of datagrams, and asks a group for: what fits, and history elsewhere."""

from random import Random

import pytest

from p2pmsg import control, wire
from p2pmsg.config import SubscriberConfig
from p2pmsg.control import Head, Heads, Nack, Welcome
from p2pmsg.multicast import datagram
from p2pmsg.start import parse_start
from p2pmsg.subscriber.core import UNREAD_NS, SubscriberCore
from p2pmsg.wire import Frame, Kind
from tests.unit.p2pmsg import frames

MS = 1_000_000
SESSION = 77
SIZE = 1000
SPACE = 64 * 1024
SOURCE, ELSEWHERE = ("10.0.0.1", 9), ("10.6.6.6", 9)


class Member:
    """A receiver with little space that has joined a group's session, at sequence 0.

    Where it `joins` not, the echo is yet to come.
    """

    def __init__(self, receive_bytes=SPACE, start="earliest", *, joins=True, **options):
        self.now_ns = 1
        config = SubscriberConfig(receive_bytes=receive_bytes)
        self.core = SubscriberCore(
            topics=[], lines=1, start=parse_start(start), subscriber=1, name="", config=config,
            rng=Random(1), now_ns=0, datagram_lines=[0],
            **options,
        )  # fmt: skip
        self.give(wire.control_frame(Kind.WELCOME, SESSION, Welcome("p", "tcp://h:1", 1.0, 1)))
        probe = self.core.peers[SESSION].probe
        if joins:
            self.give(wire.control_frame(Kind.ECHO, probe, Heads("p", [Head("t", 0, 0)])))
            admitted = wire.control_frame(Kind.ADMITTED, SESSION, control.Admitted(4711))
            self.core.receive_reply(SESSION, admitted, now_ns=self.now_ns)
        self.core.requests.clear()

    @property
    def stream(self):
        (stream,) = self.core.streams
        return stream

    def give(self, *made):
        for frame in made:
            sealed = memoryview(datagram.with_checksum(frame))
            self.core.receive_datagrams(0, sealed, len(sealed), SOURCE, now_ns=self.now_ns)

    def message(self, sequence, *, repair=False):
        values = [b"x" * SIZE]
        made = frames.data(values, topic="t", session=SESSION, sequence=sequence)
        if repair:
            made = datagram.with_flags(made, add=wire.FLAG_RETRANSMISSION)
        self.give(made)

    def asked(self, unread=0):
        """Let the next deadline come; returns what was asked for by UDP, and over recovery."""
        self.now_ns = max(self.now_ns + 1, self.core.next_deadline_ns())
        self.core.handle_timer(now_ns=self.now_ns, unread=unread)
        near = [Frame(datagram.open_datagram(data)) for _, _, data in self.core.multicast.outgoing]
        far = [Frame(data) for _, data in self.core.requests]
        self.core.multicast.outgoing.clear()
        self.core.requests.clear()
        return tuple(
            [
                pair
                for frame in found
                if frame.kind == Kind.NACK
                for pair in control.read_body(frame, Nack).ranges
            ]
            for found in (near, far)
        )

    def read(self):
        while self.core.ready.take() is not None:
            pass


def test_no_more_is_asked_for_than_fits():
    member = Member()
    member.message(0)
    member.read()
    member.message(5000)
    near, far = member.asked()

    ((start, stop),) = near
    assert (start, far) == (1, [])
    assert stop - start <= SPACE // SIZE


def asked_by_udp(member, *, unread):
    member.core.handle_timer(now_ns=member.now_ns, unread=unread)
    found = [Frame(datagram.open_datagram(data)) for _, _, data in member.core.multicast.outgoing]
    member.core.multicast.outgoing.clear()
    return [pair for one in found for pair in control.read_body(one, Nack).ranges]


def with_backlog(missing):
    """Return one that misses so many, and for a second got more than it could read."""
    member = Member(receive_bytes=2**20)
    member.message(0)
    member.message(missing + 1)
    for step in range(10):  # it was not stopped
        member.message(missing + 2 + step)
        assert asked_by_udp(member, unread=2**20) == []
        member.now_ns += UNREAD_NS // 10
    return member


@pytest.mark.parametrize(("missing", "is_far"), [(4096, False), (4097, True)])
def test_with_a_backlog_who_misses_much_disturbs_nobody_with_it(missing, is_far):
    member = with_backlog(missing)
    near, far = member.asked(unread=1)
    assert far == ([(1, missing + 1)] if is_far else [])
    assert near == ([] if is_far else [(1, 1000)])


def test_a_space_full_of_what_is_far_ahead_is_used_for_what_comes_first():
    member = Member()
    for sequence in range(0, 20_000, 200):
        member.message(sequence)
    member.read()
    assert member.stream.receiver.bytes_held > SPACE - 2 * SIZE
    near, _ = member.asked()
    wanted = [sequence for start, stop in near for sequence in range(start, stop)]
    assert len(wanted) > SPACE // SIZE // 2
    for sequence in reversed(wanted):
        member.message(sequence, repair=True)
    member.read()

    assert member.stream.receiver.expected == wanted[-1] + 1
    assert member.core.bytes_held <= SPACE
