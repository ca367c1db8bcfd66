"""What is said of endpoints where no p2pmsg peer answers: plain ZeroMQ, other protocols, nobody."""

import logging
import socket
import threading

import pytest
import zmq

import p2pmsg
from p2pmsg.sync import unanswered
from tests.integration.peers import LOOPBACK, eventually
from transports import describe_peer, parse_endpoint


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Look after a third of a second instead of five, and again soon."""
    monkeypatch.setattr(unanswered, "FIRST_NS", 300_000_000)
    monkeypatch.setattr(unanswered, "AGAIN_NS", 300_000_000)


@pytest.fixture
def plain():
    """Make a plain ZeroMQ socket that is bound; returns it and its endpoint."""
    context = zmq.Context()
    sockets = []

    def make(kind):
        made = context.socket(kind)
        sockets.append(made)
        made.bind("tcp://127.0.0.1:*")
        return made, made.getsockopt_string(zmq.LAST_ENDPOINT)

    yield make
    for one in sockets:
        one.close(linger=0)
    context.term()


@pytest.fixture
def server():
    """Make a TCP server that sends some bytes to each connection; returns its endpoint."""
    listeners, taken = [], []

    def make(first):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve():
            while True:
                try:
                    one, _ = listener.accept()
                    taken.append(one)
                    one.sendall(first)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    yield make
    for one in (*listeners, *taken):
        one.close()


def warnings(caplog, endpoint):
    return [r.getMessage() for r in caplog.records if endpoint in r.getMessage()]


def warned(caplog, endpoint, found):
    """Wait for the warning, see that it comes once, and that it is what stands in `stats()`."""
    caplog.set_level(logging.WARNING, "p2pmsg")
    eventually(lambda: warnings(caplog, endpoint))
    (text,) = warnings(caplog, endpoint)
    assert found in text


@pytest.mark.parametrize("topics", [None, ["a"]])
def test_a_plain_pub_is_named(plain, caplog, topics):
    publisher, endpoint = plain(zmq.PUB)
    with p2pmsg.Subscriber(endpoint, topics=topics) as subscriber:
        for _ in range(100):
            publisher.send(b"hello")
            with pytest.raises(TimeoutError):
                subscriber.receive(timeout=0.01)
        warned(caplog, endpoint, "a ZeroMQ PUB socket is there")
        (line,) = subscriber.stats().lines
        assert "PUB" in line.found
        if topics is None:
            assert line.frames_invalid > 0
            assert "frames that are not p2pmsg's" in line.found


STRANGERS = {
    "nng": (b"\0SP\0\0\x20\0\0", "nanomsg or nng"),
    "ssh": (b"SSH-2.0-OpenSSH_9.6\r\n", "another protocol: b'SSH-2.0-OpenSSH"),
    "http, which waits": (b"", "says nothing"),
}


@pytest.mark.parametrize(("first", "found"), STRANGERS.values(), ids=STRANGERS)
def test_another_protocol_is_named(server, caplog, first, found):
    endpoint = server(first)
    with p2pmsg.Subscriber(endpoint):
        warned(caplog, endpoint, found)


def test_a_plain_push_is_named_to_a_puller(plain, caplog):
    _, endpoint = plain(zmq.PUSH)
    with p2pmsg.Puller(endpoint) as puller:
        warned(caplog, endpoint, "a ZeroMQ PUSH socket is there")
        assert "PUSH" in puller.stats().unanswered[endpoint]


def test_nobody_there_is_said_and_taken_back_once_somebody_is(caplog, tmp_path):
    endpoint = f"ipc://{tmp_path}/feed"
    with p2pmsg.Subscriber(endpoint) as subscriber:
        warned(caplog, endpoint, "nobody is there")
        with p2pmsg.Publisher(endpoint) as publisher:
            publisher.wait_for_subscribers(1, timeout=10)
            eventually(lambda: not subscriber.stats().lines[0].found)
    assert len(warnings(caplog, endpoint)) == 1


def test_a_publisher_that_answers_is_not_spoken_of(caplog):
    with (
        p2pmsg.Publisher(LOOPBACK) as publisher,
        p2pmsg.Subscriber(publisher.endpoint) as subscriber,
    ):
        publisher.wait_for_subscribers(1, timeout=10)
        with pytest.raises(TimeoutError):
            subscriber.receive(timeout=0.7)
        assert subscriber.stats().lines[0].found == ""
        assert warnings(caplog, publisher.endpoint) == []


def test_looking_is_no_connection_to_the_peer():
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        found = describe_peer(parse_endpoint(publisher.endpoint))
        assert found == "a ZeroMQ XPUB socket is there"
        assert publisher.stats().subscribers == 0
        with p2pmsg.Subscriber(publisher.endpoint, start="earliest") as subscriber:
            publisher.wait_for_subscribers(1, timeout=10)
            publisher.publish("t", 1)
            assert subscriber.receive(timeout=10).value == 1


def test_a_host_that_is_unknown_is_said():
    assert "unknown" in describe_peer(parse_endpoint("tcp://no.such.host.invalid:1"))
