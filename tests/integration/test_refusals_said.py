"""Who is refused at a bound is counted, and said: the first one at once, then once a minute."""

import contextlib
import resource
import socket
import time

import pytest
import zmq

import p2pmsg
from tests.integration.inside import core_of
from tests.integration.peers import LOOPBACK, eventually
from transports import context
from transports.connections import Connections


@pytest.fixture
def bound():
    shared = context()
    made = shared.socket(zmq.PUB)
    counted = Connections(made, shared, connections_max=2, subscriptions_max=10)
    made.bind("tcp://127.0.0.1:*")
    yield counted, made.get(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
    counted.close()
    made.close(linger=0)


def connect(stack, endpoint, count):
    host, _, port = endpoint.removeprefix("tcp://").partition(":")
    for _ in range(count):
        stack.enter_context(socket.create_connection((host, int(port))))


def test_refused_connections_are_said_with_endpoint_limit_and_count(bound, caplog, monkeypatch):
    counted, endpoint = bound

    def refused(count):
        counted.update()
        return counted.refused == count

    with contextlib.ExitStack() as stack:
        connect(stack, endpoint, 3)
        eventually(lambda: refused(1))
        (said,) = caplog.records
        assert said.levelname == "WARNING"
        assert endpoint in said.message
        assert "1, since there are 2 already" in said.message
        connect(stack, endpoint, 4)
        eventually(lambda: refused(5))
        assert len(caplog.records) == 1  # a minute has not passed
        in_a_minute_ns = time.monotonic_ns() + 60_000_000_000
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic_ns", lambda: in_a_minute_ns)
            counted.update()
        assert len(caplog.records) == 2
        assert "4, since" in caplog.records[1].message
        counted.update()
        assert len(caplog.records) == 2


def test_descriptors_that_are_kept_are_named(bound, caplog, monkeypatch):
    counted, endpoint = bound
    monkeypatch.setattr(resource, "getrlimit", lambda _: (66, 66))
    with contextlib.ExitStack() as stack:
        connect(stack, endpoint, 1)
        eventually(lambda: counted.update() or counted.refused)
    assert "open files are kept for all else (ulimit -n)" in caplog.text


def test_one_that_subscribes_to_too_much_is_said(bound, caplog):
    counted, endpoint = bound
    with contextlib.ExitStack() as stack:
        connect(stack, endpoint, 1)
        eventually(lambda: counted.update() or len(counted))
        (fd,) = counted._open
        for number in range(11):
            counted.subscribed(fd, b"%d" % number)
        counted.update()
    assert counted.oversubscribed == 1
    assert "one may have 10 subscriptions" in caplog.text


def test_a_relay_says_what_it_does_not_take_on(make_publisher, opened, caplog):
    publisher = make_publisher()
    for number in range(6):
        publisher.publish(f"t{number}", 1)
    config = p2pmsg.PublisherConfig(streams_max=3)
    relay = opened.enter_context(p2pmsg.Relay(publisher.endpoint, LOOPBACK, config=config))
    eventually(lambda: relay.stats().streams_refused >= 3)
    eventually(lambda: "streams than 3: refused" in caplog.text)
    assert caplog.text.count("takes on no more") == 1


@pytest.fixture
def small_pusher(make_pusher):
    queue = p2pmsg.QueueConfig(workers_max=1, ack_timeout_ms=200)
    return make_pusher(config=p2pmsg.PusherConfig(queue=queue))


def test_a_pusher_says_that_it_takes_on_no_more_workers(small_pusher, make_puller, caplog):
    for _ in range(2):
        make_puller(small_pusher.endpoint)
    eventually(lambda: "takes on no more workers than 1" in caplog.text)


def test_a_pusher_says_that_it_takes_on_no_more_connections(small_pusher, caplog):
    core_of(small_pusher).invalid["peers"] = 1  # as when each of them has joined
    eventually(lambda: "may become one, than 2" in caplog.text)
