"""What a subscriber believes of datagrams, and what it asks its publisher first."""

from functools import partial

import pytest

from p2pmsg import control, wire
from p2pmsg.control import Admitted, Head, Heads, Welcome
from p2pmsg.multicast import datagram
from p2pmsg.wire import Frame, Kind
from recovery import Delivery
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.subscriber.test_group import MS, SESSION, Member

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


def answer(member, request, *heads):
    frame = wire.control_frame(Kind.HEADS, SESSION, Heads("p", list(heads)), sequence=request)
    member.core.receive_reply(SESSION, frame, now_ns=member.now_ns)


def admit(member, token, life=1):
    frame = wire.control_frame(Kind.ADMITTED, SESSION, Admitted(token, life))
    member.core.receive_reply(SESSION, frame, now_ns=member.now_ns)


def test_a_head_beyond_what_can_be_is_asked_for_and_changes_nothing():
    member = Member()
    member.message(0)
    member.give(heartbeat(2**62, earliest=2**62))
    assert (member.stream.receiver.head, member.stream.receiver.lost) == (1, 0)
    ((request, topics),) = questions(member)
    assert topics == ["t"]
    answer(member, request, Head("t", 0, 1))
    assert member.core.invalid["forged"] == 1
    member.message(1)
    assert member.stream.receiver.expected == 2


def test_an_answer_that_takes_a_second_counts_in_the_end():
    member = Member()
    member.message(0)
    member.give(heartbeat(50))
    asked = []  # (when, request)
    for _ in range(400):
        asked += [(member.now_ns, request) for request, _ in questions(member)]
        for when_ns, request in asked:
            if when_ns + 1000 * MS <= member.now_ns:
                answer(member, request, Head("t", 0, 1))
        member.now_ns += 10 * MS
        member.core.handle_timer(now_ns=member.now_ns)
    assert member.core.invalid["forged"] == 1
    assert len({request for _, request in asked}) <= 2


def test_nothing_is_lost_before_the_publisher_said_that_it_was_published():
    member = Member()
    member.message(0)
    member.give(heartbeat(10, earliest=10))
    asked = []
    while not asked and member.now_ns < 5000 * MS:
        member.now_ns += 50 * MS
        member.core.handle_timer(now_ns=member.now_ns)
        asked = questions(member)
    assert (member.stream.receiver.lost, member.stream.receiver.missing) == (0, 9)
    ((request, _),) = asked
    answer(member, request, Head("t", 0, 1))
    assert (member.stream.receiver.head, member.stream.receiver.missing) == (1, 0)
    member.give(heartbeat(10))  # this stream's heartbeats are believed no more
    assert member.stream.receiver.head == 1


def test_what_nobody_denies_for_two_seconds_is_given_up_all_the_same():
    member = Member()
    member.message(0)
    member.give(heartbeat(10))
    fall_silent(member)
    assert (member.stream.receiver.lost, member.stream.receiver.missing) == (9, 0)


def test_a_stream_begins_when_its_publisher_knows_it_and_is_forgotten_when_not():
    member = Member()
    member.message(0)
    for topic in ("real", "forged"):
        member.give(heartbeat(3, topic=topic))
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
    forged = memoryview(datagram.with_checksum(heartbeat(10)))
    member.core.receive_datagrams(0, forged, len(forged), ("10.6.6.6", 9), now_ns=member.now_ns)
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


def echo(member, peer, *heads):
    member.give(wire.control_frame(Kind.ECHO, peer.probe, Heads("p", list(heads))))


def probed_again(member):
    """Have the session probed again; returns its peer."""
    peer = member.core.peers[SESSION]
    member.core.joiner.send_probe(peer, 0, member.now_ns)
    return peer


def outputs(member, topic):
    found = iter(member.core.ready.pop, None)
    return [
        (out.sequence, out.count) if isinstance(out, Delivery)
        else (out.start, out.stop, out.reason.value)
        for stream, out in found if stream.topic == topic
    ]  # fmt: skip


