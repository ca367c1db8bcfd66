"""Sealed multicasts on real sockets: who reads them, who does not, what a stranger can do."""

import contextlib
import logging
import socket
import time

import pytest

from p2pmsg import wire
from p2pmsg.config import (
    MulticastPublisherConfig,
    MulticastSubscriberConfig,
    PublisherConfig,
    SubscriberConfig,
)
from p2pmsg.control import Heartbeat
from p2pmsg.errors import AccessDeniedError, SecurityError
from p2pmsg.listener import Listener
from p2pmsg.multicast import datagram
from p2pmsg.multicast.run import is_sealed
from p2pmsg.multicast.seal import SealingKey
from p2pmsg.multicast.signing import BlockSigner, SignedSealingKey
from p2pmsg.reader import HeadsWatch, RangeReader
from p2pmsg.testing.kernel_loss import lose_datagrams
from tests.endpoints import free_port
from tests.integration.inside import core_of
from tests.integration.peers import check_ledger, eventually, take
from tests.integration.secure import rewrite
from tests.integration.udp_faults import FaultyWay

pytest.importorskip("cryptography")


GROUP = "udp://239.255.9.{}:{}?interface=127.0.0.1"
_group = iter(range(1, 255))


@pytest.fixture
def endpoint():
    return GROUP.format(next(_group), free_port())


def pinned(endpoint, peers, name="pub"):
    return f"{endpoint}&key={peers.text(name)}"


def test_two_subscribers_with_keys_read_all_although_datagrams_are_lost(
    make_publisher, make_subscriber, endpoint, peers
):
    publisher = make_publisher(endpoint, security=peers.security("pub", "a", "b"))
    subscribers = [
        make_subscriber(pinned(endpoint, peers), joins=publisher, security=peers.security(name))
        for name in "ab"
    ]
    for subscriber in subscribers:
        lose_datagrams(subscriber, 0.2)
    publisher.publish("t", {"a": [1, 2]}, key="k", headers={"n": 1})
    publisher.publish_many("t", list(range(1, 5000)))
    publisher.publish("t", bytes(50_000))
    for subscriber in subscribers:
        messages = take(subscriber, 5001)
        assert [message.sequence for message in messages] == list(range(5001))
        assert messages[0].value == {"a": [1, 2]}
        assert messages[0].headers == {"n": 1}
        assert [message.value for message in messages[1:-1]] == list(range(1, 5000))
        assert messages[-1].value == bytes(50_000)
        stats = check_ledger(subscriber, lost=0, delivered=5001)
        assert stats.lines[0].kernel_drops > 0
        assert sum(stats.repaired.values()) > 0
    assert publisher.stats().multicast.nacks > 0


def test_answers_go_to_no_address_that_the_publisher_has_not_said(
    make_publisher, make_subscriber, endpoint, peers, caplog
):
    """All comes over a network that puts its own address in, as one that repeats datagrams does."""
    other = GROUP.format(next(_group), free_port())
    with contextlib.closing(FaultyWay(endpoint, other, burst=0.02, burst_datagrams=3)) as way:
        publisher = make_publisher(endpoint, security=peers.security("pub", "sub"))
        subscriber = make_subscriber(
            pinned(other, peers), joins=publisher, security=peers.security("sub")
        )
        values = [f"{number:0500}" for number in range(3000)]
        publisher.publish_many("t", values)
        assert [message.value for message in take(subscriber, 3000)] == values
        stats = check_ledger(subscriber, lost=0, delivered=3000)
        assert way.lost
        assert way.answers == 0
    assert sum(stats.repaired.values()) > 0
    assert stats.frames_invalid["place"] > 0
    assert publisher.stats().multicast.nacks == 0
    assert "it did not say so" in caplog.text


LONGEST = 65_507


def join_group(endpoint):
    """Join a group as anybody on the network can."""
    group, port = endpoint.removeprefix("udp://").partition("?")[0].rsplit(":", 1)
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    one.bind((group, int(port)))
    member = socket.inet_aton(group) + socket.inet_aton("127.0.0.1")
    one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    one.settimeout(0.2)
    return one


def overhear(one):
    """Return the datagrams that have come, and where each is from."""
    found = []
    try:
        while True:
            found.append(one.recvfrom(LONGEST))
    except TimeoutError:
        return found


