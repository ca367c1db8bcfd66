"""Requesters' and responders' engines and the cache, by a clock that the test moves."""

import pytest

from p2pmsg.errors import ClosedError, SendQueueFullError
from p2pmsg.requests import frames
from p2pmsg.requests.frames import Status, wait_ms_of
from p2pmsg.requests.reply_cache import ReplyCache
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


def test_what_was_on_its_way_is_asked_again_unless_it_is_to_be_asked_once():
    engine = engine_of(1)
    begin(engine)
    begin(engine, attempts_max=1)
    assert len(sent(engine)) == 2
    engine.on_returned(0)
    assert sent(engine) == [(0, 1)]
    engine.resync()
    assert sent(engine) == [(0, 1)]


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


@pytest.mark.parametrize(("result", "counted"), [(LEFT, "refused"), (EXPIRED, "expired")])
def test_a_handler_may_leave_a_request(engine, result, counted):
    engine.add("left", lambda _: result, is_limited=False)
    ask(engine, 1, "left")
    assert work(engine) == []
    assert getattr(engine, counted) == 1
    ask(engine, 1, "left")
    assert engine.take(0) is not None


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


ONE, OTHER = (1, 1, "", ""), (1, 2, "", "")


def make():
    return ReplyCache(10, 1000, 10**9)


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