def test_a_head_that_was_only_heard_of_is_no_publisher_that_went_back():
    member = Member()
    member.message(0)
    member.give(heartbeat(10))
    echo(member, probed_again(member), Head("t", 0, 1))
    assert member.core.stream_table.rewound == 0
    assert outputs(member, "t") == [(0, 1)]


def test_messages_that_came_are_of_a_publisher_that_went_back():
    member = Member()
    for sequence in (0, 1, 5):
        member.message(sequence)
    echo(member, probed_again(member), Head("t", 0, 4, 4, 3))
    assert member.core.stream_table.rewound == 1
    assert outputs(member, "t") == [(0, 1), (1, 1), (2, 5, "rewound"), (5, 1), (3, 6, "rewound")]


def test_so_are_messages_that_it_confirmed_and_took_back_itself():
    member = Member()
    member.message(0)
    for head in (9, 5):
        peer = member.core.peers[SESSION]
        member.core.member.confirmation.want(peer, "t", member.now_ns)
        ((request, _),) = questions(member)
        answer(member, request, Head("t", 0, head))
        member.now_ns += 300 * MS
    assert member.stream.receiver.head == 5
    echo(member, probed_again(member), Head("t", 0, 5, 5, 4))
    assert outputs(member, "t") == [(0, 1), (1, 9, "rewound"), (4, 9, "rewound")]


def new(member, *sequences):
    for sequence in sequences:
        member.give(frames.data(["x"], topic="new", session=SESSION, sequence=sequence))


def test_forged_messages_from_far_ahead_do_not_hide_that_a_publisher_went_back():
    """Nor do they show it: the stream has not begun, so nothing said where its messages can be."""
    for near, rewound in (([0, 1], 0), ([0, 1, 7], 1)):
        member = Member()
        new(member, *near, 2**62)
        echo(member, probed_again(member), Head("t", 0, 0), Head("new", 0, 5, 5, 4))
        assert member.core.stream_table.rewound == rewound
        assert member.core.peers[SESSION].streams["new"].receiver.head == 5
        delivered = [out for out in outputs(member, "new") if out[0] > 7]
        assert not delivered


def test_a_stream_that_was_confirmed_after_the_probe_has_gone_back_all_the_same():
    member = Member()
    new(member, 0, 7)
    peer = probed_again(member)
    ((request, topics),) = questions(member)
    assert topics == ["new"]
    answer(member, request, Head("new", 0, 5))
    assert peer.streams["new"].receiver.started
    echo(member, peer, Head("t", 0, 0), Head("new", 0, 5, 5, 4))
    assert member.core.stream_table.rewound == 1


def test_a_topic_that_an_echo_does_not_know_is_asked_for_and_not_handed_on():
    member = Member()
    new(member, 3)
    echo(member, probed_again(member), Head("t", 0, 0))
    assert member.core.stream_table.rewound == 0
    assert outputs(member, "new") == []
    assert not member.core.peers[SESSION].streams["new"].receiver.started


def test_what_came_unconfirmed_is_handed_on_when_another_session_takes_the_place():
    member = Member()
    new(member, 0, 2)
    peer = member.core.peers[SESSION]
    member.core.joiner.end_peer(peer, member.now_ns)
    assert outputs(member, "new") == [(0, 1), (1, 2, "publisher_gone"), (2, 1)]


def test_what_came_unconfirmed_is_handed_on_when_nobody_answers_permanently():
    member = Member()
    new(member, 0)
    fall_silent(member)
    assert outputs(member, "new") == [(0, 1)]


HISTORY = 65_536
"""`history_messages`, as it is by default."""


def data(sequence, count=1, topic="t", session=SESSION):
    return frames.data([0] * count, topic=topic, session=session, sequence=sequence)


def fall_silent(member):
    """Let so much time pass that the publisher is given up."""
    for _ in range(60):
        member.now_ns += 250 * MS
        member.core.handle_timer(now_ns=member.now_ns)
        member.core.requests.clear()
    return member.core.member.confirmation.unconfirmed, [
        command.text for command in member.core.commands if command.what == "warn"
    ]


