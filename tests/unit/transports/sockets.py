"""What the tests of real sockets share."""

import contextlib
import time

from tests.integration.peers import DEADLINE_S, LOOPBACK, eventually
from transports import ZmqReceiver, ZmqRecoveryClient, ZmqRecoveryServer, context


@contextlib.contextmanager
def socket_opener():
    """Give a function that makes sockets; all of them are closed at the end."""
    sockets = []

    def open_socket(kind, endpoint, **options):
        made = kind(endpoint, context=context(), **options)
        sockets.append(made)
        return made

    yield open_socket
    for made in sockets:
        made.close()


def join(opened, sender, prefix=b"", **options):
    receiver = opened(ZmqReceiver, sender.endpoint.replace("*", "127.0.0.1"), **options)
    receiver.subscribe(prefix)
    receiver.connect()
    eventually(sender.take_subscriptions)
    return receiver


def recovery_pair(opened, endpoint=LOOPBACK, *, server_options=None, **client_options):
    server = opened(ZmqRecoveryServer, endpoint, **(server_options or {}))
    client = opened(ZmqRecoveryClient, server.endpoint, **client_options)
    client.connect()
    return server, client


def sends(sender, frame, time_s=0.02):
    """Send, and wait so long for space at most; return whether it went."""
    deadline = time.monotonic() + time_s
    while not (went := sender.send(frame)) and time.monotonic() < deadline:
        time.sleep(0.001)
    return went


def taken(receiver, time_s=DEADLINE_S):
    """Return the next frame, or None after so long."""
    receiver.wait(round(time_s * 1000))
    return receiver.receive()


def fill(sender, frame):
    """Send until a queue is full; return how many frames went."""
    sent = 0
    while sends(sender, frame):
        sent += 1
        assert sent < 100_000
    return sent
