"""What is asked of whom, how often, and what comes of it, by a clock that the test moves."""

import pytest

from p2pmsg.errors import ClosedError, RemoteError, SendQueueFullError
from p2pmsg.requests import frames
from p2pmsg.requests.frames import Status
from p2pmsg.requests.requester_engine import RequesterEngine
from p2pmsg.wire import Frame
from transports import parse_endpoint

SECOND = 1_000_000_000


def engine_of(count=2, pending_max=10):
    at = [parse_endpoint(f"tcp://127.0.0.1:{5000 + number}") for number in range(count)]
    return RequesterEngine(at, 7, 1000, pending_max)


def begin(engine, timeout_s=3, attempts_max=3, topic="t"):
    packed = engine.pack(topic, 1)
    time_ns = timeout_s * SECOND
    return engine.begin(topic, packed, time_ns, time_ns, attempts_max, 0)


def sent(engine, now_ns=0):
    """Send what is to be sent; return the numbers by responder."""
    found = []
    for at in range(len(engine.places)):
        while (next_one := engine.next_to_send(at)) is not None:
            asked, _ = next_one
            assert Frame(engine.frame_of(asked, now_ns)).sequence == asked.number
            engine.on_sent(at, asked.number)
            found.append((at, asked.number))
    return found


def reply(request, value=b"\x05", status=Status.DONE):
    return frames.reply_frame(7, request.number, status, value)


def test_it_is_asked_at_one_after_the_other_each_in_its_part_of_the_time():
    engine = engine_of()
    request = begin(engine)
    assert sent(engine) == [(0, 1)]
    engine.check_time(SECOND // 4)
    assert engine.is_anybody_silent()
    assert not engine.is_anybody_silent()
    engine.check_time(SECOND - 1)
    assert sent(engine) == []
    engine.check_time(SECOND)
    assert sent(engine) == [(1, 1)]
    engine.check_time(2 * SECOND)
    assert sent(engine) == [(0, 1)]
    assert (engine.retries, request.is_over()) == (2, False)
    engine.check_time(3 * SECOND)
    assert request.is_over()
    assert not engine.pending
    assert engine.first == 1


def test_who_answers_is_asked_first_the_next_time_and_later_answers_are_strays():
    engine = engine_of()
    request = begin(engine)
    engine.check_time(SECOND)
    sent(engine)
    engine.receive(1, reply(request), SECOND)
    assert engine.outcome("t", *request.answer) == 5
    engine.receive(0, reply(request), SECOND)
    assert engine.strays == 1
    begin(engine)
    assert sent(engine) == [(1, 2)]


def test_an_attempt_whose_part_has_passed_is_left_out():
    engine = engine_of(1)
    begin(engine, attempts_max=1000)
    sent(engine)
    engine.check_time(2 * SECOND)
    assert (len(sent(engine)), engine.retries) == (1, 1)


def test_who_refuses_is_not_asked_again_and_all_refusals_end_it():
    engine = engine_of()
    request = begin(engine)
    engine.refuse(1, "an unknown key", 0)  # it was not asked there
    assert not request.refusals
    engine.refuse(0, "an unknown key", 0)
    assert sent(engine) == [(1, 1)]
    engine.refuse(1, "an unknown key", 0)
    assert request.is_over()
    assert set(request.refusals) == {0, 1}


def test_what_was_on_its_way_is_asked_again_unless_it_is_to_be_asked_once():
    engine = engine_of(1)
    begin(engine)
    begin(engine, attempts_max=1)
    assert len(sent(engine)) == 2
    engine.on_returned(0)
    assert sent(engine) == [(0, 1)]
    engine.resync()
    assert sent(engine) == [(0, 1)]


def test_a_queue_is_stuck_where_all_that_was_sent_is_over():
    engine = engine_of(1)
    first, second = begin(engine), begin(engine)
    engine.on_sent(0, first.number)
    assert not engine.is_stuck(0)
    engine.forget(first.number)
    assert engine.is_stuck(0)
    engine.forget(second.number)
    assert not engine.is_stuck(0)
    assert engine.next_to_send(0) is None


def test_all_are_asked_and_who_is_silent_is_missing():
    engine = engine_of(3)
    gathering = engine.begin_all("t", engine.pack("t", 1), SECOND, SECOND)
    assert sent(engine) == [(0, 1), (1, 1), (2, 1)]
    engine.receive(1, reply(gathering), 0)
    engine.receive(1, reply(gathering), 0)
    engine.receive(0, frames.reply_frame(7, 1, Status.NO_HANDLER, b"\xc0"), 0)
    engine.check_time(SECOND)
    values, errors = [one.value for one in gathering.came], [one.error for one in gathering.came]
    assert values == [5, None, None]
    assert errors[0] is None
    assert isinstance(errors[1], RemoteError)
    assert gathering.came[2].is_missing
    assert gathering.is_over()
    assert engine.strays == 1
    assert not engine.pending


def test_no_more_than_so_many_are_under_way_and_closing_ends_them():
    engine = engine_of(pending_max=1)
    request = begin(engine)
    assert not engine.has_space()
    with pytest.raises(SendQueueFullError, match="pending_max"):
        engine.check_space("t")
    engine.close("it is closed")
    assert isinstance(request.error, ClosedError)
    assert request.is_over()
    assert engine.has_space()  # who waits for it is refused
    with pytest.raises(ClosedError):
        engine.check_usable()


def test_the_times_that_are_due_have_a_bound():
    engine = engine_of(1)
    for _ in range(1000):
        engine.forget(begin(engine).number)
    assert len(engine._due) < 100
