"""Bridges with keys: at p2pmsg's end, and at a plain ZeroMQ end that speaks CURVE."""

import logging

import pytest
import zmq
import zmq.utils.z85 as z85

from p2pmsg import Bridge, Publisher, Puller, Pusher, Subscriber
from p2pmsg.errors import AuthenticationError, ConfigError
from tests.integration.peers import DEADLINE_S, LOOPBACK, eventually, place_of

BIND = "127.0.0.1:0?bind=1"
PLACE = f"tcp://127.0.0.1:1?key={'A' * 43}"


@pytest.fixture
def plain():
    """Make a raw ZeroMQ socket: with a server's public key and its own pair, or without keys."""
    context = zmq.Context()
    kept = []

    def make(kind, endpoint="tcp://127.0.0.1:*", server=None, keys=None):
        made = context.socket(kind)
        kept.append(made)
        made.set(zmq.LINGER, 0)
        made.set(zmq.RCVTIMEO, int(DEADLINE_S * 1000))
        if kind == zmq.SUB:
            made.subscribe(b"")
        if keys is not None:
            made.curve_secretkey, made.curve_publickey = map(z85.encode, (keys.secret, keys.public))
        if server is not None:
            made.curve_serverkey = z85.encode(server.public)
            made.connect(endpoint)
        elif keys is not None:
            made.curve_server = True
            made.bind(endpoint)
        else:
            made.connect(endpoint)
        return made

    yield make
    context.destroy(linger=0)


def test_queues_and_requests_with_keys(peers, plain):
    server, own = peers.security("server", "bridge"), peers.security("bridge", "server")
    with Pusher(LOOPBACK, security=server) as pusher:
        source = peers.pinned(pusher.endpoint, "server")
        with Bridge(source, f"zmq+push://{BIND}", security=own) as bridge:
            pull = plain(zmq.PULL, place_of(bridge.target))
            pusher.push(b"job")
            assert pull.recv() == b"job"
            pusher.join(DEADLINE_S)
    with Bridge(f"zmq+pull://{BIND}", LOOPBACK, security=own) as bridge:
        push = plain(zmq.PUSH, place_of(bridge.source))
        push.send(b"job")
        with Puller(peers.pinned(bridge.endpoint, "bridge"), security=server) as puller:
            with puller.receive(DEADLINE_S) as job:
                assert job.value == b"job"


@pytest.mark.parametrize("pins", [True, False])
def test_a_plain_end_connects_with_keys(peers, plain, pins):
    """Its key is in the endpoint, or in the file of known peers."""
    own = peers.security("bridge", "pub")
    pub = plain(zmq.XPUB, keys=peers.keys["pub"])
    place = pub.getsockopt_string(zmq.LAST_ENDPOINT)
    option = f"key={peers.text('pub')}"
    if not pins:
        own.known.add("pub", peers.text("pub"), [place])
        option = "curve=1"
    with Bridge(f"zmq+sub+{place}?{option}", LOOPBACK, security=own) as bridge:
        assert pub.recv() == b"\1"
        with Subscriber(
            peers.pinned(bridge.endpoint, "bridge"), start="earliest", security=own
        ) as subscriber:
            pub.send_multipart([b"t", b"value"])
            assert subscriber.receive(DEADLINE_S).value == b"value"
        assert bridge.stats().unanswered == ""


def test_a_plain_end_binds_for_known_peers_only(peers, plain, caplog):
    own = peers.security("bridge", "push")
    peers.security("stranger")
    with Bridge(f"zmq+pull://{BIND}&curve=1", LOOPBACK, security=own) as bridge:
        assert bridge.source.endswith("?bind=1&curve=1")
        place, server = place_of(bridge.source), peers.keys["bridge"]
        for keys in ({}, {"server": server, "keys": peers.keys["stranger"]}):
            plain(zmq.PUSH, place, **keys).send(b"secret")
        eventually(lambda: bridge.stats().connections_refused)
        plain(zmq.PUSH, place, server, peers.keys["push"]).send(b"job")
        with Puller(peers.pinned(bridge.endpoint, "bridge"), security=own) as puller:
            with puller.receive(DEADLINE_S) as job:
                assert job.value == b"job"
        assert bridge.stats().received == 1
    assert "not among the known peers" in caplog.text


def test_a_plain_end_that_is_refused_says_so_and_heals(peers, plain, caplog):
    """The sender's key is another one than the file says, until that is put right."""
    own = peers.security("bridge", "pub")
    peers.security("other")
    pub = plain(zmq.XPUB, keys=peers.keys["pub"])
    place = pub.getsockopt_string(zmq.LAST_ENDPOINT)
    own.known.add("other", peers.text("other"), [place])
    with Bridge(f"zmq+sub+{place}?curve=1", LOOPBACK, security=own) as bridge:
        eventually(lambda: "does not hold the pinned key" in bridge.stats().unanswered)
        own.known.remove("other")
        own.known.add("pub", peers.text("pub"), [place])
        assert pub.recv() == b"\1"
        eventually(lambda: bridge.stats().unanswered == "")
    assert "does not hold the pinned key" in caplog.text
    assert "part_bytes_max" not in caplog.text


def test_our_end_that_is_refused_says_so_and_heals(peers, plain, caplog):
    security, own = peers.security("pub"), peers.security("bridge")
    with Publisher(LOOPBACK, security=security) as publisher:
        publisher.publish("t", b"value")
        source = f"stream+{peers.pinned(publisher.endpoint, 'pub')}"
        with Bridge(source, f"zmq+push://{BIND}", start="earliest", security=own) as bridge:
            pull = plain(zmq.PULL, place_of(bridge.target))
            eventually(lambda: "does not admit our key" in caplog.text)
            security.known.add("bridge", peers.text("bridge"))
            assert pull.recv() == b"value"
    assert not any(record.levelno >= logging.ERROR for record in caplog.records)


@pytest.mark.parametrize(
    ("source", "target", "error", "reason"),
    [
        (PLACE, f"zmq+push://{BIND}", ConfigError, "security must be given where an endpoint pins"),
        (f"zmq+sub+{PLACE}", LOOPBACK, ConfigError, "security must be given where the source has"),
        (LOOPBACK, f"zmq+pub://{BIND}&curve=1", ConfigError, "security must be given where the t"),
        (f"sp+sub://{BIND}&curve=1", LOOPBACK, ConfigError, "nanomsg and nng have no CURVE"),
        (f"sp+sub+{PLACE}", LOOPBACK, ConfigError, "nanomsg and nng have no CURVE"),
        (f"zmq+sub+{PLACE}&bind=1", LOOPBACK, ConfigError, "what binds says curve=1"),
        ("zmq+sub://h:1?key=secret", LOOPBACK, ConfigError, "43 characters of base64url"),
        ("zmq+sub://h:1?curve=2", LOOPBACK, ConfigError, "unknown option 'curve=2'"),
        ("zmq+sub+inproc://x?curve=1", LOOPBACK, ConfigError, "takes no keys"),
    ],
)
def test_what_cannot_be_is_refused_by_name(source, target, error, reason):
    with pytest.raises(error, match=reason):
        Bridge(source, target)


def test_a_plain_end_without_a_pinned_key_is_refused(peers):
    with pytest.raises(AuthenticationError, match="no key is pinned"):
        Bridge("zmq+sub://127.0.0.1:1?curve=1", LOOPBACK, security=peers.security("bridge"))
