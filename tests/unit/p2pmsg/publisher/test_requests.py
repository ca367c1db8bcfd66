"""What is done for those who ask a publisher: probes, NACKs, heads; and for those who lie."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg import control, wire
from p2pmsg.config import PublisherConfig
from p2pmsg.publisher import heads, requests, subscribers
from p2pmsg.publisher.control_queue import ControlQueue
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.publisher.requests import RequestHandler
from p2pmsg.wire import Frame, Kind, decode_columns
from recovery.retransmit import REQUESTERS_MAX
from tests.unit.p2pmsg.frames import SESSION, header, heartbeat, joined, nack, probe
from tests.unit.p2pmsg.publisher.served import FakeServed, answers, take_control, take_sent

MS = 1_000_000
WALL_NS = 1_700_000_000 * 10**9
ALICE, BOB = b"alice", b"bob"


def core(count=10, *, frames=None, **options):
    """A publisher of `count` messages in as many frames of the topic `t`; `frames` are kept."""
    if frames is not None:
        options["replay_bytes"] = frames * core(1).replay.bytes_held
    config = PublisherConfig(**options)
    publisher = PublisherCore(
        name="feed", session=SESSION, recovery="memory://r", config=config, now_ns=0
    )
    for number in range(count):
        publisher.publish(
            "t", number, None, WALL_NS + number, None, now_ns=number * MS, wall_ns=WALL_NS
        )
    take_sent(publisher)
    return publisher


def replies(publisher, *, now_ns=0, count_max=100):
    """What goes out over the recovery channel: (requester, kind, what)."""
    found = []
    handler = publisher.requests
    while len(found) < count_max and (reply := handler.next_reply(now_ns=now_ns)) is not None:
        handler.reply_sent(reply, now_ns=now_ns)
        frame = Frame(reply.frame)
        if frame.kind == Kind.DATA:
            found.append((reply.requester, "DATA", (frame.sequence, decode_columns(frame)[0])))
        elif frame.kind == Kind.REFUSED:
            body = control.read_body(frame, control.Refused)
            found.append((reply.requester, "REFUSED", (body.ranges, body.reason)))
        else:
            found.append((reply.requester, Kind(frame.kind).name, frame))
    return found


def ask(publisher, data, *, requester=ALICE, now_ns=0):
    publisher.requests.receive(requester, data, now_ns=now_ns)


HEAD = 10
NACKS = {
    "evicted": ([(0, 3)], [("REFUSED", ([(0, 3)], "evicted"))]),
    "evicted in part": (
        [(5, 7)],
        [("REFUSED", ([(5, 6)], "evicted")), ("DATA", (6, [6]))],
    ),
    "future": ([(HEAD, HEAD + 5)], []),
    "future in part": ([(9, 2**63 - 1)], [("DATA", (9, [9]))]),
    "everything there is": (
        [(0, 2**63 - 1)],
        [("REFUSED", ([(0, 6)], "evicted")), *[("DATA", (n, [n])) for n in range(6, HEAD)]],
    ),
    "the same twice": ([(8, 9), (8, 9)], [("DATA", (8, [8]))]),
    "overlapping": ([(7, 9), (8, 10)], [("DATA", (n, [n])) for n in (7, 8, 9)]),
    "far in the future": ([(2**62, 2**62 + 1)], []),
    "no ranges": ([], []),
}


@pytest.mark.parametrize(("ranges", "answers"), NACKS.values(), ids=NACKS)
def test_a_nack_is_answered_as_far_as_can_be(ranges, answers):
    publisher = core(frames=4)
    ask(publisher, nack(*ranges))

    assert [reply[1:] for reply in replies(publisher)] == answers
    assert publisher.requests.invalid == {}


def test_a_frame_that_was_never_kept_is_refused_and_its_neighbours_are_not():
    publisher = core(2, replay_bytes=1000)
    for value in (bytes(5000), 3):
        publisher.publish("t", value, None, None, None, now_ns=10**9, wall_ns=1)
        publisher.flush(now_ns=10**9)
    ask(publisher, nack((0, 4)))
    assert [reply[1:] for reply in replies(publisher)] == [
        ("DATA", (0, [0])),
        ("DATA", (1, [1])),
        ("REFUSED", ([(2, 3)], "evicted")),
        ("DATA", (3, [3])),
    ]


def test_ranges_beyond_the_bound_are_refused_for_budget():
    publisher = core(2176)
    for first in range(0, 2176, 128):  # 17 times 64 ranges, one in 17 too many
        ask(publisher, nack(*((start, start + 1) for start in range(first, first + 128, 2))))
    answers = replies(publisher, count_max=2000)
    refused = [what for _, kind, what in answers if kind == "REFUSED"]
    assert ([(start, start + 1) for start in range(2048, 2176, 2)], "budget") in refused


def test_what_is_on_its_way_is_not_sent_again():
    publisher = core()
    ask(publisher, nack((3, 4)))
    ask(publisher, nack((5, 6)), requester=BOB)
    assert publisher.requests.next_deadline_ns(now_ns=0) == 0
    assert replies(publisher) == [(ALICE, "DATA", (3, [3])), (BOB, "DATA", (5, [5]))]
    ask(publisher, nack((3, 4)))  # it is on its way
    assert replies(publisher) == []
    assert publisher.requests.next_deadline_ns(now_ns=0) is None
    assert publisher.requests.frames_repaired == 2
    assert publisher.requests.messages_repaired == {"buffer": 2, "log": 0}


def test_who_asks_for_heads_without_end_is_not_answered(monkeypatch):
    monkeypatch.setattr(requests, "REPLIES_MAX", 5)
    publisher = core()
    for _ in range(20):
        ask(publisher, wire.control_frame(Kind.HEADS_REQUEST, SESSION))
    assert len(replies(publisher)) == 5
    assert publisher.requests.replies_dropped == 15


def test_subscribers_are_counted_until_they_leave_or_fall_silent():
    publisher = core(subscriber_timeout=1.0)
    ask(publisher, joined(1, "one"))
    ask(publisher, joined(2, "two"), requester=BOB)
    ask(publisher, joined(1, "one"), now_ns=800 * MS)
    assert {known.name for known in publisher.requests.known.by_id().values()} == {"one", "two"}

    publisher.handle_timer(now_ns=1100 * MS)
    assert set(publisher.requests.known.by_id()) == {1}
    leave = wire.control_frame(Kind.LEAVE, SESSION, control.Joined(1, "one"))
    ask(publisher, leave, now_ns=1100 * MS)
    assert publisher.requests.known.by_id() == {}


def silent(*joins, count=10, **options):
    """A publisher that forgets all who joined, as they are not heard of any more."""
    publisher = core(count, subscriber_timeout=1.0, **options)
    for one in joins:
        ask(publisher, one)
    publisher.handle_timer(now_ns=1001 * MS)
    assert publisher.requests.known.by_id() == {}
    return publisher.requests


def test_who_fell_silent_without_a_closing_has_not_got_everything(caplog):
    requests = silent(joined(1, "one"), joined(2, "one"), joined(3, ""))

    assert (requests.known.incomplete(), requests.known.undelivered()) == (0, 3)
    assert requests.known.forgotten_names() == {"one": 2, "": 1}
    (said,) = caplog.messages
    assert "subscriber 'one' was not heard of for 1 s" in said


def test_those_who_are_forgotten_are_counted_and_not_all_kept(monkeypatch):
    monkeypatch.setattr(subscribers, "FORGOTTEN_MAX", 2)
    requests = silent(*(joined(one, f"s{one}") for one in range(5)))
    assert requests.known.forgotten_names() == {"s3": 1, "s4": 1, "": 3}
    assert requests.known.undelivered() == 5


def test_closing_waits_for_every_subscriber_to_say_again_that_it_has_everything():
    publisher = core()
    ask(publisher, joined(1, complete=True))
    publisher.begin_close(now_ns=0)
    assert publisher.requests.known.incomplete() == 1
    ask(publisher, joined(1, complete=True))
    assert publisher.requests.known.incomplete() == 0


def test_what_applications_are_done_with_only_grows_and_never_beyond_the_head():
    publisher = core()  # the head of "t" is 10

    def settle(topic, following):
        body = control.Settled(topic, following)
        ask(publisher, wire.control_frame(Kind.SETTLED, SESSION, body))
        return {name: each.acknowledged for name, each in publisher.streams.items()}

    assert settle("t", 7) == {"t": 7}
    assert settle("t", 3) == {"t": 7}
    assert settle("t", 2**62) == {"t": 10}
    assert settle("another", 5) == {"t": 10}


@given(st.lists(st.tuples(st.integers(0, 15), st.sets(st.integers(0, 15))), max_size=6))
def test_what_nobody_has_is_what_all_that_were_done_with_it_have_lost(reports):
    publisher = core()  # the head of "t" is 10
    for following, lost in reports:
        body = control.Settled("t", following, [(each, each + 1) for each in sorted(lost)])
        ask(publisher, wire.control_frame(Kind.SETTLED, SESSION, body))
    stream = publisher.streams["t"]
    done = [(min(following, 10), lost) for following, lost in reports]
    expected = {
        sequence
        for sequence in range(10)
        if any(sequence < following for following, _ in done)
        and all(sequence in lost for following, lost in done if sequence < following)
    }
    assert {each for start, stop in stream.unreached for each in range(start, stop)} == expected
    assert stream.acknowledged == max((following for following, _ in done), default=0)


HUGE = b"\xdd\xff\xff\xff\xff"
HOSTILE = {
    "nothing": (b"", "no topic"),
    "random bytes": (bytes(range(256)), "magic"),
    "another session": (nack((0, 1), session=SESSION + 1), "session"),
    "a kind for subscribers": (heartbeat(5), "kind"),
    "data": (header(), "kind"),
    "a range without messages": (nack((3, 3)), "range"),
    "a range backwards": (nack((0, 2), (4, 3)), "range"),
    "a range below 0": (nack((-1, 3)), "body"),
    "a range beyond all": (nack((0, 2**63)), "body"),
    "too many ranges": (nack(*[(0, 1)] * 1025), "body"),
    "a NACK without body": (wire.control_frame(Kind.NACK, SESSION), "body"),
    "a NACK that claims to be huge": (
        header(topic=b"", kind=20, count=0, body=b"\x92\xa1t" + HUGE),
        "body",
    ),
    "a probe of another shape": (
        wire.control_frame(Kind.PROBE, SESSION, control.Heartbeat(1)),
        "body",
    ),
    "a probe with a topic too long": (probe(7, ["x" * 300]), "body"),
    "joined with a name too long": (joined(1, "x" * 256), "body"),
    "leave without body": (wire.control_frame(Kind.LEAVE, SESSION), "body"),
    "settled with a range backwards": (
        wire.control_frame(Kind.SETTLED, SESSION, control.Settled("t", 3, [(2, 1)])),
        "range",
    ),
    "settled with too many ranges": (
        wire.control_frame(Kind.SETTLED, SESSION, control.Settled("t", 3, [(0, 1)] * 1025)),
        "body",
    ),
    "settled below 0": (
        wire.control_frame(Kind.SETTLED, SESSION, control.Settled("t", -1)),
        "body",
    ),
}


@pytest.mark.parametrize(("data", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_what_is_hostile_is_counted_and_nothing_else(data, reason):
    publisher = core()
    for _ in range(3):
        ask(publisher, data)

    assert publisher.requests.invalid == {reason: 3}
    assert replies(publisher) == []
    assert take_sent(publisher) == []
    assert publisher.requests.known.by_id() == {}


class TestManyAskers:
    """Each of whom has a budget of his own."""

    @pytest.fixture
    def publisher(self, monkeypatch):
        monkeypatch.setattr(heads, "ALL_AT_ONCE", 250)
        monkeypatch.setattr(heads, "HEADS_PER_S", 1000)
        publisher = core(0)
        for number in range(100):
            publisher.publish(f"t{number}", 1, None, None, None, now_ns=0, wall_ns=1)
        take_sent(publisher)
        return publisher

    def question(self, number):
        body = control.Probe(number, ["*"], "sequence", number)
        return wire.control_frame(Kind.HEADS_REQUEST, SESSION, body, sequence=number)

    def test_all_together_get_no_more_than_their_budget(self, publisher):
        for now_ns in (0, 10**9):
            for number in range(50):
                data = self.question(number)
                publisher.requests.receive(b"%d" % number, data, now_ns=now_ns)
            assert len(replies(publisher, now_ns=now_ns)) == 3
        assert publisher.requests.heads.throttled == 94


def test_answers_that_wait_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(requests, "REPLIES_BYTES_MAX", 1000)
    publisher = core()
    for number in range(100):
        ask(publisher, wire.control_frame(Kind.HEADS_REQUEST, SESSION, sequence=number))
    handler = publisher.requests
    answered = replies(publisher)
    assert 0 < sum(len(reply[2].data) for reply in answered) <= 1000
    assert len(answered) + handler.replies_dropped == 100
    ask(publisher, wire.control_frame(Kind.HEADS_REQUEST, SESSION, sequence=1))
    assert len(replies(publisher)) == 1


class Handling:
    """A handler, and the shell that sends its replies."""

    def __init__(self, served, **options):
        self.queue = ControlQueue()
        self.handler = RequestHandler({SESSION: served}, self.queue, PublisherConfig(**options))

    def ask(self, request):
        return answers(self.handler, ALICE, request)

    def heads(self, request):
        """Return the heads of the echo of a probe."""
        assert self.ask(request) == []
        (echo,) = map(Frame, take_control(self.queue))
        assert echo.kind == Kind.ECHO
        return control.read_body(echo, control.Heads)


ANOTHERS = 99


class Multicast:
    """A multicast that notes whom it listens to."""

    def __init__(self):
        self.calls = []

    def admit(self, subscriber, requester, user):
        if subscriber == ANOTHERS:
            raise wire.FrameError("subscriber")
        self.calls.append(("admit", subscriber))
        return b"token"

    def requester_gone(self, requester, *, now_ns):
        self.calls.append(("gone", requester))

    def dismiss(self, subscriber):
        self.calls.append(("dismiss", subscriber))


def test_a_multicast_admits_who_asks_for_a_token_and_dismisses_who_leaves_or_falls_silent():
    handling, multicast = Handling(FakeServed(), subscriber_timeout=1.0), Multicast()
    handling.handler.multicast = multicast
    for subscriber in (1, 2):
        body = control.Joined(subscriber, "s", wants_token=True)
        assert handling.ask(wire.control_frame(Kind.JOINED, SESSION, body)) == [b"token"]
    assert handling.ask(joined(3)) == []

    handling.ask(wire.control_frame(Kind.LEAVE, SESSION, control.Joined(1, "s")))
    handling.handler.expire(now_ns=1001 * MS)
    dismissed = [("dismiss", 1), ("dismiss", 2), ("dismiss", 3)]
    assert multicast.calls == [("admit", 1), ("admit", 2), *dismissed]


def sizes_of(*sizes, **options):
    """A publisher of messages of these sizes, each in a frame of its own."""
    publisher = core(0, message_bytes_max=16 * 2**20, **options)
    for number, size in enumerate(sizes):
        at_ns = (number + 1) * 10**9
        publisher.publish("t", bytes(size), None, None, None, now_ns=at_ns, wall_ns=1)
        publisher.flush(now_ns=at_ns)
    take_sent(publisher)
    return publisher


def limited(*ranges, limit):
    body = control.Nack("t", list(ranges), frame_bytes_max=limit)
    return wire.control_frame(Kind.NACK, SESSION, body)


def shown(publisher):
    """What goes out, values as their sizes."""
    return [
        (kind, (what[0], [len(value) for value in what[1]]) if kind == "DATA" else what)
        for _, kind, what in replies(publisher)
    ]


def test_a_frame_of_several_messages_is_cut_for_who_cannot_take_it_whole():
    publisher = core(0, message_bytes_max=2**20)
    values = [b"a" * 10, b"b" * 20, b"c" * 100_000, b"d" * 30]
    publisher.publish_many("t", values, None, None, 0, now_ns=0, wall_ns=1, count=9)
    take_sent(publisher)
    ask(publisher, limited((0, 4), limit=65_536))

    assert shown(publisher) == [
        ("DATA", (0, [10, 20])),
        ("REFUSED", ([(2, 3)], "too_large")),
        ("DATA", (3, [30])),
    ]


def test_limits_of_requesters_are_bounded():
    publisher = sizes_of(1, 100_000)
    for number in range(REQUESTERS_MAX + 1):
        ask(publisher, limited((0, 1), limit=65_536), requester=b"%d" % number)
    assert len(publisher.requests._frame_bytes_max) == REQUESTERS_MAX


def nack_of(received, start, stop):
    body = control.Nack("t", [(start, stop)], received=received)
    return wire.control_frame(Kind.NACK, SESSION, body)


def test_what_its_asker_cannot_have_received_yet_is_not_sent_again():
    publisher = core()
    ask(publisher, nack_of(7, 2, 3))
    assert [what for _, what, _ in replies(publisher)] == ["DATA"]
    ask(publisher, nack_of(7, 2, 3), now_ns=500 * MS)
    assert replies(publisher, now_ns=500 * MS) == []
    ask(publisher, nack_of(8, 2, 3), now_ns=900 * MS)
    assert [what for _, what, _ in replies(publisher, now_ns=900 * MS)] == ["DATA"]
