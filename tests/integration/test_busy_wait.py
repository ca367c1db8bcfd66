"""Who takes turns with another waits awake, and who only consumes sleeps; over real sockets."""

import threading
from contextlib import contextmanager
from threading import get_ident

import pytest

import p2pmsg
from tests.integration.peers import DEADLINE_S, LOOPBACK, TOPIC, check_ledger
from transports import busy_wait

TRIPS_MAX = 2000
EAGER = p2pmsg.SubscriberConfig(busy_wait_us=1000)


@pytest.fixture
def looks(monkeypatch):
    """Give a set that gets each thread that looks for an answer."""
    threads, make = set(), busy_wait.BusyWait.__init__

    def counted(self, window_us, has_come, **options):
        make(self, window_us, lambda: threads.add(get_ident()) or has_come(), **options)

    monkeypatch.setattr(busy_wait.BusyWait, "__init__", counted)
    return threads


@contextmanager
def echoing(there, back):
    """Publish what comes in `there` on `back`, in a thread."""

    def echo():
        for message in there:
            back.publish(TOPIC, message.value)

    thread = threading.Thread(target=echo)
    thread.start()
    yield
    there.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


@pytest.fixture
def open_ends(make_publisher, make_subscriber):
    """Give a function that makes a publisher and its subscriber, with a config."""

    def make(config):
        publisher = make_publisher()
        return publisher, make_subscriber(publisher.endpoint, joins=publisher, config=config)

    return make


@pytest.mark.parametrize("how", ["receive", "iterate"])
def test_two_that_take_turns_look_for_the_answer(looks, open_ends, how):
    there, echo = open_ends(None)
    back, subscriber = open_ends(EAGER)
    messages, trips = iter(subscriber), 0
    with echoing(echo, back):
        # On a busy machine an answer may take its time.
        while get_ident() not in looks and trips < TRIPS_MAX:
            there.publish(TOPIC, trips)
            message = subscriber.receive(DEADLINE_S) if how == "receive" else next(messages)
            assert (message.sequence, message.value) == (trips, trips)
            trips += 1
    assert get_ident() in looks
    check_ledger(subscriber, delivered=trips)


@pytest.mark.parametrize("how", ["consume", "switched off"])
def test_who_only_consumes_never_looks_nor_does_anybody_where_it_is_switched_off(
    looks, open_ends, how
):
    off = p2pmsg.SubscriberConfig(busy_wait_us=0)
    publisher, subscriber = open_ends(off if how == "switched off" else EAGER)
    for number in range(200):
        publisher.publish(TOPIC, number)
        busy_wait.TURN.is_theirs = how == "switched off"  # the publisher is another process's
        assert subscriber.receive(DEADLINE_S).value == number
    assert not looks
    check_ledger(subscriber, delivered=200)


@pytest.mark.parametrize("busy_wait_us", [1000, 0])
def test_a_requester_and_its_responder_look_unless_it_is_switched_off(
    looks, opened, busy_wait_us
):
    responder = opened.enter_context(
        p2pmsg.Responder(LOOPBACK, {TOPIC: lambda value: value}, busy_wait_us=busy_wait_us)
    )
    requester = opened.enter_context(
        p2pmsg.Requester(responder.endpoint, busy_wait_us=busy_wait_us)
    )
    responder.start()
    trips = 0
    while trips < TRIPS_MAX and len(looks) < 2:
        assert requester.request(TOPIC, trips) == trips
        trips += 1
        if trips == 200 and not busy_wait_us:
            break
    assert get_ident() in looks or not busy_wait_us
    assert len(looks) == (2 if busy_wait_us else 0)  # the responder's thread and this one
