"""What signal handlers raise comes after the deferred work, and the handlers are as before."""

import os
import signal

import pytest

from transports.signals import defer_signals, interrupts_only


class Stopped(Exception):
    """What a handler of a test raises."""


def stop(number, frame):
    raise Stopped(number)


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1])
def number(request):
    before = signal.signal(request.param, stop)
    yield request.param
    signal.signal(request.param, before)


def test_a_handler_that_raises_strikes_after_the_work(number):
    done = []

    def work():
        os.kill(os.getpid(), number)
        done.append(sum(range(1000)))

    with pytest.raises(Stopped):
        defer_signals(work)
    assert done == [499_500]
    assert signal.getsignal(number) is stop


def test_what_the_work_raises_is_raised_and_the_handlers_are_back(number):
    with pytest.raises(ZeroDivisionError):
        defer_signals(lambda: 1 / 0)
    assert signal.getsignal(number) is stop


@pytest.fixture
def usual():
    """Without the handler by which pytest ends tests that take too long."""
    alarm = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, alarm)
    signal.signal(signal.SIGINT, interrupt)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_only_the_usual_ctrl_c_is_no_handler_of_the_programs_own(usual, number):
    assert [interrupts_only() for _ in range(3)] == [True] * 3
    before = signal.signal(number, stop)
    assert not interrupts_only()
    signal.signal(number, signal.SIG_IGN)
    assert interrupts_only()
    signal.signal(number, before)
    assert interrupts_only()
