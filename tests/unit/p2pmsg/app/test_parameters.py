"""A handler's parameters: what fills them, and what is refused when it is registered."""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import p2pmsg
from p2pmsg.app import App, Event, Request
from p2pmsg.app.parameters import name_of, plan
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
