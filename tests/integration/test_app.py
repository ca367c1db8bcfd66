"""`App` over real peers: order, back-pressure, errors, and how it ends."""

import asyncio
import logging
import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest

import p2pmsg
from p2pmsg.app import App, DeadLetter, Event, Request, Retry
from p2pmsg.errors import HandlerError
from tests.integration.mold import make_feed, place, reader_of

__all__ = ["make_feed", "place"]

FAST = p2pmsg.queue.PusherConfig(retry_delay=0.001, ack_timeout=30.0)


@dataclass
class Trade:
    price: float


@pytest.fixture
def app():
    return App(stop_timeout=10.0)


def serve(app, feed=None, timeout=60.0):
    """Run an app here until it stops; `feed` runs in a thread once it has started."""
    feeding = threading.Thread(target=feed, daemon=True)
    if feed is not None:
        app.on_start(feeding.start)
    try:
        asyncio.run(asyncio.wait_for(app.serve(), timeout))
    finally:
        if feeding.is_alive():  # else what it feeds would be closed below it
            feeding.join(timeout)


def feeder(publisher, values, topic="t", key=lambda value: None):
    def feed():
        publisher.wait_for_subscribers(1, timeout=60)
        for value in values:
            publisher.publish(topic, value, key(value))

    return feed


@pytest.mark.parametrize("is_async", [True, False])
def test_each_message_is_handled_once_and_in_order(app, make_publisher, is_async):
    publisher = make_publisher()
    seen = []

    def note(value, message):
        seen.append((value, message.sequence))
        if len(seen) == 1000:
            app.stop() if is_async else loop.call_soon_threadsafe(app.stop)

    async def on_later(value: int, message: p2pmsg.Message):
        await asyncio.sleep(0)
        note(value, message)

    @app.on_start
    async def remember():
        nonlocal loop
        loop = asyncio.get_running_loop()

    loop = None
    app.subscriber(publisher.endpoint, topics="t")(on_later if is_async else note)
    serve(app, feeder(publisher, range(1000)))

    assert seen == [(number, number) for number in range(1000)]
    (stats,) = app.stats()
    assert (stats.handled, stats.failed, stats.running) == (1000, 0, 0)


def test_values_are_converted_and_those_that_do_not_fit_are_errors(app, make_publisher, caplog):
    publisher = make_publisher()
    seen = []

    @app.subscriber(publisher.endpoint, on_error=Retry(attempts=9, delay=60.0, delay_max=60.0))
    async def on_trade(trade: Trade, message: p2pmsg.Message[Trade]):
        assert message.value is trade
        seen.append(trade)
        if trade.price == 3:
            app.stop()

    serve(app, feeder(publisher, [{"price": 1}, {"prize": 2}, {"price": 3}]))

    assert seen == [Trade(1.0), Trade(3.0)]
    assert app.stats()[0].failed == 1  # it is not tried again
    assert "missing required field `price`" in caplog.text
    assert "message 1 of 't'" in caplog.text


def test_10_000_messages_by_key_keep_their_order_and_none_is_lost_or_doubled(app, make_publisher):
    publisher = make_publisher()
    seen, running, most = defaultdict(list), Counter(), 0
    rng = random.Random(1)

    @app.subscriber(publisher.endpoint, concurrency=8, by_key=True, on_error="retry")
    async def on(value: int, message):
        nonlocal most
        running[message.key] += 1
        most = max(most, running.total())
        assert running[message.key] == 1
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        running[message.key] -= 1
        seen[message.key].append(value)
        if sum(map(len, seen.values())) == 10_000:
            app.stop()

    serve(app, feeder(publisher, range(10_000), key=lambda value: f"k{value * 7919 % 61}"))

    assert sorted(value for values in seen.values() for value in values) == [*range(10_000)]
    assert all(values == sorted(values) for values in seen.values())
    assert most == 8
    assert app.stats()[0].failed == 0


@pytest.mark.parametrize("cursor", [False, True])
def test_a_message_that_has_no_key_is_an_error_and_stops_nothing(
    app, make_publisher, tmp_path, cursor
):
    publisher = make_publisher()
    seen, failed = [], []
    keys = {2.0: [], 3.0: None}

    def key(message):
        return 1 / message.value.price if message.value.price < 2.0 else keys[message.value.price]

    def on_failure(event, error):
        failed.append((event.message.sequence, type(error).__name__))

    options = {"cursor": str(tmp_path / "cursor")} if cursor else {}

    @app.subscriber(publisher.endpoint, topics="t", key=key, on_error=on_failure, **options)
    async def note(trade: Trade):
        seen.append(trade.price)
        if trade.price == 3.0:
            app.stop()

    values = [{"price": one} for one in (1.0, 0.0, 2.0, 4.0, "no price", 3.0)]
    serve(app, feeder(publisher, values))

    assert seen == [1.0, 3.0]
    assert sorted(failed) == [
        (1, "ZeroDivisionError"), (2, "TypeError"), (3, "KeyError"), (4, "InvalidValueError"),
    ]  # fmt: skip
    (stats,) = app.stats()
    assert (stats.received, stats.handled, stats.given_up, stats.left) == (6, 2, 4, 0)


