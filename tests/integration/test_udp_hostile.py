"""What a stranger may send to a group, and to its publisher."""

import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from p2pmsg import SubscriberConfig, wire
from p2pmsg.control import Heartbeat, Marked, Nack, Welcome
from p2pmsg.multicast import datagram
from tests.endpoints import free_port
from tests.integration.peers import check_ledger, eventually
from tests.integration.test_udp_multicast import GROUP

LONGEST = 65_507
"""Bytes in the longest datagram of UDP over IPv4."""


@pytest.fixture
def endpoint():
    return GROUP.format(77, free_port())


def sealed(frame):
    return datagram.with_checksum(frame)


def target_of(endpoint):
    group, port = endpoint.removeprefix("udp://").partition("?")[0].rsplit(":", 1)
    return group, int(port)


def overhear(endpoint, kind):
    """Join a group as anybody can; return the next frame of that kind, and its source."""
    group, port = target_of(endpoint)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((group, port))
        member = socket.inet_aton(group) + socket.inet_aton("127.0.0.1")
        one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        one.settimeout(60)
        while True:
            data, source = one.recvfrom(LONGEST)
            frame = datagram.open_datagram(data)
            if wire.Frame(frame).kind == kind:
                return frame, source


def address_of(endpoint):
    """Return where the publisher to a group sends from, and receives."""
    return overhear(endpoint, wire.Kind.WELCOME)[1]


class TestHostile:
    """What a stranger may send to the group, and to the publisher."""

    @pytest.fixture
    def pair(self, make_publisher, make_subscriber, endpoint):
        publisher = make_publisher(endpoint)
        return publisher, make_subscriber(endpoint, joins=publisher)

    @pytest.fixture
    def stranger(self, opened, endpoint):
        from transports.udp import UdpSender

        sender = UdpSender(endpoint)
        opened.callback(sender.close)
        return sender

    def check_flow(self, pair, label):
        publisher, subscriber = pair
        publisher.publish("t", label)
        assert subscriber.receive(60).value == label
        check_ledger(subscriber)

    @pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.long)])
    def test_datagrams_of_every_length(self, pair, stranger, step):
        chaos = random.Random(7).randbytes(LONGEST + 4096)
        lengths = [*range(2048), *range(2048, LONGEST, step), LONGEST]
        for number, length in enumerate(lengths):
            at = length % 4096
            stranger.send(chaos[at : at + length])
            if not number % 64:  # so that the kernel's buffer holds what comes in between
                self.check_flow(pair, length)
        self.check_flow(pair, "end")
        eventually(lambda: sum(pair[1].stats().frames_invalid.values()) == len(lengths))

    def test_damaged_forged_and_replayed_datagrams(self, pair, stranger, endpoint):
        _, subscriber = pair
        with ThreadPoolExecutor() as pool:
            overheard = pool.submit(overhear, endpoint, wire.Kind.DATA)
            while not overheard.done():  # it hears what comes once it has joined
                self.check_flow(pair, "begin")
                time.sleep(0.01)
            frame, _ = overheard.result()
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
        assert stats.frames_invalid == {"crc": 2, "session": 1, "source": 10}


class Forger:
    """Sends to a group as somebody who is on its network and never joined.

    With `spoofed` its datagrams bear the publisher's address, which takes a privileged process.
    """

    def __init__(self, publisher, endpoint, opened, *, spoofed):
        self.publisher = publisher
        self.target = target_of(endpoint)
        if spoofed:
            try:
                made = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
            except PermissionError:
                pytest.skip("needs CAP_NET_RAW")
        else:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket = opened.enter_context(made)
        self.spoofed = spoofed
        own = self.there = address_of(endpoint)
        self.answers = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.answers.bind((own[0], 0))
        self.answers.setblocking(False)
        self.source = own[1]
        local = socket.inet_aton(own[0])
        for one in (made, self.answers):
            one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, local)

    def send(self, frame):
        data = sealed(frame)
        if self.spoofed:
            data = struct.pack("!HHHH", self.source, self.target[1], 8 + len(data), 0) + data
        self.socket.sendto(data, self.target)

    def send_back(self, frame):
        """Send to the publisher, as receivers do."""
        self.answers.sendto(sealed(frame), self.there)

    def answered_bytes(self):
        total = 0
        while True:
            try:
                total += len(self.answers.recv(LONGEST))
            except BlockingIOError:
                return total

    def heartbeat(self, topic, following, earliest=0):
        body = Heartbeat(earliest)
        self.send(
            wire.control_frame(
                wire.Kind.HEARTBEAT, self.publisher.session, body,
                sequence=following, topic=topic.encode(),
            )
        )  # fmt: skip

    def data(self, topic, sequence):
        body = b"\x94\x91\xa6forged\xc0\xc0\xc0"
        rest = wire.REST.pack(sequence, 1, len(body), 0)
        self.send(wire.stream_prefix(topic, self.publisher.session) + rest + body)

    def welcome(self, session, recovery, *, flags=0):
        body = Welcome(self.publisher.name, recovery, 1000.0, 1, 0.0)
        self.send(wire.control_frame(wire.Kind.WELCOME, session, body, flags=flags))


