"""Which connections are made again."""

import pytest

from p2pmsg.subscriber.connections import DEAF_NS, UNKNOWN_NS, Connection, ConnectionMonitor

TIMEOUT_NS = 5_000_000_000


@pytest.fixture
def one():
    return Connection()


@pytest.fixture
def monitor(one):
    return ConnectionMonitor([one], TIMEOUT_NS)


def test_a_silent_connection_is_made_again_once(monitor, one):
    assert not monitor.is_broken(one, None, TIMEOUT_NS)
    assert monitor.is_broken(one, None, TIMEOUT_NS + 1)
    assert not monitor.is_broken(one, None, TIMEOUT_NS + 2)
    assert not one.is_heard
    one.heard_ns = TIMEOUT_NS + 3
    assert one.is_heard


def test_one_that_brings_what_nobody_announced_is_made_again_and_believed(monitor, one):
    one.unknown_ns = 0
    assert monitor.is_broken(one, None, UNKNOWN_NS + 1)
    assert one.distrusted
    assert one.unknown_ns is None
    assert one.is_heard


def test_one_whose_publisher_does_not_answer_is_made_again(monitor, one):
    assert not monitor.is_broken(one, 0, DEAF_NS)
    assert monitor.is_broken(one, 0, DEAF_NS + 1)


def test_one_that_is_refused_is_left_alone(monitor, one):
    one.refused_until_ns = 2 * TIMEOUT_NS
    assert not monitor.is_broken(one, None, TIMEOUT_NS + 1)


def test_a_time_in_which_nothing_was_read_does_not_count(monitor, one):
    monitor.excuse_silence(TIMEOUT_NS)
    assert not monitor.is_broken(one, None, TIMEOUT_NS + 1)


def test_a_time_in_which_the_process_was_stopped_does_not_count(monitor, one):
    one.heard_ns = 10
    monitor.note_stopped(TIMEOUT_NS, TIMEOUT_NS)
    assert one.heard_ns == TIMEOUT_NS  # not in the future
    assert not monitor.is_broken(one, None, TIMEOUT_NS + 1)


def test_to_be_made_again_is_not_to_be_heard(monitor, one):
    """NACKs without an answer have it made again, each time before its silence is too long."""
    for tries in range(1, 4):
        asked_ns = (tries - 1) * (DEAF_NS + 2)
        assert monitor.is_broken(one, asked_ns, asked_ns + DEAF_NS + 1)
    assert not one.is_heard
    monitor.is_broken(one, None, 2 * TIMEOUT_NS)
    assert one.was_heard_ns == 0


@pytest.mark.parametrize("excuse", ["excuse_silence", "note_stopped"])
def test_a_silent_one_is_not_heard_because_nothing_was_read(monitor, one, excuse):
    assert monitor.is_broken(one, None, TIMEOUT_NS + 1)
    now_ns = TIMEOUT_NS + 2
    if excuse == "excuse_silence":
        monitor.excuse_silence(now_ns)
    else:
        monitor.note_stopped(TIMEOUT_NS, now_ns)
    assert not one.is_heard
    one.heard_ns = now_ns
    assert one.is_heard