@pytest.fixture
def pair(make_publisher, make_subscriber, endpoint, peers):
    publisher = make_publisher(endpoint, name="prices", security=peers.security("pub", "sub"))
    own = peers.security("sub")
    return publisher, make_subscriber(pinned(endpoint, peers), joins=publisher, security=own)


def refusal(subscriber):
    """Receive until it is refused; return the error."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            pytest.fail(f"received {subscriber.receive(1)}")
        except SecurityError as error:
            return error
        except TimeoutError:
            pass
    return pytest.fail("it was not refused")


def test_a_socket_that_joined_the_group_sees_no_content(pair, endpoint):
    publisher, subscriber = pair
    values = [f"MARKER-{number:05}-" * 4 for number in range(200)]
    with join_group(endpoint) as one:
        for value in values[:100]:
            publisher.publish("TOPIC-NAME", value, key="KEY-NAME", headers={"HEADER": 1})
        publisher.publish_many("TOPIC-NAME", values[100:])
        assert [message.value for message in take(subscriber, 200)] == values
        heard = [data for data, _ in overhear(one)]
    assert any(map(is_sealed, heard))
    for data in heard:
        assert not any(text in data for text in (b"MARKER", b"TOPIC", b"KEY-NAME", b"HEADER"))
        if not is_sealed(data):
            assert wire.Frame(datagram.open_datagram(data)).kind == wire.Kind.WELCOME


@pytest.mark.internal
def test_replayed_and_forged_datagrams_change_no_ledger(pair, endpoint):
    """From a socket of their own, and from the publisher's very address, as an onlooker could."""
    publisher, subscriber = pair
    with join_group(endpoint) as one:
        publisher.publish_many("t", list(range(2000)))
        take(subscriber, 2000)
        heard = [data for data, _ in overhear(one) if is_sealed(data)]
        target = one.getsockname()
    assert heard
    before = subscriber.stats()
    forged = []
    for data in heard[:20]:
        changed = bytearray(data)
        changed[-1] ^= 1
        later = bytearray(data)
        later[8:16] = (2**40).to_bytes(8, "big")  # it would push the window away
        forged += [data, bytes(changed), bytes(later), data[:30], data[:16], data[:4]]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        local = socket.inet_aton("127.0.0.1")
        stranger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, local)
        for data in forged:
            stranger.sendto(data, target)
        for data in forged:  # the same from where the publisher sends
            publisher._peer.sender._udp.send(data)
        plain = wire.control_frame(wire.Kind.HEARTBEAT, publisher.session, None, sequence=10**6)
        publisher._peer.sender._udp.send(datagram.with_checksum(b"t" + plain))
    publisher.publish("t", "after")
    assert subscriber.receive(60).value == "after"

    def counted(*reasons):
        invalid = subscriber.stats().frames_invalid
        return all(invalid.get(one) for one in reasons)

    eventually(lambda: counted("source", "replayed", "unauthentic", "unsealed"))
    publisher.publish_many("t", list(range(100)))
    assert [message.value for message in take(subscriber, 100)] == list(range(100))
    stats = check_ledger(subscriber, lost=0, delivered=2101)
    assert stats.duplicates == before.duplicates


def test_a_subscriber_that_is_not_known_gets_nothing_and_an_error(
    make_publisher, make_subscriber, endpoint, peers
):
    publisher = make_publisher(endpoint, security=peers.security("pub"))
    own = peers.security("sub")
    subscriber = make_subscriber(pinned(endpoint, peers), security=own)
    publisher.publish("t", "secret")
    error = refusal(subscriber)
    assert f"does not admit our key {own.fingerprint}" in str(error)
    assert subscriber.stats().delivered == 0


@pytest.mark.parametrize("who", ["publisher", "subscriber"])
def test_security_at_one_end_only_is_named(
    make_publisher, make_subscriber, endpoint, peers, caplog, who
):
    own, sub = peers.security("pub", "sub"), peers.security("sub")
    seals = who == "publisher"
    publisher = make_publisher(endpoint, name="prices", security=own if seals else None)
    with caplog.at_level(logging.WARNING, "p2pmsg"):
        if seals:
            subscriber = make_subscriber(endpoint)
        else:
            subscriber = make_subscriber(pinned(endpoint, peers), security=sub)
        publisher.publish("t", "secret")
        with pytest.raises(TimeoutError):
            subscriber.receive(0.5)
        reason = "sealed" if seals else "unsealed"
        eventually(lambda: subscriber.stats().frames_invalid.get(reason))
    kind = "sealed" if seals else "not sealed"
    who = f"publisher 'prices' (session {publisher.session:016x})"
    eventually(lambda: f"{who} sends datagrams that are {kind}" in caplog.text)
    assert subscriber.stats().delivered == 0


