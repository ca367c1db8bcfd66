"""Waiting for news, also where Ctrl-C strikes anywhere in it."""

import signal
import threading
import time
from random import Random

import pytest

from p2pmsg.sync.notifier import News


def test_who_waits_goes_on_with_the_news():
    news, facts = News(), []
    found = []
    waiting = [
        threading.Thread(target=lambda: found.append(news.wait_for(lambda: bool(facts), 20)))
        for _ in range(3)
    ]
    for thread in waiting:
        thread.start()
    news.tell()  # of nothing that they wait for
    time.sleep(0.01)
    assert not found
    facts.append(1)
    news.tell()
    for thread in waiting:
        thread.join(10)

    assert found == [True] * 3


def test_what_is_so_already_is_not_waited_for():
    assert News().wait_for(lambda: True, 0) is True
    assert News().wait_for(lambda: True, None) is True


def test_the_time_is_kept():
    started = time.monotonic()
    assert News().wait_for(lambda: False, 0.02) is False
    assert time.monotonic() - started >= 0.02


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


def test_an_interrupt_at_any_place_lets_the_others_go_on(alarm):
    news, rng = News(), Random(1)
    struck = 0
    for _ in range(3000):
        try:
            alarm(rng.uniform(1e-6, 60e-6))
            news.wait_for(lambda: False, 0.001)
            alarm(0)
        except Struck:
            struck += 1
    alarm(0)
    assert struck > 100

    telling = threading.Thread(target=news.tell, daemon=True)
    telling.start()
    telling.join(5)
    assert not telling.is_alive()
