"""Sealed multicasts: ciphers, two lines, restarts, and hostile datagrams by the million."""

import random
import socket

import pytest

from p2pmsg import LogConfig
from p2pmsg.multicast.run import is_sealed
from p2pmsg.sync import opening
from p2pmsg.testing.kernel_loss import lose_datagrams
from tests.endpoints import free_port
from tests.integration.inside import core_of
from tests.integration.peers import check_ledger, take
from tests.integration.test_udp_sealed import join_group, overhear

pytest.importorskip("cryptography")


def place(group):
    return f"udp://239.255.12.{group}:{free_port()}?interface=127.0.0.1"


def pinned(endpoint, peers):
    return f"{endpoint}&key={peers.text('pub')}"


@pytest.mark.internal
def test_with_chacha20_where_the_processor_has_no_aes(
    make_publisher, make_subscriber, peers, monkeypatch
):
    monkeypatch.setattr(opening, "cpu_flags", lambda: "flags : sse2\n")
    endpoint = place(1)
    publisher = make_publisher(endpoint, security=peers.security("pub", "sub"))
    assert publisher._sender.multicast.keys.group.secret.cipher == "chacha20-poly1305"
    own = peers.security("sub")
    subscriber = make_subscriber(pinned(endpoint, peers), joins=publisher, security=own)
    lose_datagrams(subscriber, 0.1)
    publisher.publish_many("t", list(range(3000)))
    assert [message.value for message in take(subscriber, 3000)] == list(range(3000))
    check_ledger(subscriber, lost=0, delivered=3000)


def test_two_lines_bring_what_one_loses(make_publisher, make_subscriber, peers):
    lines = [place(4), place(5)]
    publisher = make_publisher(lines, security=peers.security("pub", "sub"))
    subscriber = make_subscriber(
        [pinned(line, peers) for line in lines], joins=publisher, security=peers.security("sub")
    )
    lose_datagrams(subscriber, 0.2)
    for start in range(0, 3000, 500):
        publisher.publish_many("t", list(range(start, start + 500)))
        publisher.rotate_keys()
    assert [message.value for message in take(subscriber, 3000)] == list(range(3000))
    stats = check_ledger(subscriber, lost=0, delivered=3000)
    assert all(line.frames for line in stats.lines)
    assert "unauthentic" not in stats.frames_invalid


@pytest.mark.internal
def test_a_publisher_that_is_started_again_has_other_keys(
    make_publisher, make_subscriber, peers, tmp_path
):
    endpoint, log = place(7), LogConfig(tmp_path / "log")
    own = peers.security("pub", "sub")
    publisher = make_publisher(endpoint, name="prices", log=log, security=own)
    subscriber = make_subscriber(
        pinned(endpoint, peers), joins=publisher, security=peers.security("sub")
    )
    publisher.publish_many("t", list(range(500)))
    assert [message.value for message in take(subscriber, 500)] == list(range(500))
    former = publisher._sender.multicast.keys.group.secret
    publisher.close()
    again = make_publisher(endpoint, name="prices", log=log, security=own)
    assert again._sender.multicast.keys.group.secret.key != former.key
    again.publish_many("t", list(range(500, 1000)))
    assert [message.value for message in take(subscriber, 500)] == list(range(500, 1000))
    check_ledger(subscriber, lost=0, delivered=1000)


def changed(data, rng):
    """Return a sealed datagram as who has no key can make one of it."""
    way = rng.randrange(5)
    if way == 0:
        return data
    if way == 1:
        at = rng.randrange(len(data))
        return data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]
    if way == 2:
        return data[: rng.randrange(len(data))]
    if way == 3:  # a counter to come
        return data[:8] + rng.randrange(2**63).to_bytes(8, "big") + data[16:]
    return data[:4] + rng.randbytes(rng.randrange(200))


@pytest.mark.internal
@pytest.mark.rounds(10, 1000)
@pytest.mark.timeout(900)
def test_hostile_datagrams_change_no_ledger_and_are_answered_by_fewer_bytes(
    make_publisher, make_subscriber, peers, rounds
):
    """A thousand a round, from the publisher's very address and others', to both ends."""
    rng, endpoint = random.Random(1), place(8)
    publisher = make_publisher(endpoint, security=peers.security("pub", "sub"))
    subscriber = make_subscriber(
        pinned(endpoint, peers), joins=publisher, security=peers.security("sub")
    )
    member, group = core_of(subscriber).multicast, publisher._sender.multicast
    answered, asked = [], []
    put, say_held = member._put, member.keys._say_held
    member._put = lambda *parts: (answered.append(len(parts[-1]) + 32), put(*parts))
    member.keys._say_held = lambda *parts, **rest: (asked.append(160), say_held(*parts, **rest))
    udp, value, forged_bytes = publisher._sender._udp, 0, 0
    with join_group(endpoint) as one, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        local = socket.inet_aton("127.0.0.1")
        other.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, local)
        target, back = one.getsockname(), ("127.0.0.1", udp.local_address[1])
        heard = []
        for at in range(rounds):
            publisher.publish_many("t", list(range(value, value + 200)))
            got = [message.value for message in take(subscriber, 200)]
            assert got == list(range(value, value + 200))
            value += 200
            if at < 3:
                heard += [data for data, _ in overhear(one) if is_sealed(data)]
                answered.clear(), asked.clear()
            for number in range(1000):
                data = changed(rng.choice(heard), rng)
                forged_bytes += len(data)
                if number % 10 == 0:
                    other.sendto(data, back)
                elif number % 3:
                    udp.send(data)
                else:
                    other.sendto(data, target)
    publisher.publish("t", value)
    assert take(subscriber, 1)[0].value == value
    stats = check_ledger(subscriber, lost=0, delivered=value + 1)
    assert {"unauthentic", "replayed", "source"} <= set(stats.frames_invalid)
    assert sum(stats.frames_invalid.values()) > 500 * rounds
    assert sum(answered) + sum(asked) <= forged_bytes
    assert group.bytes_repaired <= 10_000
