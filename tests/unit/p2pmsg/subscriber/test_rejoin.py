"""What a subscriber of a group asks its publisher over TCP, because datagrams do not say it."""

from functools import partial

import pytest

from p2pmsg import control, wire
from p2pmsg.control import Admitted, Head, Heads, Welcome
from p2pmsg.multicast import datagram
from p2pmsg.subscriber.effects import Action
from p2pmsg.wire import Frame, Kind
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.subscriber.test_group import MS, SESSION, SOURCE, Member

heartbeat = partial(frames.heartbeat, session=SESSION)


def questions(member):
    """Return the requests for heads that wait: (id, topics)."""
    found = [Frame(data) for _, data in member.core.requests]
    member.core.requests.clear()
    return [
        (frame.sequence, control.read_body(frame, control.Probe).topics)
        for frame in found
        if frame.kind == Kind.HEADS_REQUEST
    ]


def answer(member, request, *heads, incarnation=0):
    body = Heads("p", list(heads), incarnation=incarnation)
    frame = wire.control_frame(Kind.HEADS, SESSION, body, sequence=request)
    member.core.receive_reply(SESSION, frame, now_ns=member.now_ns)


def admit(member, token):
    frame = wire.control_frame(Kind.ADMITTED, SESSION, Admitted(token))
    member.core.receive_reply(SESSION, frame, now_ns=member.now_ns)


def test_a_head_far_ahead_is_asked_for_and_changes_nothing():
    member = Member()
    member.message(0)
    member.give(heartbeat(2**62, earliest=2**62))
    assert (member.stream.receiver.head, member.stream.receiver.lost) == (1, 0)
    ((request, topics),) = questions(member)
    assert topics == ["t"]
    answer(member, request, Head("t", 0, 1))
    member.message(1)
    assert member.stream.receiver.expected == 2


def test_a_head_that_the_publisher_confirms_is_taken_however_far_it_is():
    member = Member()
    member.message(0)
    member.give(heartbeat(10**6))
    ((request, _),) = questions(member)
    answer(member, request, Head("t", 0, 10**6))
    assert member.stream.receiver.missing == 10**6 - 1


def test_a_new_topic_begins_at_its_first_message():
    member = Member()
    member.give(heartbeat(3, topic="new"))
    receiver = member.core.peers[SESSION].streams["new"].receiver
    assert (receiver.start, receiver.missing) == (0, 3)


def test_only_the_address_of_the_echo_counts():
    member = Member()
    member.message(0)
    forged = memoryview(datagram.with_checksum(heartbeat(10)))
    member.core.receive_datagrams(0, forged, len(forged), ("10.6.6.6", 9), now_ns=member.now_ns)
    assert member.stream.receiver.head == 1
    assert dict(member.core.invalid) == {"source": 1}


def echo(member, peer, *heads):
    member.give(wire.control_frame(Kind.ECHO, peer.probe, Heads("p", list(heads))))


def announce_incarnation(member, flags=0, incarnation=9, endpoint="tcp://h:1", source=SOURCE):
    welcome = Welcome("p", endpoint, 1.0, 1, incarnation=incarnation)
    frame = wire.control_frame(Kind.WELCOME, SESSION, welcome, flags=flags)
    sealed = memoryview(datagram.with_checksum(frame))
    member.core.receive_datagrams(0, sealed, len(sealed), source, now_ns=member.now_ns)


def heads_of_closing(member):
    """Let the publisher say over TCP that it closes."""
    for request, topics in questions(member):
        if topics == ["*"]:
            body = Heads("p", [Head("t", 0, 0)], incarnation=9)
            frame = wire.control_frame(
                Kind.HEADS, SESSION, body, sequence=request, flags=wire.FLAG_CLOSING
            )
            member.core.receive_reply(SESSION, frame, now_ns=member.now_ns)


def closing_incarnation():
    """Return a member whose publisher, of a known incarnation, has said closing, and who knows
    it."""
    member = Member()
    peer = member.core.peers[SESSION]
    peer.incarnation = 9
    announce_incarnation(member, wire.FLAG_CLOSING)
    return member, peer


def of_incarnation(incarnation):
    """Return a member that has joined a publisher in that incarnation of its session."""
    member = Member()
    member.message(0)
    peer = member.core.peers[SESSION]
    peer.incarnation = incarnation
    member.core.requests.clear()
    return member, peer


def test_another_incarnation_is_asked_about_and_joined_when_the_publisher_says_so():
    member, peer = of_incarnation(9)
    member.now_ns += 1000 * MS
    announce_incarnation(member, incarnation=10)
    ((request, topics),) = questions(member)
    assert (topics, peer.probe) == ([], None)
    answer(member, request, incarnation=9)  # an announcement was late, or forged
    assert peer.probe is None
    member.now_ns += 1000 * MS
    announce_incarnation(member, incarnation=10)
    ((request, _),) = questions(member)
    answer(member, request, incarnation=10)
    assert peer.probe is not None


