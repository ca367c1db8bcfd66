"""A worker takes turns until it is stopped; a notifier wakes waiters wherever Ctrl-C strikes."""

import logging
import signal
import threading
from random import Random

import pytest

import transports
from p2pmsg.sync.worker import Notifier, Worker
from tests.unit.raising_log import raising_log

DEADLINE_S = 60.0


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


@pytest.mark.parametrize("how", ["filter", "handler"])
def test_it_goes_on_where_the_applications_log_raises(make_worker, how):
    turns = threading.Semaphore(0)

    def fail():
        turns.release()
        raise ValueError("once more")

    with raising_log(how):
        worker = make_worker(fail)
        for _ in range(2):
            worker.wake()
            assert turns.acquire(timeout=DEADLINE_S)
        assert worker.thread.is_alive()
        worker.stop()


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


def test_no_wake_is_lost_while_others_wake(make_worker):
    wanted, done = [0] * 4, [0] * 4
    changed = threading.Condition()

    def turn():
        seen = list(wanted)
        with changed:
            done[:] = seen
            changed.notify_all()

    worker = make_worker(turn)

    def ask(number):
        for turns in range(1, 301):
            wanted[number] = turns
            worker.wake()
            with changed:  # a wake that is lost costs DEADLINE_S, and then this fails
                seen = changed.wait_for(lambda turns=turns: done[number] >= turns, DEADLINE_S / 2)
            if not seen:
                return

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == [300] * 4


class Struck(Exception):
    pass


def strike(signum, frame):
    raise Struck


@pytest.fixture
def alarm():
    before = signal.signal(signal.SIGALRM, strike)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_at_any_place_loses_no_wake(alarm, make_worker):
    turns, rng, struck = threading.Semaphore(0), Random(1), 0
    worker = make_worker(turns.release)
    for turn in range(100_000):
        if turn >= 1000 and struck > 30:
            break
        try:
            alarm(rng.uniform(1e-6, 30e-6))
            for _ in range(5):
                worker.wake()
            alarm(0)
        except Struck:
            struck += 1
        finally:
            alarm(0)
    assert struck > 30
    while turns.acquire(timeout=0.05):
        pass
    worker.wake()
    assert turns.acquire(timeout=DEADLINE_S)


def test_an_interrupt_at_any_place_lets_the_others_go_on(alarm):
    notifier, rng = Notifier(), Random(1)
    struck = 0
    for _ in range(3000):
        try:
            alarm(rng.uniform(1e-6, 60e-6))
            notifier.wait_for(lambda: False, 0.001)
            alarm(0)
        except Struck:
            struck += 1
    alarm(0)
    assert struck > 100

    notifying = threading.Thread(target=notifier.notify, daemon=True)
    notifying.start()
    notifying.join(5)
    assert not notifying.is_alive()
