"""Requests of one session, without a core: `Served` and a queue are all that is needed."""

import pytest

from p2pmsg import control, wire
from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.control_queue import ControlQueue
from p2pmsg.publisher.requests import RequestHandler
from p2pmsg.wire import Frame, Kind
from recovery import Loss, LossReason
from tests.unit.p2pmsg.frames import SESSION, joined, nack, probe
from tests.unit.p2pmsg.publisher.served import FakeServed, kept

MS = 1_000_000
ALICE = b"alice"


class Handling:
    """A handler, and the shell that sends its replies."""

    def __init__(self, served, **options):
        self.queue = ControlQueue()
        self.handler = RequestHandler(served, self.queue, PublisherConfig(**options))

    def ask(self, request, *, now_ns=0):
        """Return the replies to a request; a frame of the log is read as the shell reads it."""
        handler = self.handler
        handler.receive(ALICE, request, now_ns=now_ns)
        found = []
        while (reply := handler.next_reply(now_ns=now_ns)) is not None:
            if reply.is_in_log and not handler.read(reply):
                handler.refuse(reply)
                continue
            handler.reply_sent(reply, now_ns=now_ns)
            found.append(reply.frame)
        return found

    def heads(self, request):
        """Return the heads of the echo of a probe."""
        assert self.ask(request) == []
        (echo,) = map(Frame, self.queue.drain())
        assert echo.kind == Kind.ECHO
        return control.read_body(echo, control.Heads)


def refusals(replies):
    bodies = [control.read_body(Frame(data), control.Refused) for data in replies]
    return [(body.ranges, body.reason) for body in bodies]


def test_frames_of_the_buffer_answer_a_nack():
    frames = [kept(0, 3), kept(3, 2)]
    handling = Handling(FakeServed(*frames))

    assert handling.ask(nack((1, 5))) == [one.frame for one in frames]
    assert handling.handler.messages_repaired == {"buffer": 4, "log": 0}


def test_the_log_answers_for_what_the_buffer_has_forgotten():
    served = FakeServed(kept(4, 2), log=[kept(0, 3), kept(3)])
    handling = Handling(served)

    answers = handling.ask(nack((1, 6)))
    assert answers == [one.frame for one in (*served.log, *served.buffer)]
    assert served.reads == [(ALICE, "t", 1), (ALICE, "t", 3)]
    assert handling.handler.messages_repaired == {"buffer": 2, "log": 3}


def test_what_neither_buffer_nor_log_has_is_refused():
    served = FakeServed(kept(4, 2), log=[kept(2, 2)], heads={"t": (0, 6)})
    first, *rest = Handling(served).ask(nack((0, 6)))

    assert refusals([first]) == [([(0, 2)], "evicted")]
    assert rest == [one.frame for one in (*served.log, *served.buffer)]


def test_what_is_lost_is_refused_with_its_reason():
    served = FakeServed(kept(0, 3), heads={"t": (0, 9)}, losses=[Loss(3, 9, LossReason.CRASH)])
    refusal, frame = Handling(served).ask(nack((0, 9)))

    assert refusals([refusal]) == [([(3, 9)], "crash")]
    assert frame == served.buffer[0].frame


def test_what_nobody_knows_to_be_lost_is_refused_without_a_range():
    served = FakeServed(kept(0, 3), heads={"t": (0, 9)}, unknown=[(3, 9)])
    assert refusals(Handling(served).ask(nack((3, 9)))) == [([], "budget")]


@pytest.mark.parametrize(
    ("start", "position", "expected"),
    [("latest", 0, 6), ("earliest", 0, 2), ("sequence", 3, 3), ("time", 4, 4), ("time", 99, 6)],
)
def test_a_probe_is_answered_over_the_data_path(start, position, expected):
    handling = Handling(FakeServed(kept(2, 4), life=5, floor=1))
    heads = handling.heads(probe(7, ["t"], start, position))
    assert heads == control.Heads("feed", [control.Head("t", 2, 6, expected)], 1, life=5)


def test_streams_that_are_new_since_the_handler_was_made_are_answered_for():
    served = FakeServed()
    handling = Handling(served)
    served.heads["later"] = (0, 3)
    topics = [head.topic for head in handling.heads(probe(7, ["*"])).streams]
    assert topics == ["t", "later"]


def test_requests_for_another_session_are_counted_only():
    handling = Handling(FakeServed(kept(0)))
    assert handling.ask(nack((0, 1), session=SESSION + 1)) == []
    assert handling.handler.invalid == {"session": 1}


class Multicast:
    """A multicast that notes whom it listens to."""

    def __init__(self):
        self.calls = []

    def admit(self, subscriber):
        self.calls.append(("admit", subscriber))
        return b"token"

    def dismiss(self, subscriber):
        self.calls.append(("dismiss", subscriber))


def test_a_multicast_admits_who_asks_for_a_token_and_dismisses_who_leaves_or_falls_silent():
    handling, multicast = Handling(FakeServed(), subscriber_timeout_ms=1000), Multicast()
    handling.handler.multicast = multicast
    for subscriber in (1, 2):
        body = control.Joined(subscriber, "s", wants_token=True)
        assert handling.ask(wire.control_frame(Kind.JOINED, SESSION, body)) == [b"token"]
    assert handling.ask(joined(3)) == []

    handling.ask(wire.control_frame(Kind.LEAVE, SESSION, control.Joined(1, "s")))
    handling.handler.expire(now_ns=1001 * MS)
    dismissed = [("dismiss", 1), ("dismiss", 2), ("dismiss", 3)]
    assert multicast.calls == [("admit", 1), ("admit", 2), *dismissed]
