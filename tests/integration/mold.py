"""MoldUDP64 feeds for tests: publishers, endpoints, messages of an exchange, raw packets."""

import contextlib
import itertools
import socket
import struct
import threading
import time

import pytest

import p2pmsg
from p2pmsg.mold import codec
from tests.data import shared_or_ours
from tests.endpoints import free_port

SESSION = b"S1".ljust(10)
"""The name of `make_feed`'s session, as packets have it."""
_groups = itertools.cycle(range(1, 255))


@pytest.fixture
def place():
    """Return the endpoint of a group of its own, without request servers."""
    return f"mold://239.255.9.{next(_groups)}:{free_port()}?interface=127.0.0.1"


@pytest.fixture
def make_feed(opened, place):
    """Make a publisher to `place`, with a request server."""

    def make(session="S1", **options):
        feed = p2pmsg.moldudp64.MoldPublisher(
            f"{place}&request=127.0.0.1:0", session=session, **options
        )
        opened.callback(feed.close, 0.0)
        return feed

    return make


def reader_of(place, *feeds):
    """Return the endpoint for readers, with the request servers of these feeds."""
    servers = "".join(f"&request=127.0.0.1:{feed.request_address[1]}" for feed in feeds)
    return place + servers


def itch_messages():
    """Return an exchange's messages: 12,012 of ../shared/data, or 1,200 of ours."""
    data, at, messages = shared_or_ours("itch50-simulated.bin").read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from("!H", data, at)
        messages.append(data[at + 2 : at + 2 + length])
        at += 2 + length
    return messages


def publish_in_packets(feed, messages):
    """Publish 20 messages a packet, at most 40,000 a second."""
    for at in range(0, len(messages), 20):
        feed.publish_many(messages[at : at + 20])
        time.sleep(0.0005)


@contextlib.contextmanager
def playing(feed, messages):
    """Publish in packets in a thread while the block runs, and wait for its end."""
    thread = threading.Thread(target=publish_in_packets, args=(feed, messages))
    thread.start()
    try:
        yield
    finally:
        thread.join()


class Group:
    """Sends packets of a feed as they are wanted."""

    def __init__(self, opened, endpoint):
        at = endpoint.removeprefix("mold://").partition("?")[0]
        host, _, port = at.rpartition(":")
        self._to = host, int(port)
        self._socket = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._socket.setsockopt(
            socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")
        )

    def give(self, data):
        self._socket.sendto(data, self._to)

    def send(self, start, *messages, name=SESSION):
        self.give(codec.packet(name, start, messages))

    def heartbeat(self, following, name=SESSION):
        self.give(codec.heartbeat(name, following))

    def end(self, following, name=SESSION):
        self.give(codec.end_of_session(name, following))
