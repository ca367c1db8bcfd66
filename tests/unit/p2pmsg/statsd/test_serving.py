"""The small TCP server of the management port and of Prometheus's scrapes."""

import socket
import socketserver
import time
from contextlib import closing

from p2pmsg.statsd.serving import Server
from tests.descriptors import no_descriptor_left


class Greeting(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"hello")


class Counting(Server):
    tries = 0

    def get_request(self):
        self.tries += 1
        return super().get_request()


def test_one_that_cannot_be_accepted_is_tried_now_and_then_and_served_later():
    with closing(Counting("127.0.0.1", 0, Greeting)) as server, socket.socket() as client:
        with no_descriptor_left():
            began = time.monotonic()
            client.connect((server.host, server.port))
            time.sleep(1.0)
            assert server.tries <= 2 + 10 * (time.monotonic() - began)
        client.settimeout(60.0)
        assert client.recv(5) == b"hello"
