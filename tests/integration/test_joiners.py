"""Many subscribers of all topics that join one publisher at the same time, over real sockets."""

import subprocess
import sys
import threading
import time

import pytest
import zmq

import p2pmsg
from p2pmsg import control, wire
from p2pmsg.publisher import control_queue
from p2pmsg.wire import Kind
from tests.integration.inside import joined_ids
from tests.integration.joiners import Joiner, can_open, join_all, turn_until
from tests.integration.peers import LOOPBACK, ROOT

JOIN_S = 30.0
"""How long they may take: a fallen-over publisher never answered."""


@pytest.fixture
def publisher():
    with p2pmsg.Publisher(LOOPBACK, name="feed") as made:
        made.publish("t", b"first")
        yield made
        made.close(timeout=0)


@pytest.fixture
def busy(publisher):
    """Publish all the while, and count what `publish` has returned."""
    stop, sequences = threading.Event(), []

    def work():
        while not stop.wait(0.02):
            sequences.append(publisher.publish("t", b"x" * 100))

    thread = threading.Thread(target=work)
    thread.start()
    yield sequences
    stop.set()
    thread.join(30)
    assert not thread.is_alive(), "publish does not return"


def close(joiners):
    for joiner in joiners:
        joiner.close()


def check_all(publisher, joiners):
    """All of them are in, and nobody was sent an answer that was not for it."""
    try:
        assert sum(joiner.joined for joiner in joiners) == len(joiners)
        assert all(joiner.echoes <= joiner.probes for joiner in joiners)
        there = joined_ids(publisher)
        assert turn_until(joiners, lambda: len(there) >= len(joiners), JOIN_S)
        assert publisher.stats().control_dropped == 0
    finally:
        close(joiners)


def test_200_join_a_publisher_that_is_idle(publisher):
    assert can_open(200)
    joiners, _ = join_all(publisher.endpoint, 200, JOIN_S)
    check_all(publisher, joiners)


def test_200_join_a_publisher_that_is_busy(publisher, busy):
    assert can_open(200)
    joiners, _ = join_all(publisher.endpoint, 200, JOIN_S)
    before = len(busy)
    assert turn_until(joiners, lambda: len(busy) > before + 5, JOIN_S)
    check_all(publisher, joiners)


def test_100_join_a_relay_that_is_busy(publisher, busy):
    assert can_open(100)
    with p2pmsg.Relay(publisher.endpoint, LOOPBACK) as relay:
        relay.wait_for_streams(timeout=JOIN_S)
        joiners, _ = join_all(relay.endpoint, 100, JOIN_S)
        try:
            assert sum(joiner.joined for joiner in joiners) == len(joiners)
            assert all(joiner.echoes <= joiner.probes for joiner in joiners)
        finally:
            close(joiners)
            relay.close(timeout=0)


def test_100_of_the_former_release_join_a_publisher_that_is_busy(publisher, busy):
    """They take all topics with the empty prefix, so each gets everybody's echoes."""
    assert can_open(100)
    joiners, _ = join_all(publisher.endpoint, 100, JOIN_S, old=True)
    try:
        assert sum(joiner.joined for joiner in joiners) == len(joiners)
    finally:
        close(joiners)


def test_others_join_while_one_of_the_former_release_does_not_read(publisher):
    """Its queue fills with the others' echoes, and then it is the one who misses them."""
    deaf = Joiner(publisher.endpoint, 999, old=True)
    assert turn_until([deaf], lambda: deaf.joined, JOIN_S)
    assert can_open(150)
    joiners, _ = join_all(publisher.endpoint, 150, JOIN_S)
    try:
        assert sum(joiner.joined for joiner in joiners) == len(joiners)
        publisher.publish("t", b"and publishing goes on")
    finally:
        close([deaf, *joiners])


@pytest.mark.long
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_1000_join_from_several_processes(publisher, is_busy, request):
    if not can_open(1000):
        pytest.skip("the system allows too few open files")
    if is_busy:
        request.getfixturevalue("busy")
    command = [sys.executable, "-m", "tests.integration.joiners", publisher.endpoint, "250"]
    children = [
        subprocess.Popen(
            [*command, str(1 + 250 * at), "60"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for at in range(4)
    ]
    results = [child.communicate(timeout=110)[0].split() for child in children]
    assert [result[0] for result in results] == ["250"] * 4, results
    assert all(int(echoes) <= int(probes) for _, echoes, probes, _ in results), results


class Former:
    """Raw sockets that do as a subscriber of a former release does, and a very impatient one."""

    def __init__(self, context, publisher, number):
        self.probe = number
        self.echoes = 0
        self.data = context.socket(zmq.SUB)
        self.data.set(zmq.SUBSCRIBE, b"")
        self.data.set(zmq.SUBSCRIBE, wire.control_prefix(Kind.ECHO, self.probe))
        self.data.connect(publisher.endpoint)
        self.requests = context.socket(zmq.DEALER)
        self.requests.connect(publisher.recovery_endpoint)
        body = control.Probe(self.probe, ["*"], "latest")
        self.question = wire.control_frame(Kind.PROBE, publisher.session, body)

    def turn(self):
        self.requests.send(self.question, zmq.NOBLOCK)
        while self.data.poll(0):
            data = self.data.recv()
            self.echoes += data[:1] == b"\0" and data[4] == Kind.ECHO


@pytest.fixture
def small_ration(monkeypatch):
    monkeypatch.setattr(control_queue, "BROAD_FRAMES_PER_S", 4000)
    monkeypatch.setattr(control_queue, "BROAD_FRAMES_AT_ONCE", 400)


def test_subscribers_of_a_former_release_cannot_livelock_a_publisher(small_ration, publisher, busy):
    """Each asks without end, and each answer goes to all of them: so many frames, and no more."""
    context = zmq.Context()
    former = [Former(context, publisher, number) for number in range(40)]
    try:
        begun, before = time.monotonic(), len(busy)
        while time.monotonic() - begun < 2:
            for one in former:
                one.turn()
        took = time.monotonic() - begun
        stats = publisher.stats()
        echoes = sum(one.echoes for one in former)
        # Each answer takes as many tokens as there are connections, those of the others too.
        assert 0 < echoes <= 400 + 4000 * took + 2 * len(former)
        assert stats.control_rationed > 0
        assert len(busy) > before + 5
        (joiner,), _ = join_all(publisher.endpoint, 1, JOIN_S, first=1000)
        assert joiner.joined
        close([joiner])
    finally:
        for one in former:
            one.data.close(linger=0)
            one.requests.close(linger=0)
        context.term()
