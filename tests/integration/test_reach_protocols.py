"""A peer that speaks another protocol, on each port of what reaches other programs."""

import contextlib
import os
import socket
import time

import pytest

from tests.endpoints import lasting_endpoint
from tests.integration.peers import DEADLINE_S, LOOPBACK, eventually, place_of
from tests.integration.webhooks import SECRET

STRANGERS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "ZeroMQ": b"\xff\0\0\0\0\0\0\0\1\x7f\3\1NULL" + bytes(48) + b"\x04\x19\x05READY",
    "nng": b"\0SP\0\0\x20\0\0" + b"\0\0\0\0\0\0\0\3abc",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(range(200)),
    "zeros": bytes(4096),
    "noise": os.urandom(4096),
    "a huge length": b"\0SP\0\0\x10\0\0" + b"\x7f" + b"\xff" * 7 + b"x" * 1000,
    "nothing": b"",
}
"""What they say as soon as they are connected."""


@contextlib.contextmanager
def strangers(place):
    """Have all of them connected at `tcp://…`, and what they said read."""
    host, _, port = place.rpartition("://")[2].rpartition(":")
    with contextlib.ExitStack() as opened:
        for words in STRANGERS.values():
            made = opened.enter_context(socket.create_connection((host, int(port))))
            with contextlib.suppress(ConnectionError):
                made.sendall(words)
        time.sleep(0.1)
        yield


def test_at_a_bridge_that_binds_a_socket_of_nng(bridge, opened, make_puller):
    pynng = pytest.importorskip("pynng", reason="the extra `nng` is not installed")
    made = bridge("sp+pull://127.0.0.1:0?bind=1", LOOPBACK, topic="t")
    with strangers(place_of(made.source)), strangers(made.endpoint):
        pushes = opened.enter_context(pynng.Push0(recv_timeout=60_000, send_timeout=60_000))
        pushes.dial(place_of(made.source), block=True)
        pushes.send(b"ab")
        with make_puller(made.endpoint).receive(DEADLINE_S) as job:
            assert job.value == b"ab"


def test_at_the_port_that_takes_webhooks(make_publisher):
    pytest.importorskip("uvicorn", reason="webhooks in over HTTP need uvicorn (extra webhooks)")
    from p2pmsg.webhooks import receive
    from tests.integration.test_webhooks_in import signed
    from tests.integration.webhooks import post, served

    publisher = make_publisher()
    with served(receive(publisher, secrets=SECRET, topic="t")) as port:
        with strangers(f"tcp://127.0.0.1:{port}"):
            assert post(port, b"{}", signed(b"{}"))[0] == 204
    assert publisher.stats().published == 1


@pytest.fixture
def publisher(make_publisher):
    return make_publisher()


@pytest.mark.parametrize("words", [STRANGERS[name] for name in ("ZeroMQ", "TLS", "nothing")])
def test_an_endpoint_of_webhooks_that_speaks_no_http_gets_all_later(publisher, tmp_path, words):
    pytest.importorskip("aiohttp", reason="webhooks out need aiohttp (extra webhooks)")
    from p2pmsg.webhooks import Endpoint, Sender
    from tests.integration.webhooks import LOOPBACK as NETWORK
    from tests.integration.webhooks import Receiver

    port = int(lasting_endpoint().rpartition(":")[2])
    listener = socket.create_server(("127.0.0.1", port))
    endpoint = Endpoint(
        f"http://127.0.0.1:{port}/", allow=NETWORK, timeout=0.3,
        retry=(0, *[0.05] * 900),
    )  # fmt: skip
    with Sender(
        publisher.endpoint, state=tmp_path, endpoints=[endpoint], start="earliest"
    ) as hooks:
        publisher.publish("t", 1)
        with contextlib.closing(listener), contextlib.suppress(ConnectionError):
            stranger = listener.accept()[0]
            with stranger:
                stranger.sendall(words)
                eventually(lambda: hooks.stats().endpoints[endpoint.name].failures)
        assert hooks.stats().delivered == 0
        with Receiver(port=port) as receiver:
            eventually(lambda: hooks.stats().delivered == 1)
        assert len({request.id for request in receiver.requests}) == 1
