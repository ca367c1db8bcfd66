"""Requesters' and responders' engines and the cache, by a clock that the test moves."""

import pytest

from p2pmsg.errors import ClosedError, ConfigError, RemoteError, SendQueueFullError
from p2pmsg.requests import frames
from p2pmsg.requests.frames import Status, wait_ms_of
from p2pmsg.requests.reply_cache import NEVER_NS, ReplyCache
from p2pmsg.requests.requester_engine import RequesterEngine
from p2pmsg.requests.responder_engine import EXPIRED, LEFT, WAITING_MAX, ResponderEngine
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


@pytest.fixture
def engine():
    made = ResponderEngine(None, None, 1, 2, ReplyCache(10, 1000, SECOND), 1000, "await it")
    made.add("quick", lambda value: value, is_limited=False)
    made.add("slow", lambda value: value, is_limited=True)
    made.begin_serving(1)
    return made


def ask(engine, number, topic="quick", wait_ms=1000, where=b"a"):
    packed = b"\x05"
    data = frames.request_frame(topic.encode(), 1, number, wait_ms, packed)
    engine.receive(where, data, "", 0)


def replies(engine):
    found = [(where, Frame(data).sequence, Frame(data).count) for where, _, data in engine.replies]
    engine.replies.clear()
    return found


def work(engine, now_ns=0):
    one = engine.take(now_ns)
    one.run()
    engine.finish(one, now_ns)
    return replies(engine)


def test_a_request_that_comes_again_is_answered_from_the_cache_where_it_was_asked_last(engine):
    ask(engine, 1)
    ask(engine, 1, where=b"b")
    assert work(engine) == [(b"b", 1, Status.DONE)]
    assert engine.take(0) is None
    ask(engine, 1, where=b"c")
    assert replies(engine) == [(b"c", 1, Status.DONE)]


def test_what_waits_for_a_slot_is_bounded_and_delays_no_other(engine):
    for number in range(5):
        ask(engine, number, "slow")
    assert engine.refused == 2  # one for the slot, two that wait
    first = engine.take(0)
    engine.begin(first)
    assert first.topic == "slow"
    assert not engine.has_work()
    ask(engine, 8, "slow")
    assert engine.refused == 3
    ask(engine, 9)
    quick = engine.take(0)
    assert quick.topic == "quick"
    for each in (first, quick):
        each.run()
        engine.finish(each, 0)
    ask(engine, 8, "slow")
    assert engine.refused == 3


def test_what_nobody_waits_for_is_not_begun(engine):
    ask(engine, 1, wait_ms=1)
    assert engine.take(SECOND) is None
    assert engine.expired == 1
    ask(engine, 1)
    assert engine.take(0) is not None


@pytest.mark.parametrize(("result", "counted"), [(LEFT, "refused"), (EXPIRED, "expired")])
def test_a_handler_may_leave_a_request(engine, result, counted):
    engine.add("left", lambda _: result, is_limited=False)
    ask(engine, 1, "left")
    assert work(engine) == []
    assert getattr(engine, counted) == 1
    ask(engine, 1, "left")
    assert engine.take(0) is not None


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_is_for_the_program_is_answered_and_ends_the_serving(engine, kind):
    def leave(value):
        raise kind(value)

    engine.add("leave", leave, is_limited=False)
    ask(engine, 1, "leave")
    ask(engine, 2)
    assert work(engine) == [(b"a", 1, Status.RAISED)]
    assert isinstance(engine.ended_by, kind)
    assert engine.must_end()
    assert engine.take(0) is None
    engine.end_serving(1)
    engine.begin_serving(1)
    assert work(engine) == [(b"a", 2, Status.DONE)]


def test_a_topic_without_a_handler_and_garbage(engine):
    ask(engine, 1, "nobody")
    assert replies(engine) == [(b"a", 1, Status.NO_HANDLER)]
    engine.receive(b"a", b"x", "", 0)
    assert sum(engine.invalid.values()) == 1