def test_nothing_more_is_read_than_can_be_handled(app, make_publisher):
    publisher = make_publisher()
    gate = asyncio.Event()
    begun = 0

    @app.subscriber(publisher.endpoint, concurrency=3, prefetch=5)
    async def on(value):
        nonlocal begun
        begun += 1
        await gate.wait()
        if value == 199:
            app.stop()

    async def main():
        task = asyncio.create_task(app.serve())
        await asyncio.to_thread(feeder(publisher, range(200)))
        while begun < 3 or app.stats()[0].received < 8:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert app.stats()[0].received == 8
        assert begun == 3
        gate.set()
        await task

    asyncio.run(main())
    assert app.stats()[0].handled == 200


def test_a_failing_message_is_tried_again_before_the_next(app, make_publisher):
    publisher = make_publisher()
    tries = []

    @app.subscriber(publisher.endpoint, on_error=Retry(attempts=3, delay=0.001))
    async def on(value: int, event: Event):
        tries.append((value, event.attempt))
        if value == 3:
            app.stop()
        elif value == 2 or event.attempt < 3 > value > 0:
            raise OSError("away")

    serve(app, feeder(publisher, range(4)))

    assert tries == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1)]
    (stats,) = app.stats()
    assert (stats.handled, stats.given_up, stats.failed, stats.retried) == (3, 1, 5, 4)


def test_stop_ends_the_app_with_the_exception_as_cause(app, make_publisher):
    publisher = make_publisher()

    @app.subscriber(publisher.endpoint, on_error="stop")
    def on(value):
        return 1 / value

    with pytest.raises(HandlerError, match=r"on failed with message 0 of 't'.*division") as ended:
        serve(app, feeder(publisher, [0, 1]))

    assert isinstance(ended.value.__cause__, ZeroDivisionError)


def test_a_dead_letter_that_cannot_be_kept_stops_the_app(app, make_publisher, endpoint):
    publisher = make_publisher()
    letter = DeadLetter(publish=endpoint, message_bytes_max=100_000)

    @app.subscriber(publisher.endpoint, on_error=letter)
    def on(value, message):  # it is too large with the rest of the letter
        raise ValueError("no good")

    text = (
        r"on failed with message 0 of 't' from .*, whose error could not be handled: "
        r"MessageTooLargeError: message takes 100\d\d\d bytes, and the limit is 100000"
    )
    with pytest.raises(HandlerError, match=text):
        serve(app, feeder(publisher, [b"x" * 99_990]))


def test_middleware_is_around_each_attempt(app, make_publisher):
    publisher = make_publisher()
    calls = []

    @app.middleware
    async def outer(call_next, event):
        calls.append(("outer", event.kind, event.value, event.attempt))
        try:
            return await call_next(event)
        finally:
            calls.append("out")

    @app.middleware
    async def inner(call_next, event):
        event.value += 100
        return await call_next(event)

    @app.subscriber(publisher.endpoint, on_error=Retry(attempts=2, delay=0))
    async def on(value: int, event: Event):
        calls.append(value)
        if event.attempt == 1:
            raise OSError
        app.stop()

    serve(app, feeder(publisher, [5]))
    first, second = ("outer", "message", 5, 1), ("outer", "message", 5, 2)
    assert calls == [first, 105, "out", second, 105, "out"]


def test_jobs_are_acknowledged_and_failures_are_the_pushers(app, make_pusher):
    pusher = make_pusher(config=FAST)
    attempts = []

    @app.worker(pusher.endpoint, concurrency=4)
    async def work(value: int, job: p2pmsg.Job):
        attempts.append((value, job.delivery_count))
        if value == 1 and job.delivery_count < 3:
            raise OSError("away")
        if value == 2:
            job.discard("by hand")

    @app.timer(0.01)
    async def look():
        if pusher.stats().done == 9 and pusher.stats().dead == 1:
            app.stop()

    for number in range(10):
        pusher.push(number)
    serve(app)

    expected = [(number, 1) for number in range(10)] + [(1, 2), (1, 3)]
    assert sorted(attempts) == sorted(expected)


