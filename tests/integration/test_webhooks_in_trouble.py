"""Webhooks into a stream where something fails: what is said, counted, and made good for later."""

import logging
import socket

import pytest

pytest.importorskip("uvicorn", reason="webhooks in over HTTP need uvicorn (extra webhooks)")

from p2pmsg.webhooks import receive
from tests.integration.peers import eventually
from tests.integration.test_webhooks_in import serving, signed
from tests.integration.webhooks import SECRET, post


def send(port, hook_id):
    return post(port, b"{}", signed(b"{}", hook_id))[0]


def test_a_publisher_that_fails_is_named_once(make_publisher, caplog):
    publisher = make_publisher()
    app = receive(publisher, secrets=SECRET, topic="t")
    publisher.close()
    with serving(app) as port:
        assert [send(port, f"m{number}") for number in range(5)] == [503] * 5
    assert caplog.text.count("publishing webhooks: ") == 1
    assert app.rejected == {"publisher": 5}


def test_what_the_server_refuses_is_counted_and_not_said(make_publisher, caplog):
    logger = logging.getLogger("uvicorn.error")
    app = receive(make_publisher(), secrets=SECRET, topic="t")
    try:
        with serving(app, connections_max=2) as port:
            logger.addHandler(caplog.handler)  # it does not hand on to the root
            with socket.create_connection(("127.0.0.1", port), 60) as made:
                made.sendall(b"no HTTP\r\n\r\n")
                assert made.recv(1000).startswith(b"HTTP/1.1 400")
            with socket.create_connection(("127.0.0.1", port), 60):
                eventually(lambda: send(port, "a") == 503)
    finally:
        logger.removeHandler(caplog.handler)
    assert app.rejected["http"] == 1
    assert app.rejected["connections"] > 0
    assert "uvicorn" not in [record.name.partition(".")[0] for record in caplog.records]
