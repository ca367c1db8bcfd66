"""A sealed publisher with rights, asked by every kind of frame with any body: nothing denied."""

from random import Random

import pytest

from p2pmsg import wire
from p2pmsg.config import PublisherConfig
from p2pmsg.multicast.group_keys import GroupKeys
from p2pmsg.multicast.seal import AES
from p2pmsg.multicast.sender import MulticastSender
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.wire import Frame, Kind
from tests.unit.p2pmsg.publisher.served import take_sent
from tests.unit.p2pmsg.security.files import access_of, rule, user_of

pytest.importorskip("cryptography")

SESSION, S = 77, 10**9
WALL_NS = 1_700_000_000 * S
TOPICS = ("trades", "quotes.us", "hidden")
TEXTS = (*TOPICS, "", "*", "hid*", "quotes*", "\0", "trades\0", "a*b", "latest", "time", "a" * 257)
NUMBERS = (0, 1, 2, -1, 5, SESSION, 2**63, 2**64 - 1, -(2**63), WALL_NS)
READS = {"ann": set(TOPICS), "bob": {"trades", "quotes.us"}, "eve": set()}


def sealed_publisher():
    core = PublisherCore(
        name="feed", session=SESSION, recovery="memory://r", config=PublisherConfig(), now_ns=0
    )
    keys = GroupKeys(SESSION, 5, AES, Random(3), now_ns=0)
    multicast = MulticastSender(core.own, core.replay, core.config, 1400, Random(4), keys)
    core.use_multicast(multicast)
    core.use_access_rules(
        access_of(rule("ann", subscribe=["*"]), rule("bob", subscribe=["quotes*", "trades"]))
    )
    for number in range(10):
        for topic in TOPICS:
            core.publish(topic, number, None, WALL_NS, None, now_ns=0, wall_ns=WALL_NS)
        core.flush(now_ns=0)
    take_sent(core)
    return core, keys


def any_value(rng, depth=0):
    """Any value of a body."""
    kind = rng.randrange(8)
    if kind < 2:
        return rng.choice(TEXTS)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind == 4 and depth < 4:
        return [any_value(rng, depth + 1) for _ in range(rng.randrange(5))]
    return rng.choice((None, True, False, float("nan"), 1e308, b"", rng.randbytes(4), {}))


def any_body(rng):
    """A body that fits a kind, mostly, with parts of it exchanged or left out."""
    topics = [rng.choice(TEXTS) for _ in range(rng.randrange(4))]
    ranges = [[rng.choice((0, 3, 2**63)), rng.choice((9, 2**64 - 1))]] * rng.randrange(3)
    subscriber = rng.choice((1, 2, 2**64 - 1))
    start = rng.choice(("latest", "earliest", "sequence", "time", "other"))
    body = rng.choice(
        (
            [1, topics, start, rng.choice(NUMBERS), rng.choice((True, False))],
            [rng.choice(TOPICS), ranges, rng.choice((0, 1, 99))],
            [subscriber, "n", rng.choice((True, False)), True, True],
            [subscriber, [rng.randbytes(4)] * rng.randrange(3), True],
            [rng.choice(TOPICS), rng.choice(NUMBERS)],
        )
    )
    if rng.random() < 0.3:
        body[rng.randrange(len(body))] = any_value(rng)
    return body[: rng.randrange(len(body) + 1)] if rng.random() < 0.1 else body


@pytest.mark.rounds(3000, 200_000)
def test_no_kind_of_frame_brings_what_is_denied(rounds):
    answered = dict.fromkeys(READS, 0)
    now_ns = 0
    for seed in range(rounds):
        if seed % 1000 == 0:
            core, keys = sealed_publisher()
            now_ns = 10 * S
        rng = Random(seed)
        now_ns += rng.choice((1, 1000, 10**6, S))
        who = rng.choice(tuple(READS))
        data = wire.control_frame(rng.choice(tuple(Kind)), SESSION, any_body(rng))
        if rng.random() < 0.03:
            data = data[: rng.randrange(len(data))]
        core.requests.receive(
            who.encode(), data, now_ns=now_ns, user=user_of(who), wall_ns=WALL_NS + now_ns
        )
        if rng.random() < 0.02:
            keys.rotate(now_ns=now_ns)
        core.handle_timer(now_ns=now_ns)
        while (reply := core.requests.next_reply(now_ns=now_ns)) is not None:
            reader, frame = reply.requester.decode(), Frame(bytes(reply.frame))
            if frame.kind == Kind.DATA:
                assert frame.topic in READS[reader], seed
                answered[reader] += 1
            assert frame.kind != Kind.KEYS or reader == "ann", seed
            if rng.random() < 0.1:
                core.requests.requester_gone(reply, now_ns=now_ns)
            else:
                core.requests.reply_sent(reply, now_ns=now_ns)
        take_sent(core)
        assert keys._lacking.keys() <= keys._holders.keys(), seed
    assert answered["ann"]
    assert answered["bob"]
