"""Handlers of an `App` whose annotations say the type of a job's value."""

import pytest

import p2pmsg
from p2pmsg.app import App, DeadLetter
from tests.integration.test_app import FAST, Trade, serve


@pytest.fixture
def app():
    return App(stop_timeout=10.0)


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


def test_a_worker_acknowledges_each_job(app):
    with pytest.raises(p2pmsg.ConfigError, match="acknowledge"):
        app.worker("tcp://127.0.0.1:1", acknowledge="batch")
