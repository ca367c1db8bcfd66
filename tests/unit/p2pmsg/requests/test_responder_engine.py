"""What a responder works on, and what it answers, by a clock that the test moves."""

import pytest

from p2pmsg.errors import ClosedError, ConfigError
from p2pmsg.requests import frames
from p2pmsg.requests.frames import Status
from p2pmsg.requests.reply_cache import ReplyCache
from p2pmsg.requests.responder_engine import EXPIRED, LEFT, WAITING_MAX, ResponderEngine
from p2pmsg.wire import Frame

SECOND = 1_000_000_000


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
