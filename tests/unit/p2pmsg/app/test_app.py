"""The pieces of an app: parameters, policies, order, threads, dead letters."""

import asyncio
import functools
import threading
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import p2pmsg
from p2pmsg import codec
from p2pmsg.app import App, DeadLetter, Event, Request, Retry
from p2pmsg.app.dead_letters import letter_of
from p2pmsg.app.order import InOrder, KeyQueue
from p2pmsg.app.parameters import name_of, plan
from p2pmsg.app.threads import HandlerThreads
from p2pmsg.errors import InvalidValueError
from p2pmsg.message import Message, Origin
from p2pmsg.queue import Job

if TYPE_CHECKING:
    from decimal import Decimal as Absent


MESSAGE = Message("trades", {"price": 1.5}, 7, 3, Origin(1, "p"), "BTC")
EVENT = Event("message", "on", MESSAGE.value, message=MESSAGE)
APP = App()


@dataclass
class Trade:
    price: float


def call(function, event=EVENT):
    found = plan(function, event.kind, App)
    event = Event(event.kind, "on", found.convert(event.value), event.message)
    positional, named = found.arguments(event, APP)
    return function(*positional, **named)


def test_the_first_parameter_gets_the_value_as_its_annotation_says():
    def on(trade: Trade):
        return trade

    assert call(on) == Trade(1.5)
    assert call(lambda value: value) == {"price": 1.5}


def test_context_goes_by_name_or_by_annotation_in_any_place():
    def by_name(value, message, event, app):
        return value, message, event, app

    def by_annotation(m: Message, a: App, trade: Trade, e: Event):
        return trade, m, e.message, a

    def optional(m: Message | None, x):
        return m, x

    def named(value, *, message, other=5, **rest):
        return value, message, other, rest

    def between(value, other=5, message: Message = None):
        return value, other, message

    value, message, event, app = call(by_name)
    assert (value, message, event.message, app) == (MESSAGE.value, MESSAGE, MESSAGE, APP)
    assert call(by_annotation) == (Trade(1.5), MESSAGE, MESSAGE, APP)
    assert call(optional) == (MESSAGE, MESSAGE.value)
    assert call(named) == (MESSAGE.value, MESSAGE, 5, {})
    assert call(between) == (MESSAGE.value, 5, MESSAGE)


def test_no_parameters_are_fine():
    assert call(lambda: 5) == 5
    assert call(lambda message: message) is MESSAGE


def test_an_annotation_goes_before_the_name():
    def on(message: dict):  # a value that is called so
        return message

    assert call(on) == {"price": 1.5}


def test_methods_partials_and_objects_are_handlers():
    class Book:
        def on(self, value: Trade, message):
            return value, message

        async def __call__(self, value: Trade):
            return value

    assert call(Book().on) == (Trade(1.5), MESSAGE)
    assert call(functools.partial(Book().on, message=1)) == (Trade(1.5), MESSAGE)
    assert plan(Book(), "message", App).is_async
    assert name_of(functools.partial(Book().on)).endswith("Book.on")


def test_a_value_that_does_not_fit_is_its_own_error():
    def on(trade: Trade): ...

    with pytest.raises(InvalidValueError, match=r"Expected `float`.*\$\.price"):
        plan(on, "message", App).convert({"price": "x"})


def unfillable(value, db): ...


def two_values(value: Trade, other: Trade): ...


def a_job(value, job: Job): ...


def only_a_job(job: Job): ...


def a_request(value, request: Request): ...


def generator(value):
    yield


async def async_generator(value):
    yield


def no_type(value: pytest.Item): ...


def unknown(value: "Nowhere"): ...  # noqa: F821


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (unfillable, "parameter 'db' of unfillable must be the first one, for the value, or one"),
        (two_values, "parameter 'other' of two_values"),
        (a_job, "parameter 'job' of a_job"),
        (only_a_job, "parameter 'job' of only_a_job"),
        (a_request, "parameter 'request' of a_request"),
        (generator, "handler generator must be a function, plain or async, without yield"),
        (async_generator, "without yield"),
        (unknown, "name 'Nowhere' is not defined"),
        (5, "must be a function"),
        (no_type, "the value's annotation in no_type must be a type that values can be decoded"),
    ],
)
def test_what_cannot_be_filled_is_named_when_it_is_registered(function, text):
    app = App()

    with pytest.raises(p2pmsg.ConfigError) as refused:
        app.subscriber("tcp://127.0.0.1:1")(function)

    assert text in str(refused.value)


def test_each_kind_has_its_own_context():
    def tick(app: App): ...

    def tick_with_value(value): ...

    app = App()
    app.timer(1.0)(tick)
    app.worker("tcp://127.0.0.1:1")(a_job)
    with pytest.raises(p2pmsg.ConfigError, match="event: Event, app: App"):
        app.timer(1.0)(tick_with_value)
    assert [stats.kind for stats in app.stats()] == ["timer", "job"]


def test_any_is_no_type():
    def on(value: Any): ...

    assert plan(on, "message", App).value_type is None


def test_the_type_may_stand_in_the_messages():
    def on(message: Message[Trade]): ...

    def both(value, message: Message[Trade]): ...

    assert plan(on, "message", App).value_type is Trade
    assert plan(both, "message", App).value_type is Trade


def test_annotations_for_type_checkers_are_passed_over_where_they_are_not_needed():
    app = App()

    @app.subscriber("tcp://127.0.0.1:9")
    def on(trade: Trade, message: Message, limits: "list[Absent]" = ()) -> "Absent":
        return trade, message, limits

    assert call(on) == (Trade(1.5), MESSAGE, ())
    limit = "the annotation of 'trade' in .*needs must be one that exists, not .*Absent"
    with pytest.raises(p2pmsg.ConfigError, match=limit):

        @app.subscriber("tcp://127.0.0.1:9")
        def needs(trade: "Absent"):
            pass


