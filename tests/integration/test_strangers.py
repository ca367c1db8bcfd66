"""What is said of endpoints where no p2pmsg peer answers: plain ZeroMQ, other protocols, nobody."""

import http.server
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq

import p2pmsg
from p2pmsg import statsd, unanswered, wire
from tests.endpoints import lasting_endpoint
from tests.integration.inside import subscriber_of
from tests.integration.peers import LOOPBACK, eventually
from transports import diagnosis, parse_endpoint
from transports.diagnosis import describe_peer


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Check after a tenth of a second instead of five, and again soon."""
    monkeypatch.setattr(unanswered, "FIRST_NS", 100_000_000)
    monkeypatch.setattr(unanswered, "AGAIN_NS", 100_000_000)
    monkeypatch.setattr(diagnosis, "READ_S", 1.0)


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


@pytest.fixture
def web():
    """Make a server of http.server."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"tcp://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def stranger(request, plain, server):
    """Make what a name says; returns its endpoint and the words that are said of it."""

    def make(name):
        if hasattr(zmq, name):
            return plain(getattr(zmq, name))[1], f"a ZeroMQ {name} socket is there"
        if name == "nng":
            return server(b"\0SP\0\0\x20\0\0"), "nanomsg or nng"
        if name == "closed":
            return lasting_endpoint(), "nobody is there"
        if name == "silent":
            return server(b""), "says nothing"
        return request.getfixturevalue(name), "says nothing"

    return make


def in_threads(read):
    """Make of something that is done with one endpoint what is done with many."""

    def with_all(endpoints):
        with ThreadPoolExecutor(len(endpoints)) as pool:
            return dict(zip(endpoints, pool.map(read, endpoints), strict=True))

    with_all.__name__ = read.__name__
    return with_all


@in_threads
def reads_heads(endpoint):
    with p2pmsg.reader.RangeReader(endpoint, timeout=WAIT_S) as reader:
        with pytest.raises(TimeoutError) as raised:
            reader.heads()
        return str(raised.value)


@in_threads
def asks(endpoint):
    with p2pmsg.Requester(endpoint) as requester:
        with pytest.raises(TimeoutError) as raised:
            requester.request("t", timeout=WAIT_S, attempts_max=1)
        assert [*requester.stats().unanswered] == [endpoint]
        return str(raised.value)


def watches_heads(endpoints):
    with p2pmsg.reader.HeadsWatch(endpoints) as watch:
        eventually(lambda: all(view.unanswered for view in watch.heads().values()))
        return {at: view.unanswered for at, view in watch.heads().items()}


def found_of_lines(subscriber, endpoints):
    def found():
        return {line.endpoint: line.found for line in subscriber.stats().lines}

    eventually(lambda: all(found().values()))
    return found()


def subscribes(endpoints):
    with p2pmsg.Subscriber(endpoints) as subscriber:
        return found_of_lines(subscriber, endpoints)


def collects(endpoints):
    with statsd.Collector("udp://127.0.0.1:0", exact=endpoints) as collector:
        return found_of_lines(subscriber_of(collector), endpoints)


def relays(endpoints):
    with p2pmsg.Relay(endpoints, LOOPBACK) as relay:
        eventually(lambda: len(relay.stats().unanswered) == len(endpoints))
        return relay.stats().unanswered


def pulls(endpoints):
    with p2pmsg.Puller(endpoints) as puller:
        eventually(lambda: len(puller.stats().unanswered) == len(endpoints))
        return puller.stats().unanswered


CLIENTS = [
    subscribes, relays, collects, pulls, watches_heads, reads_heads,
    asks,
]  # fmt: skip
PEERS = ["PUB", "PUSH", "ROUTER", "nng", "web", "closed", "silent"]
WAIT_S = 5.0


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
def test_whatever_is_there_is_named_once(stranger, caplog, client):
    caplog.set_level(logging.WARNING, "p2pmsg")
    words = dict(map(stranger, PEERS))
    said = client([*words])
    for endpoint, expected in words.items():
        assert expected in said[endpoint]
        warned(caplog, endpoint, expected)


def warnings(caplog, endpoint):
    """Return what was logged of an endpoint, except for a connection that is made again.

    That is another matter: a requester says it where what is there broke ZeroMQ's protocol before
    it asked, which is a matter of microseconds.
    """
    texts = [r.getMessage() for r in caplog.records if endpoint in r.getMessage()]
    return [text for text in texts if "the connection is made again" not in text]


def warned(caplog, endpoint, found):
    """Wait for the warning, which is logged a little after it stands in `stats()`."""
    eventually(lambda: warnings(caplog, endpoint))
    (text,) = warnings(caplog, endpoint)
    assert found in text


def send_until(publisher, frame, subscriber, is_so):
    """Send it again and again: it may take a while until they are connected."""

    def sent():
        publisher.send(frame)
        with pytest.raises(TimeoutError):
            subscriber.receive(timeout=0.01)
        return is_so(subscriber.stats())

    eventually(sent)


@pytest.mark.parametrize("topics", [None, ["a"]])
def test_a_plain_pub_is_named(plain, caplog, topics):
    publisher, endpoint = plain(zmq.PUB)
    with p2pmsg.Subscriber(endpoint, topics=topics) as subscriber:
        found = "PUB" if topics else "frames that are not p2pmsg's"
        send_until(publisher, b"hello", subscriber, lambda stats: found in stats.lines[0].found)
        eventually(lambda: "a ZeroMQ PUB socket is there" in warnings(caplog, endpoint)[-1])
        (line,) = subscriber.stats().lines
        assert "PUB" in line.found
        assert topics or line.frames_invalid > 0


def test_a_publisher_of_another_wire_version_is_refused_by_name(plain, caplog):
    publisher, endpoint = plain(zmq.PUB)
    with p2pmsg.Subscriber(endpoint) as subscriber:
        frame = bytearray(wire.control_frame(wire.Kind.HEARTBEAT, 7, [0, 0, 0], topic=b"t"))
        frame[4] = 2
        found = "or not of wire version 1, come from it"
        send_until(publisher, frame, subscriber, lambda stats: found in stats.lines[0].found)
        eventually(lambda: found in warnings(caplog, endpoint)[-1])
        assert subscriber.stats().frames_invalid["version"] > 0


def test_nobody_there_is_said_and_taken_back_once_somebody_is(caplog, tmp_path):
    endpoint = f"ipc://{tmp_path}/feed"
    with p2pmsg.Subscriber(endpoint) as subscriber:
        warned(caplog, endpoint, "nobody is there")
        with p2pmsg.Publisher(endpoint) as publisher:
            publisher.wait_for_subscribers(1, timeout=60)
            eventually(lambda: not subscriber.stats().lines[0].found)
    assert len(warnings(caplog, endpoint)) == 1


def test_looking_is_no_connection_to_the_peer():
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        found = describe_peer(parse_endpoint(publisher.endpoint))
        assert found == "a ZeroMQ XPUB socket is there"
        assert publisher.stats().subscribers == 0
        with p2pmsg.Subscriber(publisher.endpoint, start="earliest") as subscriber:
            publisher.wait_for_subscribers(1, timeout=60)
            publisher.publish("t", 1)
            assert subscriber.receive(timeout=60).value == 1
