"""Error policies: their limits, and what goes with which kind of event."""

import pytest

import p2pmsg
from p2pmsg.app import App, DeadLetter, Retry


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