def test_pauses_double_up_to_a_limit():
    retry = Retry(attempts=9, delay=0.5, delay_max=3.0)

    assert [retry.pause(attempt) for attempt in (1, 2, 3, 4, 5000)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Retry(attempts=0), "attempts"),
        (lambda: Retry(delay=-1), "delay"),
        (lambda: Retry(delay=2.0, delay_max=1.0), "delay_max"),
        (lambda: Retry(then="retry"), "then"),
        (lambda: DeadLetter(), "DeadLetter"),
        (lambda: DeadLetter(publish="tcp://*:1", push="tcp://*:2"), "DeadLetter"),
        (lambda: DeadLetter(publish="tcp://*:1", message_bytes_max=5), "message_bytes_max"),
        (lambda: App(stop_timeout=-1), "stop_timeout"),
        (lambda: App().subscriber("nowhere"), "endpoint"),
        (lambda: App().subscriber("tcp://a:1", concurrency=0), "concurrency"),
        (lambda: App().subscriber("tcp://a:1", key=id, by_key=True), "key"),
        (lambda: App().subscriber("tcp://a:1", topic="t"), "argument 'topic' of Subscriber"),
        (lambda: App().worker("tcp://a:1", threads=2), "argument 'threads' of Puller"),
        (lambda: App().worker("tcp://a:1", acknowledge="batch"), "argument 'acknowledge'"),
        (lambda: App().timer(0), "seconds"),
        (lambda: App().middleware(print), "middleware"),
        (lambda: App().on_start(lambda a, b: 0), "hook"),
    ],
)
def test_a_wrong_argument_is_named(make, field):
    with pytest.raises(p2pmsg.ConfigError) as refused:
        make()

    assert refused.value.field.startswith(field)


@pytest.mark.parametrize(
    ("kind", "on_error"),
    [
        ("subscriber", "ignore"),
        ("subscriber", "dead_letter"),
        ("worker", 5),
        ("timer", "retry"),
        ("timer", Retry()),
    ],
)
def test_a_policy_that_does_not_go_with_the_kind_is_refused(kind, on_error):
    app = App()
    first = 1.0 if kind == "timer" else "tcp://127.0.0.1:1"

    with pytest.raises(p2pmsg.ConfigError, match="on_error"):
        getattr(app, kind)(first, on_error=on_error)(lambda: None)


ORIGIN = Origin(1, "p")


@pytest.mark.parametrize("seed", range(20))
def test_of_a_busy_key_only_the_newest_of_each_kind_waits(seed):
    rng, queue = Random(seed), KeyQueue()
    waiting = {key: [] for key in range(3)}  # kind and number, as they are to be taken
    busy, ready = {}, []
    for number in range(400):
        key, kind = rng.randrange(3), rng.choice([None, "a", "b"])
        replaced = queue.put((kind, number), key, None if kind is None else (kind,))
        old = [one for one in waiting[key] if kind is not None and one[0] == kind]
        assert [replaced] == (old or [None])
        if key in busy or key in ready:
            waiting[key] = [*(one for one in waiting[key] if one not in old), (kind, number)]
        else:
            ready.append(key)
        while rng.random() < 0.3 and (taken := queue.take()) is not None:
            ready.remove(taken[0])
            busy[taken[0]] = taken[1]
        if busy and rng.random() < 0.3:
            key = rng.choice([*busy])
            del busy[key]
            queue.done(key)
            if waiting[key]:
                waiting[key].pop(0)
                ready.append(key)
        every = [one for line in waiting.values() for one in line]
        assert queue.replaceable == sum(kind is not None for kind, _ in every)
        assert len(queue) == len(every) + len(ready)


def message(sequence, topic="t"):
    return Message(topic, None, 0, sequence, ORIGIN)


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_is_committed_up_to_the_first_that_is_not_done(seed):
    rng, calls = Random(seed), []
    order = InOrder(lambda: calls.append(1))
    left = [order.add(message(number, f"t{number % 2}")) for number in range(60)]
    rng.shuffle(left)
    while left:
        order.done(left.pop())
        held = 0
        for topic in ("t0", "t1"):
            own = [one.message.sequence for one in left if one.message.topic == topic]
            last = order.due.get((1, topic))
            done = min(own, default=60 + int(topic[1])) - 2
            assert (int(topic[1]) - 2 if last is None else last.sequence) == done
            held += len(range(done + 2, 60, 2))
        assert order.held == held

    assert order.held == 0
    assert order._streams == {}
    assert calls


@pytest.fixture
def threads():
    made = HandlerThreads(2)
    yield made
    made.close()


def test_no_more_run_at_once_than_there_are_threads(threads):
    both, names = threading.Barrier(2), []

    def call(number):
        names.append(threading.current_thread().name)
        both.wait(60)
        return number

    async def main():
        return await asyncio.gather(*(threads.run(lambda n=n: call(n)) for n in range(6)))

    assert asyncio.run(main()) == [*range(6)]
    assert len(set(names)) == 2
    assert all(thread.daemon for thread in threading.enumerate() if thread.name in names)


def test_an_errors_text_can_always_be_packed():
    """Names of files may have characters that UTF-8 has not."""
    letter = letter_of(Event("timer", "on"), OSError("no \udcff.txt"))

    assert letter["error"] == "OSError: no ?.txt"
    codec.make_encoder().encode(letter)


def test_of_a_long_text_the_beginning_is_kept():
    letter = letter_of(Event("timer", "on"), OSError("x" * 20_000))

    assert letter["error"] == f"OSError: {'x' * 16_375} … (20009 characters)"