def announce_at(member, endpoint, since_ns, incarnation=10, answers=None):
    """Announce another incarnation at an endpoint, for so long; one `answers` where it is known."""
    end_ns = member.now_ns + since_ns
    while member.now_ns < end_ns:
        member.now_ns += 100 * MS
        announce_incarnation(member, endpoint=endpoint, incarnation=incarnation)
        member.core.handle_timer(now_ns=member.now_ns)
        for request, _ in questions(member):
            if answers is not None:
                answer(member, request, incarnation=answers)


def connected_to(member):
    found = [c.endpoint for c in member.core.commands if c.what is Action.CONNECT]
    member.core.commands.clear()
    return found


def test_another_endpoint_is_used_once_the_known_one_does_not_answer():
    member, peer = of_incarnation(9)
    connected_to(member)
    announce_at(member, "tcp://h:2", 5000 * MS, answers=9)  # it is where it was
    assert (connected_to(member), peer.probe) == ([], None)
    announce_at(member, "tcp://h:2", 2000 * MS)
    assert connected_to(member) == ["tcp://h:2"]
    assert peer.probe is not None


def test_a_publisher_at_an_address_of_no_name_is_looked_for_where_it_is_heard():
    member = Member(joins=False)
    peer, anywhere = member.core.peers[SESSION], "tcp://*:1"
    announce_at(member, anywhere, 1300 * MS)
    assert connected_to(member)[-1] == "tcp://10.0.0.1:1"
    echo(member, peer, Head("t", 0, 0))
    peer.incarnation = 9
    admit(member, 7)
    for _ in range(120):
        member.now_ns += 100 * MS
        announce_incarnation(member, endpoint=anywhere, source=("10.0.0.2", 9))
    assert connected_to(member) == ["tcp://10.0.0.2:1"]


def test_a_session_ends_once_its_publisher_does_not_answer_and_another_has_its_name():
    member = Member()
    former, later = member.core.peers[SESSION], SESSION + 1

    def pass_seconds(seconds, *, answers):
        for _ in range(5 * seconds):
            member.now_ns += 200 * MS
            body = Welcome("p", "tcp://h:2", 1.0, 1, incarnation=9)
            member.give(wire.control_frame(Kind.WELCOME, later, body))
            member.core.handle_timer(now_ns=member.now_ns)
            for request, _ in questions(member):
                if answers:
                    answer(member, request)

    pass_seconds(1, answers=False)
    echo(member, member.core.peers[later], Head("t", 0, 0))
    member.core.joiner.on_stopped(2000 * MS, member.now_ns)  # as where this process was stopped
    pass_seconds(20, answers=True)
    assert not former.gone
    pass_seconds(20, answers=False)
    assert former.gone
    announce_incarnation(member)  # it was stopped
    assert (former.gone, former.probe is not None) == (False, True)


def test_heads_of_another_incarnation_lead_to_an_echo():
    member, peer = of_incarnation(11)
    member.give(heartbeat(2**62))
    ((request, _),) = questions(member)
    answer(member, request, Head("t", 0, 9), incarnation=12)
    assert (peer.probe is not None, member.stream.receiver.head) == (True, 1)
    echo = Heads("p", [Head("t", 0, 9, began=1)], incarnation=12)
    member.give(wire.control_frame(Kind.ECHO, peer.probe, echo))
    assert (member.stream.receiver.head, member.core.stream_table.rewound) == (9, 0)


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_an_announcement_that_a_slow_line_brings_after_the_closing_changes_nothing(is_confirmed):
    member, peer = closing_incarnation()
    if is_confirmed:
        heads_of_closing(member)
        announce_incarnation(member)
    else:
        announce_incarnation(member)
        heads_of_closing(member)
    assert (peer.closing, peer.probe) == (True, None)
    assert member.core.invalid == {}


@pytest.mark.parametrize(("began", "rewound"), [(0, 1), (1, 0)])
def test_a_publisher_that_went_back_and_passed_is_known_by_its_echo_from_another_port(
    began, rewound
):
    member, peer = of_incarnation(11)
    peer.group.sources, peer.group.proof = {0: "its former port"}, 5
    member.core.table.begin_again(peer, member.now_ns)
    body = Heads("p", [Head("t", 0, 9, began=began)], incarnation=12)
    member.give(wire.control_frame(Kind.ECHO, peer.probe, body))
    assert member.core.stream_table.rewound == rewound