def test_range_readers_and_listeners_say_that_they_cannot_read(pair, endpoint, caplog, start):
    with caplog.at_level(logging.WARNING, "p2pmsg"), RangeReader(endpoint) as reader:
        with pytest.raises(TimeoutError, match="'prices' sends sealed datagrams"):
            reader.heads(timeout=5.0)
        with HeadsWatch([endpoint]) as watch:
            eventually(lambda: "sealed" in watch.heads()[endpoint].unanswered)
    eventually(lambda: caplog.text.count("range readers have none") == 2)
    listener = Listener()
    with join_group(endpoint) as one:
        pair[0].publish("t", 1)
        for data, address in overhear(one):
            listener.receive(memoryview(data), len(data), address)
    assert listener.invalid["sealed"] > 0
    assert not listener.streams


@pytest.mark.internal
def test_who_loses_the_right_to_all_topics_loses_the_keys(
    make_publisher, make_subscriber, endpoint, peers, tmp_path
):
    access = tmp_path / "access.toml"
    rule = '[[rule]]\nwho = [{}]\nsubscribe = ["*"]\n'
    access.write_text(rule.format('"a", "b"'))
    publisher = make_publisher(endpoint, security=peers.security("pub", "a", "b", access=access))
    one, other = (
        make_subscriber(pinned(endpoint, peers), joins=publisher, security=peers.security(name))
        for name in "ab"
    )
    publisher.publish("t", 1)
    assert one.receive(60).value == other.receive(60).value == 1
    keys = publisher._peer.sender.multicast.keys
    rewrite(access, rule.format('"a"'))
    eventually(lambda: keys.rotations == 1)
    assert (keys.receivers, keys.unconfirmed) == (1, 0)
    publisher.publish("t", 2)
    assert one.receive(60).value == 2
    assert "subscribe" in str(refusal(other))
    assert other.stats().delivered == 1


def test_a_relay_reads_a_sealed_group(make_publisher, make_relay, make_subscriber, endpoint, peers):
    publisher = make_publisher(endpoint, security=peers.security("pub", "relay"))
    relay = make_relay(pinned(endpoint, peers), security=peers.security("relay", "sub"))
    publisher.wait_for_subscribers(1, 60)
    publisher.publish_many("t", list(range(500)))
    relay.wait_for_streams(1, 60)
    place = f"{relay.endpoint}?key={peers.text('relay')}"
    subscriber = make_subscriber(place, start="earliest", security=peers.security("sub"))
    assert [message.value for message in take(subscriber, 500)] == list(range(500))


