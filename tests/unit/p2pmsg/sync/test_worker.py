"""A worker takes turns until it is stopped, and goes on after an exception."""

import logging
import threading

import pytest

import transports
from p2pmsg.sync.worker import Worker

DEADLINE_S = 10.0


@pytest.fixture
def make_worker():
    """Return a worker that waits in its turns until it is woken."""
    made = []

    def make(turn, **options):
        def wait_and_turn():
            worker.rest(DEADLINE_S)
            turn()

        worker = Worker("worker", "the test", wait_and_turn, **options)
        made.append(worker)
        worker.start()
        return worker

    yield make
    for worker in made:
        worker.stop()


def test_a_worker_takes_a_turn_when_it_is_woken(make_worker):
    turns = threading.Semaphore(0)
    worker = make_worker(turns.release)
    for _ in range(3):
        worker.wake()
        assert turns.acquire(timeout=DEADLINE_S)
    assert not turns.acquire(timeout=0.05)


def test_it_goes_on_after_an_exception_and_logs_it(make_worker, caplog):
    turns = threading.Semaphore(0)

    def fail():
        turns.release()
        raise ValueError("once more")

    worker = make_worker(fail)
    with caplog.at_level(logging.ERROR, "p2pmsg"):
        for _ in range(2):
            worker.wake()
            assert turns.acquire(timeout=DEADLINE_S)
        worker.stop()
    assert "the test's background thread failed" in caplog.text
    assert "once more" in caplog.text


def test_it_ends_silently_when_its_sockets_are_closed(make_worker, caplog):
    ended = threading.Event()

    def closed():
        raise transports.ClosedError("its endpoint")

    worker = make_worker(closed, at_end=ended.set)
    worker.wake()
    assert ended.wait(DEADLINE_S)
    worker.thread.join(DEADLINE_S)
    assert not worker.thread.is_alive()
    assert caplog.text == ""


def test_stop_ends_the_thread_and_may_be_called_by_it(make_worker):
    worker = make_worker(lambda: worker.stop())
    worker.wake()
    worker.thread.join(DEADLINE_S)
    assert not worker.thread.is_alive()
    worker.wake()  # after the end it does nothing
    worker.stop()