class Watched:
    """A publisher, a subscriber that has joined it, and somebody who forges."""

    @pytest.fixture
    def joined(self, make_publisher, make_subscriber, endpoint, opened, spoofed):
        publisher = make_publisher(endpoint)
        config = SubscriberConfig(streams_max=300)
        subscriber = make_subscriber(endpoint, joins=publisher, config=config)
        self.numbers = iter(range(10**9))
        self.flow(publisher, subscriber, 100)
        return publisher, subscriber, Forger(publisher, endpoint, opened, spoofed=spoofed)

    def flow(self, publisher, subscriber, count, topic="t"):
        sent = [next(self.numbers) for _ in range(count)]
        for number in sent:
            publisher.publish(topic, number)
        publisher.flush()
        assert [subscriber.receive(60).value for _ in sent] == sent

    def check(self, subscriber):
        eventually(lambda: subscriber.stats().outstanding == 0)
        stats = subscriber.stats()
        check_ledger(subscriber)
        assert (stats.lost, stats.losses) == (0, [])
        assert stats.delivered == next(self.numbers)


@pytest.mark.parametrize("spoofed", [False, True], ids=["own_address", "publishers_address"])
class TestStrangers(Watched):
    """What was shown to work from sockets that never joined."""

    def test_data_that_claims_more_messages_than_it_has_bytes(self, joined):
        """It was taken where the stream stood: 4,294,967,295 messages lost, and all that came."""
        publisher, subscriber, forger = joined
        head = publisher.stats().streams["t"][1]
        for count, array in ((2**32 - 1, b"\xdd\xff\xff\xff\xff"), (65_535, b"\xdc\xff\xff")):
            for body in (b"\x94" + array, b"\x94" + array + b"\xc0" * 1000):
                for flags in (0, wire.FLAG_PLAIN):
                    rest = wire.REST.pack(head, count, len(body), 0)
                    forger.send(wire.stream_prefix("t", publisher.session, flags) + rest + body)
        reason = "count" if forger.spoofed else "source"
        eventually(lambda: subscriber.stats().frames_invalid.get(reason) == 8)
        self.flow(publisher, subscriber, 100)
        self.check(subscriber)

    def test_a_nack_of_somebody_who_never_joined(self, joined):
        publisher, _, forger = joined
        publisher.publish_many("t", [bytes(1000)] * 8000)
        for attempt in (1, 2, 1000):
            body = Nack("t", [(0, 2**62)], attempt)
            forger.send_back(wire.control_frame(wire.Kind.NACK, publisher.session, body))
            body = Nack("t", [(0, 2**62)], attempt, token=random.getrandbits(64))
            forger.send_back(wire.control_frame(wire.Kind.NACK, publisher.session, body))
        eventually(lambda: publisher.stats().multicast.invalid.get("token") == 6)
        assert publisher.stats().multicast.bytes_repaired == 0
        assert forger.answered_bytes() == 0

    def test_receivers_that_never_were(self, joined):
        publisher, subscriber, forger = joined
        for number in range(64):
            body = Marked(number, 0, 1)
            forger.send_back(wire.control_frame(wire.Kind.MARKED, publisher.session, body))
        eventually(lambda: publisher.stats().multicast.invalid.get("token") == 64)
        self.flow(publisher, subscriber, 1000)
        assert publisher.stats().multicast.receivers_waited_for <= 1
        assert publisher.stats().stalls == 0
        self.check(subscriber)

    def test_parts_marks_and_parity(self, joined):
        publisher, subscriber, forger = joined
        session = publisher.session
        forged = wire.stream_prefix("t", session) + wire.REST.pack(2**40, 1, 5, 0)
        for number in range(2000):
            part = datagram.fragments(forged + bytes(5000), 1400)[number % 3]
            at = part.index(b"\0") + 15
            part = part[:at] + (200 + 97 * number).to_bytes(8, "big") + part[at + 8 :]
            forger.send(part)
        forger.send(wire.control_frame(wire.Kind.MARK, session, sequence=2**60))
        forger.send(wire.control_frame(wire.Kind.PARITY, session, [1, 1, 0, ["t"], [], b""]))
        publisher.publish("t", bytes(100_000))
        assert subscriber.receive(60).value == bytes(100_000)
        next(self.numbers)
        self.flow(publisher, subscriber, 100)
        assert subscriber.stats().frames_invalid["parity" if forger.spoofed else "source"]
        assert forger.answered_bytes() == 0
        self.check(subscriber)
