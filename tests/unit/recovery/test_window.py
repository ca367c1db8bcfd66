"""How far a multicast sender may be ahead."""

from recovery import FlowWindow


def admitting(lag_bytes_max, receivers=(1, 2)):
    window = FlowWindow(lag_bytes_max)
    for receiver in receivers:
        window.admit(receiver)
    return window


def test_without_receivers_there_is_always_space():
    window = FlowWindow(1000)
    window.sent(10**12)
    assert window.space() > 10**12


def test_the_slowest_receiver_bounds_it():
    window = admitting(10**9)
    window.sent(500)
    window.acknowledge(1, 500, 500, 1000)
    window.acknowledge(2, 200, 200, 1000)
    assert window.space() == 700
    window.sent(700)
    assert window.space() == 0
    window.acknowledge(2, 1200, 1200, 1000)
    assert window.space() == 300  # the first one's turn


def test_who_has_read_but_misses_something_bounds_it_by_the_lag():
    window = admitting(600)
    window.sent(1000)
    window.acknowledge(1, 1000, 500, 10_000)
    assert window.space() == 100


def test_the_slow_are_shed_and_come_back():
    window = admitting(10**9)
    window.acknowledge(1, 0, 0, 1000)
    window.acknowledge(2, 0, 0, 5000)
    window.sent(1000)
    assert window.space() == 0
    assert window.shed_slowest() == [1]
    assert window.space() == 4000
    window.acknowledge(1, 900, 900, 1000)
    assert window.space() == 900


def test_who_was_not_admitted_is_not_waited_for():
    window = FlowWindow(10**9)
    window.sent(1000)
    for receiver in range(64):
        window.acknowledge(receiver, 0, 0, 1)
    assert window.receivers == 0
    assert window.space() > 10**12
    window.admit(7)
    assert window.receivers == 0  # until it says where it is
    window.acknowledge(7, 0, 0, 500)
    assert window.space() == -500
    window.forget(7)
    window.acknowledge(7, 0, 0, 500)
    assert window.receivers == 0
