"""What a stranger may send to a group, and to its publisher."""

import random
import socket
import time

import pytest

from p2pmsg import wire
from p2pmsg.control import Nack
from p2pmsg.multicast import datagram
from recovery import GroupRepairConfig
from tests.integration.peers import check_ledger, eventually
from tests.integration.test_udp_multicast import GROUP, free_port

LONGEST = 65_507
"""Bytes in the longest datagram of UDP over IPv4."""


@pytest.fixture
def endpoint():
    return GROUP.format(77, free_port())


def sealed(frame):
    return datagram.seal(frame)


class TestHostile:
    """What a stranger may send to the group, and to the publisher."""

    @pytest.fixture
    def pair(self, make_publisher, make_subscriber, endpoint):
        publisher = make_publisher(endpoint)
        return publisher, make_subscriber(endpoint, joins=publisher)

    @pytest.fixture
    def stranger(self, opened, endpoint):
        from transports import UdpSender

        sender = UdpSender(endpoint)
        opened.callback(sender.close)
        return sender

    def check_flow(self, pair, label):
        publisher, subscriber = pair
        publisher.publish("t", label)
        assert subscriber.receive(5).value == label
        check_ledger(subscriber)

    def test_datagrams_of_every_length(self, pair, stranger):
        chaos = random.Random(7).randbytes(LONGEST + 4096)
        lengths = range(LONGEST + 1)
        for length in lengths:
            at = length % 4096
            stranger.send(chaos[at : at + length])
            if not length % 64:  # so that the kernel's buffer holds what comes in between
                self.check_flow(pair, length)
        self.check_flow(pair, "end")
        eventually(lambda: sum(pair[1].stats().frames_invalid.values()) == len(lengths))

    def test_damaged_forged_and_replayed_datagrams(self, pair, stranger):
        publisher, subscriber = pair
        self.check_flow(pair, "begin")
        frame = publisher._core.replay.frames("t", 0, 1, 1)[0].frame
        stranger.send(frame + b"\0\0\0\0")
        wrong = bytearray(sealed(frame))
        wrong[-6] ^= 1
        stranger.send(bytes(wrong))
        for _ in range(10):
            stranger.send(sealed(frame))  # an old one again
        forged = wire.stream_prefix("t", 12345) + wire.REST.pack(0, 1, 6, 0)
        stranger.send(sealed(forged + b"\x94\x91\x01\xc0\xc0\xc0"))
        self.check_flow(pair, "end")
        eventually(lambda: subscriber.stats().frames_invalid.get("session"))
        stats = subscriber.stats()
        assert stats.frames_invalid == {"crc": 2, "session": 1}
        assert stats.duplicates == 10

    def test_a_nack_for_everything_is_answered_within_the_budget(self, pair, opened):
        publisher, _ = pair
        publisher.publish_many("t", [bytes(1000)] * 20_000)
        body = Nack("t", [(0, 2**62)])
        nack = sealed(wire.control_frame(wire.Kind.NACK, publisher.session, body))
        one = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        address = publisher._sender._udp.local_address
        began = time.monotonic()
        for _ in range(200):
            one.sendto(nack, address)
            time.sleep(0.001)
        config = GroupRepairConfig()
        seconds = time.monotonic() - began
        limit = config.requester.budget_burst_bytes + seconds * config.requester.budget_bytes_s
        assert publisher.stats().multicast.bytes_repaired <= limit + 100_000

    def test_garbage_to_the_publisher_is_counted(self, pair, opened):
        publisher, _ = pair
        one = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        address = publisher._sender._udp.local_address
        for length in range(0, 1000, 50):
            one.sendto(random.randbytes(length), address)
        other = sealed(wire.control_frame(wire.Kind.NACK, 1, Nack("t", [(0, 1)])))
        one.sendto(other, address)
        eventually(lambda: publisher.stats().multicast.invalid.get("session"))
        assert sum(publisher.stats().multicast.invalid.values()) == 21
        self.check_flow(pair, "still there")