def test_a_job_says_the_type_of_its_value(app, make_pusher):
    pusher, seen, kept = make_pusher(config=FAST), [], []

    async def note(job: p2pmsg.Job[Trade]):
        seen.append(job.value)
        if job.value.price == 2:
            raise ValueError
        if len(seen) == 3:
            app.stop()

    keep = DeadLetter(call=lambda event, error: kept.append(event.job.value))
    app.worker(pusher.endpoint, on_error=keep)(note)
    pushed = [{"price": 1, "more": 1}, {"price": 2, "more": 2}, {"price": "x"}, {"price": 3}]
    for value in pushed:
        pusher.push(value)
    serve(app)

    assert seen == [Trade(1), Trade(2), Trade(3)]
    assert kept == pushed[1:3]  # as they were pushed


def stop_when_settled(app, pusher):
    """Have the app stop as soon as no job is in flight."""

    @app.timer(0.01)
    async def look():
        if not pusher.stats().in_flight:
            app.stop()


@pytest.mark.parametrize(
    ("on_error", "result"),
    [
        ("dead_letter", (0, 1)),
        ("log", (1, 0)),
        (Retry(attempts=2, delay=0, then="dead_letter"), (0, 1)),
        (Retry(attempts=2, delay=0, then="log"), (1, 0)),
        (DeadLetter(call=lambda event, error: None), (1, 0)),
        (lambda event, error: event.job.discard("by hand"), (0, 1)),
    ],
)
def test_policies_for_jobs(app, make_pusher, on_error, result):
    pusher = make_pusher(config=FAST)

    @app.worker(pusher.endpoint, on_error=on_error)
    def work(value):
        raise ValueError(value)

    stop_when_settled(app, pusher)
    pusher.push("x")
    serve(app)

    assert (pusher.stats().done, pusher.stats().dead) == result
    tries = 2 if isinstance(on_error, Retry) else 1
    assert app.stats()[0].failed == tries


@pytest.mark.parametrize("deliveries_max", [1, 2])
@pytest.mark.parametrize("then", ["call", "log"])
def test_what_follows_a_retry_comes_before_the_pusher_gives_up(
    app, make_pusher, caplog, then, deliveries_max
):
    pusher = make_pusher(deliveries_max=deliveries_max)
    pusher.push("bad")
    letters = []
    call = DeadLetter(call=lambda event, error: letters.append((event.value, event.attempt)))
    policy = Retry(attempts=9, delay=0, then=call if then == "call" else "log")

    @app.worker(pusher.endpoint, on_error=policy)
    def work(value):
        raise ValueError(value)

    stop_when_settled(app, pusher)
    serve(app)

    stats = pusher.stats()
    if then == "call":
        assert letters == [("bad", deliveries_max)]
        assert (stats.done, stats.dead) == (1, 0)
        assert caplog.text.count("before attempts=9") == 1
    else:  # it is not thrown away
        assert (stats.done, stats.dead) == (0, 1)


def test_requests_are_answered_and_errors_go_to_the_requester(app, endpoint):
    answers = []

    @app.responder(endpoint, "add")
    async def add(numbers: list[int], request: Request):
        return [sum(numbers), request.topic]

    @app.responder(endpoint, "divide")
    def divide(numbers: list[int]):
        return numbers[0] / numbers[1]

    @app.responder(endpoint, "end")
    async def end():
        app.stop()
        await asyncio.sleep(0.05)
        return "answered"

    def feed():
        with p2pmsg.Requester([endpoint]) as requester:
            answers.append(requester.request("add", [1, 2], timeout=60))
            answers.append(requester.request("divide", [1, 2], timeout=60))
            for value in ([1, 0], ["x"]):
                with pytest.raises(p2pmsg.RequestError) as raised:
                    requester.request("divide", value, timeout=60)
                answers.append(str(raised.value))
            answers.append(requester.request("end", None, timeout=60))

    thread = threading.Thread(target=feed)
    app.on_start(thread.start)
    serve(app)
    thread.join(60)

    assert answers[:2] == [[3, "add"], 0.5]
    assert "ZeroDivisionError" in answers[2]
    assert "Expected `int`, got `str`" in answers[3]
    assert answers[4] == "answered"


def test_two_handlers_for_one_topic_are_refused(app, endpoint):
    app.responder(endpoint, "a", cache_age=5.0)(print_nothing)
    with pytest.raises(p2pmsg.ConfigError, match="without a handler"):
        app.responder(endpoint, "a")(print_nothing)
    with pytest.raises(p2pmsg.ConfigError, match=r"cache_age must be 5\.0"):
        app.responder(endpoint, "b", cache_age=6.0)(print_nothing)


def print_nothing(value):
    """Do nothing."""