def test_what_was_interrupted_is_new_again(engine):
    ask(engine, 1)
    engine.drop(engine.take(0))
    ask(engine, 1)
    lost = engine.take(0)
    engine.begin(lost)
    ask(engine, 2)
    engine.resync()  # both are known: one is at work, and one waits
    ask(engine, 1)
    ask(engine, 2)
    assert engine.take(0).number[1] == 2
    assert engine.take(0) is None
    engine.resync()  # an exception came before the second was begun
    ask(engine, 2)
    assert engine.take(0).number[1] == 2
    engine.drop_lost()
    engine.resync()
    ask(engine, 1)
    assert engine.take(0).number[1] == 1


def test_it_is_served_by_one_at_a_time_and_takes_nothing_when_it_is_closed(engine):
    with pytest.raises(ClosedError, match="another thread serves it"):
        engine.begin_serving(2)
    engine.end_serving(2)
    engine.begin_serving(1)  # an interrupt kept it from ending
    ask(engine, 1)
    own = engine.take(0)
    engine.begin(own)
    assert not engine.is_idle(None)
    assert engine.is_idle(own)
    engine.close("it is closed")
    assert not engine.has_space()
    assert engine.take(0) is None
    own.run()
    engine.finish(own, 0)
    assert replies(engine) == [(b"a", 1, Status.DONE)]
    with pytest.raises(ClosedError):
        engine.check_usable()


def test_what_waits_has_a_bound(engine):
    for number in range(WAITING_MAX):
        ask(engine, number)
    assert not engine.has_space()
    assert engine.take(0) is not None
    assert engine.has_space()


@pytest.mark.parametrize("handler", [None, lambda _: (yield)])
def test_what_is_no_handler_is_refused(engine, handler):
    with pytest.raises(ConfigError):
        engine.add("t", handler, is_limited=False)


ONE, OTHER = (1, 1, "", ""), (1, 2, "", "")


def make():
    return ReplyCache(10, 1000, 10**9)


def test_a_request_is_over_when_its_requester_stops_waiting():
    cache = make()
    assert cache.begin(ONE, b"a", 100) == (True, None)
    assert not cache.is_over(ONE, 99)
    assert cache.is_over(ONE, 100)
    assert not cache.is_over(OTHER, 100)


def test_asked_again_it_waits_for_the_longer_time_and_is_answered_where_it_was_asked_last():
    cache = make()
    cache.begin(ONE, b"a", 100)
    assert cache.begin(ONE, b"b", 300) == (False, None)
    assert not cache.is_over(ONE, 299)
    assert cache.begin(ONE, b"c", 200) == (False, None)
    assert not cache.is_over(ONE, 299)
    assert cache.is_over(ONE, 300)
    assert cache.end(ONE, b"reply", now_ns=400) == b"c"
    assert cache.begin(ONE, b"a", 100) == (False, b"reply")
    assert not cache.is_over(ONE, 1000)


def test_one_that_does_not_say_how_long_it_waits_is_never_over():
    cache = make()
    cache.begin(ONE, b"a")
    assert not cache.is_over(ONE, NEVER_NS - 1)
    cache.begin(OTHER, b"a", 100)
    cache.begin(OTHER, b"a", NEVER_NS)
    assert not cache.is_over(OTHER, 10**18)


def test_what_was_left_is_new_when_it_is_asked_again():
    cache = make()
    cache.begin(ONE, b"a", 100)
    cache.drop(ONE)
    assert cache.begin(ONE, b"a", 300) == (True, None)
    assert not cache.is_over(ONE, 299)


def test_a_reply_is_pending_over_the_connection_that_it_was_sent_over():
    cache, here, other = make(), b"\0her", b"\0oth"
    assert not cache.is_pending(ONE, here, now_ns=0)
    cache.keep(ONE, b"reply", now_ns=0)
    assert not cache.is_pending(ONE, here, now_ns=0)  # there was no space for it
    cache.on_sent(ONE, here, now_ns=0)
    assert cache.is_pending(ONE, here, now_ns=29 * 10**9)
    assert not cache.is_pending(ONE, here, now_ns=30 * 10**9)
    assert not cache.is_pending(ONE, other, now_ns=0)
    assert not cache.is_pending(OTHER, here, now_ns=0)


def test_a_request_never_says_0_which_is_no_limit_and_never_less_than_it_waits():
    assert [wait_ms_of(s) for s in (-1, 0, 1e-9, 0.0019, 5)] == [1, 1, 1, 2, 5001]
    assert wait_ms_of(1e9) == 2**32 - 1
