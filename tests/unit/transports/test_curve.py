"""Keys: who is admitted to a socket that binds, and what the others get to see of it."""

import logging

import pytest

from tests.unit.transports.sockets import LOOPBACK, eventually, socket_opener
from transports import (
    EndpointError,
    ZmqReceiver,
    ZmqRecoveryClient,
    ZmqRecoveryServer,
    ZmqSender,
    parse_endpoint,
)
from transports.curve import CurveClient, CurveKeys, CurveServer, fingerprint, key_text, parse_key

SERVER, CLIENT, STRANGER = CurveKeys.new(), CurveKeys.new(), CurveKeys.new()


class Admitted:
    """A set of keys, by which a server admits."""

    def __init__(self, *keys):
        self.publics = {one.public for one in keys}

    def __call__(self, public):
        return key_text(public) if public in self.publics else None


@pytest.fixture
def opened():
    with socket_opener() as open_socket:
        yield open_socket


def server_of(*keys):
    return CurveServer(SERVER, Admitted(*keys))


def client_of(keys=CLIENT, server=SERVER):
    return CurveClient(keys, server.public)


def request(client, server, frame=b"request"):
    """Send until it is answered, as libzmq drops what is sent without a connection."""

    def received():
        client.check()
        client.send(frame)
        return server.receive()

    return eventually(received)


def test_a_socket_with_keys_says_once_that_its_connection_has_returned(opened):
    server = opened(ZmqRecoveryServer, LOOPBACK, curve=server_of(CLIENT))
    client = opened(ZmqRecoveryClient, server.endpoint, curve=client_of())
    client.connect()
    assert request(client, server)
    assert not client.has_returned()
    client.reconnect()
    eventually(lambda: (client.check(), client.has_returned())[1])
    assert not client.has_returned()


def test_keys_show_their_fingerprint_only():
    secret = key_text(SERVER.secret)
    shown = f"{SERVER!r} {SERVER} {server_of()!r} {client_of()!r}"
    assert fingerprint(SERVER.public) in shown
    assert secret not in shown
    assert repr(SERVER.secret) not in shown
    assert len(fingerprint(SERVER.public)) == 16
    assert CurveKeys.of_secret(SERVER.secret) == SERVER
    assert parse_key(key_text(SERVER.public)) == SERVER.public


@pytest.mark.parametrize("text", ["", "a" * 42, "a" * 44, "a" * 42 + "B", "a" * 42 + "=", "ä" * 43])
def test_what_is_no_key_is_refused_and_not_shown(text):
    with pytest.raises(ValueError, match="43 characters") as caught:
        parse_key(text)
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    "option", ["key=abc", "key=", "kex=" + "a" * 43, "key=" + "a" * 43 + "&key=" + "a" * 43]
)
def test_a_pinned_key_that_is_none_is_refused(option):
    for place in ("tcp://prices:5556", "ipc:///run/feed"):
        if place.startswith("ipc") and not option.startswith("key"):
            continue  # there, it is part of the path
        with pytest.raises(EndpointError, match=r"option|key") as caught:
            parse_endpoint(f"{place}?{option}")
        assert caught.value.part == "option"


def test_keys_are_for_one_side_each(opened):
    with pytest.raises(ValueError, match="binds is a CurveServer"):
        opened(ZmqSender, LOOPBACK, curve=client_of())
    with pytest.raises(ValueError, match="connects is a CurveClient"):
        opened(ZmqReceiver, "tcp://127.0.0.1:9", curve=server_of())
    with pytest.raises(EndpointError, match="inproc:// stays within the process"):
        opened(ZmqSender, "inproc://keys", curve=server_of())
    with pytest.raises(EndpointError, match="a key is pinned where one connects"):
        opened(ZmqSender, f"tcp://127.0.0.1:0?key={key_text(SERVER.public)}")


def test_an_admission_that_raises_refuses_one_connection_and_no_other(opened, caplog):
    def admits(public):
        if public == STRANGER.public:
            raise OSError("the file is away")
        return "x" * 256 if public == SERVER.public else "known"

    server = opened(ZmqRecoveryServer, LOOPBACK, curve=CurveServer(SERVER, admits))
    with caplog.at_level(logging.WARNING, "p2pmsg"):
        for keys in (STRANGER, SERVER):
            bad = opened(ZmqRecoveryClient, server.endpoint, curve=client_of(keys))
            bad.connect()
            eventually(bad.check)
            bad.close()
    assert "could not be checked: OSError('the file is away')" in caplog.text
    assert server.domain.refused >= 2
    good = opened(ZmqRecoveryClient, server.endpoint, curve=client_of())
    good.connect()
    request(good, server)
    assert server.user == "known"


def test_a_log_that_raises_ends_authentication_for_nobody(opened):
    def raises(record):
        raise RuntimeError("a filter of the application's")

    log = logging.getLogger("p2pmsg")
    log.addFilter(raises)
    try:
        server = opened(ZmqRecoveryServer, LOOPBACK, curve=server_of(CLIENT))
        stranger = opened(ZmqRecoveryClient, server.endpoint, curve=client_of(STRANGER))
        stranger.connect()
        eventually(lambda: server.refused_by_key)
        client = opened(ZmqRecoveryClient, server.endpoint, curve=client_of())
        client.connect()
        assert request(client, server)[1] == b"request"
    finally:
        log.removeFilter(raises)