def test_a_timer_ticks_and_leaves_out_what_it_missed(app):
    ticks = []

    @app.timer(0.02, at_start=True)
    async def tick():
        ticks.append(time.monotonic())
        if len(ticks) == 2:
            await asyncio.sleep(0.05)
        if len(ticks) == 4:
            app.stop()

    serve(app)

    assert len(ticks) == 4
    assert ticks[3] - ticks[0] >= 0.079  # the one that was due meanwhile did not come at once


def test_what_cannot_be_opened_ends_the_app_after_its_hooks(app, make_publisher):
    taken = make_publisher()
    calls = []
    app.on_stop(lambda: calls.append("stop"))
    app.timer(1.0)(lambda: None)
    app.responder(taken.endpoint, "a")(print_nothing)

    with pytest.raises(p2pmsg.BindError):
        serve(app)

    assert calls == ["stop"]


def test_a_handler_that_never_ends_is_named(make_publisher, caplog):
    app = App(stop_timeout=0.05)
    publisher = make_publisher()
    begun = []

    @app.subscriber(publisher.endpoint, concurrency=2)
    async def endless(value):
        begun.append(value)
        await asyncio.sleep(1000)

    @app.subscriber(publisher.endpoint)
    def blocked(value):
        begun.append(value)
        release.wait(60)

    release = threading.Event()

    @app.timer(0.01)
    async def look():
        if len(begun) == 3:
            app.stop()

    def feed():
        publisher.wait_for_subscribers(2, timeout=60)
        publisher.publish_many("t", [1, 2])

    try:
        with pytest.raises(TimeoutError, match=r"blocked, .*endless did not end"):
            serve(app, feed)
    finally:
        release.set()
    assert "endless did not end within 0.05 s after the app was to stop; it is at message 1" in (
        caplog.text
    )
    assert app.stats()[0].cancelled == 2


def test_an_app_runs_once_at_a_time_and_again_later(app):
    @app.timer(0.001)
    async def tick():
        with pytest.raises(p2pmsg.ClosedError, match="runs already"):
            await app.serve()
        with pytest.raises(p2pmsg.ClosedError, match=r"await app\.serve"):
            app.run()
        with pytest.raises(p2pmsg.ClosedError, match="takes no more handlers"):
            app.timer(1.0)(print_nothing_at_all)
        app.stop()

    serve(app)
    app.run()
    assert app.stats()[0].handled == 2


def print_nothing_at_all():
    """Do nothing."""


def test_a_handler_that_cancels_itself_or_exits_has_failed(app, make_publisher, caplog):
    publisher = make_publisher()

    @app.subscriber(publisher.endpoint)
    async def on(value):
        if value == 0:
            raise asyncio.CancelledError
        if value == 1:
            raise SystemExit(3)
        app.stop()

    with caplog.at_level(logging.ERROR):
        serve(app, feeder(publisher, range(3)))

    assert "cancelled from inside" in caplog.text
    assert "called sys.exit(3)" in caplog.text


def test_an_app_ends_with_its_feeds_after_the_last_message(app, make_feed, place):
    feed, seen = make_feed(), []
    app.timer(100.0)(print_nothing_at_all)

    @app.subscriber(reader_of(place, feed), start="earliest", on_end="stop", concurrency=2)
    async def on(value):
        await asyncio.sleep(0.001)
        seen.append(value)

    def send():
        feed.publish_many([b"%d" % number for number in range(20)])
        feed.close(1.0)

    serve(app, send)

    assert sorted(seen) == sorted(b"%d" % number for number in range(20))


def test_more_requests_than_may_wait_are_left_to_be_asked_again(endpoint):
    app, gate, second_gate = App(), asyncio.Event(), asyncio.Event()

    @app.responder(endpoint, "slow", concurrency=1, pending_max=2)
    async def slow(value):
        await gate.wait()
        return value

    @app.responder(endpoint, "other", concurrency=1)
    async def other(value):
        await second_gate.wait()
        return value

    async def main():
        task = asyncio.create_task(app.serve())
        async with p2pmsg.aio.Requester([endpoint]) as requester:
            asked = [
                asyncio.create_task(requester.request(topic, number, timeout=60, attempts_max=30))
                for number, topic in enumerate(["slow"] * 5 + ["other"] * 3)
            ]
            while [stats.received for stats in app.stats()] != [3, 3]:
                await asyncio.sleep(0.001)
            while app.stats()[0].refused < 2:
                await asyncio.sleep(0.001)
            gate.set()
            second_gate.set()
            answers = await asyncio.gather(*asked)
        app.stop()
        await task
        return answers

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [*range(8)]
    assert [(stats.received, stats.handled) for stats in app.stats()] == [(5, 5), (3, 3)]
    assert app.stats()[1].refused == 0