def receiver(member, topic):
    return member.core.peers[SESSION].streams[topic].receiver


HINTS = {"data": data(100_000, 5), "a heartbeat": heartbeat(100_005)}


@pytest.mark.parametrize("hint", HINTS.values(), ids=HINTS)
def test_what_is_too_far_ahead_and_never_confirmed_is_counted_and_said_once(hint):
    member = Member()
    member.give(data(0, 3), hint)
    unconfirmed, (text,) = fall_silent(member)
    assert unconfirmed == 100_002
    assert "[3, 100005) of 't'" in text
    assert "'p'" in text
    assert receiver(member, "t").lost == 0
    assert fall_silent(member) == (100_002, [text])


def test_what_is_confirmed_is_not_counted():
    member = Member()
    member.give(data(0, 3), data(100_000, 5))
    ((request, _),) = questions(member)
    answer(member, request, Head("t", 0, 100_005))
    unconfirmed, warnings = fall_silent(member)
    assert (unconfirmed, warnings) == (0, [])
    assert receiver(member, "t").lost == 100_002


def test_a_stream_that_nobody_confirmed_is_handed_on_as_far_as_it_came_without_gaps():
    member = Member(2**24)
    for sequence in range(0, 4 * HISTORY, HISTORY // 2):
        member.give(data(sequence, HISTORY // 2, "new"))
    assert fall_silent(member) == (0, [])
    assert (receiver(member, "new").handed, receiver(member, "new").lost) == (4 * HISTORY, 0)


def test_gaps_of_a_stream_that_nobody_confirmed_are_lost_up_to_the_bound_and_then_counted():
    member = Member()
    for sequence in (0, HISTORY, 2 * HISTORY, 3 * HISTORY):
        member.give(data(sequence, 1, "new"))
    fall_silent(member)
    unconfirmed, (text,) = fall_silent(member)
    got = receiver(member, "new")
    assert (got.handed, got.lost) == (2, HISTORY - 1)
    assert f"[{HISTORY + 1}, {3 * HISTORY + 1}) of 'new'" in text
    assert unconfirmed == 2 * HISTORY


def test_a_heartbeat_of_a_stream_that_nobody_confirmed_counts():
    member = Member()
    member.give(data(0, 2, "new"), heartbeat(9_000_000, topic="new"))
    unconfirmed, (text,) = fall_silent(member)
    assert unconfirmed == 9_000_000 - 2
    assert "[2, 9000000) of 'new'" in text


def announced(member, session, *made):
    member.give(wire.control_frame(Kind.WELCOME, session, Welcome("q", "tcp://h:2", 1.0, 1)), *made)


def test_a_session_that_never_answered_is_counted_and_said_at_most_once_a_minute():
    member = Member()
    for session in (501, 502):
        announced(member, session, data(7, 3, "u", session))
    announced(member, 503)
    unconfirmed, (text,) = fall_silent(member)
    assert unconfirmed == 6
    assert "[7, 10) of 'u'" in text
    assert member.core.joiner.sessions_unjoined == 2
    assert {501, 502, 503}.isdisjoint(member.core.peers)


def joined(member):
    """Return the numbers of the JOINED that wait, which the answers have again."""
    found = [Frame(data) for _, data in member.core.requests]
    member.core.requests.clear()
    return [frame.sequence for frame in found if frame.kind == Kind.JOINED]


def admit_asked(member, number, life):
    frame = wire.control_frame(Kind.ADMITTED, SESSION, Admitted(7, life), sequence=number)
    member.core.receive_reply(SESSION, frame, now_ns=member.now_ns)


def of_life(member, life, recovery="tcp://h:1"):
    body = Welcome("p", recovery, 1.0, 1, 0.0, life)
    member.give(wire.control_frame(Kind.WELCOME, SESSION, body))


def of_known_life():
    """Return a member whose publisher said in its echo of which life it is, and was asked again."""
    member = Member()
    member.message(0)
    member.core.peers[SESSION].life = 11
    member.core.joiner.send_joined(member.core.peers[SESSION], member.now_ns)
    (number,) = joined(member)
    return member, number


def test_an_announcement_of_another_life_is_asked_about_and_a_late_answer_does_not_deny_it():
    member, before = of_known_life()
    admit_asked(member, before, life=1)
    member.core.joiner.send_joined(member.core.peers[SESSION], member.now_ns)
    (before,) = joined(member)
    member.now_ns += 1000 * MS
    of_life(member, 12)
    (number,) = joined(member)
    admit_asked(member, before, life=1)  # of the life that is over: it was asked before
    assert member.core.invalid["forged"] == 0
    admit_asked(member, number, life=2)
    assert member.core.peers[SESSION].probe is not None
    assert member.core.invalid["forged"] == 0


def test_another_life_that_the_publisher_denies_was_forged():
    member, before = of_known_life()
    admit_asked(member, before, life=1)
    member.now_ns += 1000 * MS
    of_life(member, 12)
    (number,) = joined(member)
    admit_asked(member, number, life=1)
    assert member.core.peers[SESSION].probe is None
    assert member.core.invalid["forged"] == 1


@pytest.mark.parametrize("late_ns", [900 * MS, 5000 * MS])
def test_an_announcement_of_the_known_life_that_comes_late_is_no_forgery(late_ns):
    """It waits where messages wait for receivers, and in the buffer of a slow one."""
    member, before = of_known_life()
    admit_asked(member, before, life=1)
    member.now_ns += late_ns
    state = member.core.peers[SESSION].group
    of_life(member, 11)
    assert state.suspect is None
    of_life(member, 11, recovery="tcp://h:2")  # another place is asked about all the same
    assert state.suspect is not None


def test_heads_of_another_life_are_not_believed_before_its_echo():
    member, _ = of_known_life()
    member.give(heartbeat(2**62, earliest=2**62))
    ((request, _),) = questions(member)
    frame = wire.control_frame(
        Kind.HEADS, SESSION, Heads("p", [Head("t", 0, 9)], life=12), sequence=request
    )
    member.core.receive_reply(SESSION, frame, now_ns=member.now_ns)
    peer = member.core.peers[SESSION]
    assert (peer.probe is not None, member.stream.receiver.head) == (True, 1)
    echo = Heads("p", [Head("t", 0, 9, began=1)], life=12)
    member.give(wire.control_frame(Kind.ECHO, peer.probe, echo))
    assert (member.stream.receiver.head, member.core.stream_table.rewound) == (9, 0)


@pytest.mark.parametrize(("began", "rewound"), [(0, 1), (1, 0)])
def test_a_publisher_that_went_back_and_passed_is_known_by_its_echo_from_another_port(
    began, rewound
):
    member, _ = of_known_life()
    peer = member.core.peers[SESSION]
    peer.group.places, peer.group.proof = {0: "its former port"}, 5
    member.core.joiner.begin_again(peer, member.now_ns)
    echo = Heads("p", [Head("t", 0, 9, began=began)], life=12)
    member.give(wire.control_frame(Kind.ECHO, peer.probe, echo))
    assert member.core.stream_table.rewound == rewound


def test_a_position_that_was_asked_for_is_none_that_a_publisher_went_back_from():
    """It began at 5 of a stream that was at 1, and the publisher was started again at 2."""
    member = Member(start=5, joins=False)
    peer = member.core.peers[SESSION]
    echo(member, peer, Head("t", 0, 1, 5))
    assert member.stream.position == 5
    peer.life, peer.group.places, peer.group.proof = 11, {0: "its former port"}, 5
    member.core.joiner.begin_again(peer, member.now_ns)
    echoed = Heads("p", [Head("t", 0, 2, began=2)], life=12)
    member.give(wire.control_frame(Kind.ECHO, peer.probe, echoed))
    assert (member.core.stream_table.rewound, member.stream.position) == (0, 5)


def closing(member):
    """Have it said, truly or not, that the session closes, and have it announced again."""
    farewell = Welcome("p", "tcp://h:1", 1.0, 1)
    member.give(wire.control_frame(Kind.WELCOME, SESSION, farewell, flags=wire.FLAG_CLOSING))
    announce(member)


def announce(member):
    member.give(wire.control_frame(Kind.WELCOME, SESSION, Welcome("p", "tcp://h:1", 1.0, 1)))


def asked_for_token(member):
    found = any(Frame(data).kind == Kind.JOINED for _, data in member.core.requests)
    member.core.requests.clear()
    return found


def test_one_that_cannot_be_asked_yet_is_not_taken_for_silent():
    """Its echo took so long that a farewell, and an announcement, came before it."""
    member = Member(joins=False)
    peer = member.core.peers[SESSION]
    closing(member)
    probe = peer.probe
    for _ in range(20):
        member.now_ns += 100 * MS
        member.core.handle_timer(now_ns=member.now_ns)
        announce(member)
    assert peer.probe == probe
    echo(member, peer, Head("t", 0, 0))
    assert peer.joined
    assert asked_for_token(member)
    announce(member)
    assert (peer.closing, peer.probe) == (True, None)
    admit(member, 4711)
    assert (peer.closing, member.core.invalid["forged"]) == (False, 1)


def test_a_second_without_an_answer_is_counted_from_the_question_on():
    member = Member()
    peer = member.core.peers[SESSION]
    peer.group.token = 5  # it is not asked for a token but here
    peer.group.join_ns = member.now_ns  # it was asked just now
    closing(member)
    assert not asked_for_token(member)
    suspected_ns = member.now_ns
    while not asked_for_token(member):
        member.now_ns += 10 * MS
        member.core.handle_timer(now_ns=member.now_ns)
        announce(member)
    asked_ns = member.now_ns
    assert asked_ns > suspected_ns
    member.now_ns = asked_ns + 1000 * MS - 1
    announce(member)
    assert peer.probe is None
    member.now_ns += 1
    announce(member)
    assert peer.probe is not None


def announce_life(member, flags=0, life=9):
    welcome = Welcome("p", "tcp://h:1", 1.0, 1, life=life)
    member.give(wire.control_frame(Kind.WELCOME, SESSION, welcome, flags=flags))


def heads_of_closing(member):
    """Let the publisher say over TCP that it closes."""
    for request, topics in questions(member):
        if topics == ["*"]:
            body = Heads("p", [Head("t", 0, 0)], life=9)
            frame = wire.control_frame(
                Kind.HEADS, SESSION, body, sequence=request, flags=wire.FLAG_CLOSING
            )
            member.core.receive_reply(SESSION, frame, now_ns=member.now_ns)


def closing_life():
    """Return a member whose publisher, of a known life, has said farewell, and who knows it."""
    member = Member()
    peer = member.core.peers[SESSION]
    peer.life = 9
    peer.group.token, peer.group.life = 4711, 9
    announce_life(member, wire.FLAG_CLOSING)
    return member, peer


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_an_announcement_that_a_slow_line_brings_after_the_farewell_is_not_forged(is_confirmed):
    member, peer = closing_life()
    if is_confirmed:
        heads_of_closing(member)
        announce_life(member)
        assert peer.group.suspect is None
        assert not asked_for_token(member)
    else:
        announce_life(member)
        heads_of_closing(member)
        admit(member, 4711, 9)
    assert (peer.closing, peer.probe) == (True, None)
    assert member.core.invalid == {}


def test_a_farewell_that_the_publisher_does_not_confirm_is_forged():
    member, peer = closing_life()
    announce_life(member)
    for request, topics in questions(member):
        assert topics == ["*"]
        answer(member, request, Head("t", 0, 0))
    admit(member, 4711, 9)
    assert (peer.closing, member.core.invalid["forged"]) == (False, 1)


def test_another_life_is_suspected_also_after_a_farewell():
    member, peer = closing_life()
    heads_of_closing(member)
    announce_life(member, life=10)
    assert peer.group.suspect is not None
