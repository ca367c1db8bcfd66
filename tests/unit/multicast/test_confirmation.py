"""What a subscriber believes of datagrams, and what it asks its publisher first."""

from p2pmsg import control, wire
from p2pmsg.control import Admitted, Head, Heads, Heartbeat
from p2pmsg.multicast import datagram
from p2pmsg.wire import Frame, Kind
from tests.unit.multicast.test_room import MS, SESSION, Member


def heartbeat(topic, following, earliest=0):
    body = Heartbeat(earliest)
    return wire.control_frame(
        Kind.HEARTBEAT, SESSION, body, sequence=following, topic=topic.encode()
    )


def questions(member):
    """Return the requests for heads that wait: (id, topics)."""
    found = [Frame(data) for _, data in member.core.requests]
    member.core.requests.clear()
    return [
        (frame.sequence, control.read_body(frame, control.Probe).topics)
        for frame in found
        if frame.kind == Kind.HEADS_REQUEST
    ]


def answer(member, request, *heads):
    frame = wire.control_frame(Kind.HEADS, SESSION, Heads("p", list(heads)), sequence=request)
    member.core.receive_reply(SESSION, frame, now_ns=member.now_ns)


def admit(member, token, life=1):
    frame = wire.control_frame(Kind.ADMITTED, SESSION, Admitted(token, life))
    member.core.receive_reply(SESSION, frame, now_ns=member.now_ns)


def test_a_head_beyond_what_can_be_is_asked_for_and_changes_nothing():
    member = Member()
    member.message(0)
    member.give(heartbeat("t", 2**62, 2**62))
    assert (member.stream.receiver.head, member.stream.receiver.lost) == (1, 0)
    ((request, topics),) = questions(member)
    assert topics == ["t"]
    answer(member, request, Head("t", 0, 1))
    assert member.core.member.confirmation.forged == 1
    member.message(1)
    assert member.stream.receiver.expected == 2


def test_the_earliest_of_a_datagram_loses_nothing():
    member = Member()
    member.message(0)
    member.give(heartbeat("t", 50, 50))
    assert (member.stream.receiver.lost, member.stream.receiver.missing) == (0, 49)


def test_nothing_is_lost_before_the_publisher_said_that_it_was_published():
    member = Member()
    member.message(0)
    member.give(heartbeat("t", 10))
    asked = []
    while not asked and member.now_ns < 5000 * MS:
        member.now_ns += 50 * MS
        member.core.handle_timer(now_ns=member.now_ns)
        asked = questions(member)
    assert (member.stream.receiver.lost, member.stream.receiver.missing) == (0, 9)
    ((request, _),) = asked
    answer(member, request, Head("t", 0, 1))
    assert (member.stream.receiver.head, member.stream.receiver.missing) == (1, 0)
    assert member.core.member.confirmation.retracted == 9
    member.give(heartbeat("t", 10))  # this stream's heartbeats are believed no more
    assert member.stream.receiver.head == 1


def test_what_nobody_denies_for_two_seconds_is_given_up_all_the_same():
    member = Member()
    member.message(0)
    member.give(heartbeat("t", 10))
    for _ in range(200):
        member.now_ns += 100 * MS
        member.core.handle_timer(now_ns=member.now_ns)
        member.core.requests.clear()
    assert (member.stream.receiver.lost, member.stream.receiver.missing) == (9, 0)


def test_a_stream_begins_when_its_publisher_knows_it_and_is_forgotten_when_not():
    member = Member()
    member.message(0)
    for topic in ("real", "forged"):
        member.give(heartbeat(topic, 3))
    peer = member.core.peers[SESSION]
    assert not peer.streams["real"].receiver.started
    for _ in range(3):
        for request, topics in questions(member):
            answer(member, request, *[Head("real", 0, 3)] * ("real" in topics))
        member.now_ns += 300 * MS
        member.core.handle_timer(now_ns=member.now_ns)
    assert set(peer.streams) == {"t", "real"}
    assert peer.streams["real"].receiver.missing == 3


def test_only_the_address_of_the_echo_counts():
    member = Member()
    member.message(0)
    forged = memoryview(datagram.seal(heartbeat("t", 10)))
    member.core.member.receive(0, forged, len(forged), ("10.6.6.6", 9), now_ns=member.now_ns)
    assert member.stream.receiver.head == 1
    assert dict(member.core.invalid) == {"source": 1}


def test_nacks_bear_the_token():
    member = Member()
    admit(member, 4711)
    member.message(0)
    member.message(5)
    member.now_ns = max(member.now_ns + 1, member.core.next_deadline_ns())
    member.core.handle_timer(now_ns=member.now_ns)
    frames = [Frame(datagram.open_datagram(data)) for _, _, data in member.core.member.outgoing]
    assert {control.read_body(frame, control.Nack).token for frame in frames} == {4711}