class TestSigned:
    """Members of a group that do not trust one another."""

    @pytest.fixture
    def publisher(self, make_publisher, endpoint, peers):
        config = PublisherConfig(multicast=MulticastPublisherConfig(source="signed"))
        security = peers.security("pub", "a", "b")
        return make_publisher(endpoint, name="prices", security=security, config=config)

    @pytest.fixture
    def subscriber(self, make_subscriber, endpoint, peers, publisher):
        config = SubscriberConfig(multicast=MulticastSubscriberConfig(source="signed"))
        own = peers.security("a")
        place = pinned(endpoint, peers)
        return make_subscriber(place, joins=publisher, security=own, config=config)

    def test_all_comes_although_datagrams_are_lost_and_keys_change(self, publisher, subscriber):
        lose_datagrams(subscriber, 0.3)
        values = [{"n": number} for number in range(3000)]
        for start in range(0, 3000, 500):
            publisher.publish_many("t", values[start : start + 500])
            publisher.rotate_keys()
        publisher.publish("t", bytes(50_000))
        assert [message.value for message in take(subscriber, 3001)] == [*values, bytes(50_000)]
        stats = check_ledger(subscriber, lost=0, delivered=3001)
        assert sum(stats.repaired.values()) > 0
        assert "signature" not in stats.frames_invalid

    @pytest.mark.internal
    def test_what_a_member_forges_is_dropped_counted_and_warned_of(
        self, publisher, subscriber, make_subscriber, endpoint, peers, caplog
    ):
        member = make_subscriber(
            pinned(endpoint, peers), joins=publisher, security=peers.security("b")
        )
        publisher.publish_many("t", list(range(100)))
        assert len(take(member, 100)) == len(take(subscriber, 100)) == 100
        # All that it uses is what a member has: the key that it was given.
        secret = core_of(member).multicast.keys.keyring._last.secret
        counter = publisher._peer.sender.multicast.keys.group.counter
        own = BlockSigner(bytes(32))
        prefix = wire.stream_prefix("t", publisher.session)
        body = b"\x94\x91\xa6forged\xc0\xc0\xc0"
        with caplog.at_level(logging.WARNING, "p2pmsg"):
            for sequence in (100, 101, 10**6):
                data = prefix + wire.REST.pack(sequence, 1, len(body), 0) + body
                head = wire.control_frame(
                    wire.Kind.HEARTBEAT, publisher.session, Heartbeat(0), sequence=sequence,
                    topic=b"t",
                )  # fmt: skip
                for frame in (data, head):
                    for at in (counter, counter + 7, 2**60):
                        # From the publisher's very address, as a member can send.
                        send = publisher._peer.sender._udp.send
                        send(SealingKey(secret, at).seal(frame))
                        send(SignedSealingKey(secret, own, at).seal(frame))
            # Where a heartbeat has taken a counter meanwhile, what is forged with that is a replay.
            reasons = "signature", "replayed"
            eventually(
                lambda: sum(subscriber.stats().frames_invalid.get(one, 0) for one in reasons) >= 36
            )
            assert subscriber.stats().frames_invalid["signature"] >= 24
        publisher.publish_many("t", list(range(100)))
        assert [message.value for message in take(subscriber, 100)] == list(range(100))
        check_ledger(subscriber, lost=0, delivered=200)
        assert "a member of the group" in caplog.text

    def test_who_wants_signatures_takes_nothing_of_a_publisher_that_has_none(
        self, make_publisher, make_subscriber, endpoint, peers, caplog
    ):
        publisher = make_publisher(endpoint, name="prices", security=peers.security("pub", "a"))
        config = SubscriberConfig(multicast=MulticastSubscriberConfig(source="signed"))
        with caplog.at_level(logging.WARNING, "p2pmsg"):
            subscriber = make_subscriber(
                pinned(endpoint, peers), security=peers.security("a"), config=config
            )
            publisher.publish("t", 1)
            eventually(lambda: "does not sign its datagrams" in caplog.text)
        assert subscriber.stats().delivered == 0
        assert subscriber.stats().frames_invalid["unsigned"] > 0


@pytest.mark.internal
def test_who_is_revoked_reads_nothing_more_of_a_sealed_multicast(
    make_publisher, make_subscriber, endpoint, peers
):
    publisher = make_publisher(endpoint, security=peers.security("pub", "a", "b"))
    kept, revoked = [
        make_subscriber(pinned(endpoint, peers), joins=publisher, security=peers.security(name))
        for name in "ab"
    ]
    publisher.publish("t", 0)
    assert [take(one, 1)[0].value for one in (kept, revoked)] == [0, 0]
    keys = publisher._peer.sender.multicast.keys
    former = keys.group.secret.id
    publisher.revoke("b")
    eventually(lambda: keys.group.secret.id != former)
    publisher.publish_many("t", list(range(1, 1000)))
    assert [message.value for message in take(kept, 999)] == list(range(1, 1000))
    assert revoked.stats().delivered == 1
    assert publisher.stats().connections_revoked == 1
    assert publisher.stats().subscribers == 1
    check_ledger(kept, lost=0, delivered=1000)


def test_a_subscriber_takes_from_a_group_only_what_its_publisher_may_publish(
    make_publisher, make_subscriber, endpoint, peers, tmp_path
):
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nwho = ['pub']\npublish = ['t']\n")
    publisher = make_publisher(endpoint, security=peers.security("pub", "a"))
    subscriber = make_subscriber(
        pinned(endpoint, peers), joins=publisher,
        security=peers.security("a", "pub", access=rules),
    )  # fmt: skip
    denied, values = [], []
    for number in range(50):
        publisher.publish("forged", -1)
        publisher.publish("t", number)
    while len(values) < 50 or not denied:
        try:
            values.append(subscriber.receive(60).value)
        except AccessDeniedError as error:
            denied.append((error.verb, error.topic))
    assert values == [*range(50)]
    assert denied == [("publish", "forged")]
