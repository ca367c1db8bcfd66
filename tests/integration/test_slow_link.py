"""A link of 2 Mbit/s that is down for a while: what is repaired crosses it about once.

Two namespaces joined by veth with a token bucket, as in `test_udp_network`.
"""

import json
import shutil
import time
from contextlib import ExitStack

import pytest

from tests.bench.groups import RECEIVER_ADDRESS, SENDER_ADDRESS
from tests.integration.test_udp_network import inside, python
from tests.integration.test_udp_network import pytestmark as needs_root
from tests.integration.test_udp_refused import command

pytestmark = [
    needs_root,
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("tc") is None, reason="needs tc"),
]
PLACE = f"tcp://{SENDER_ADDRESS}:5601"
COUNT = 1200
PUBLISHER = f"""
    import sys, time, p2pmsg
    with p2pmsg.Publisher("{PLACE}", name="feed", recovery_endpoint="{PLACE[:-1]}2") as publisher:
        publisher.wait_for_subscribers(1, 60)
        begun = time.monotonic()
        for number in range({COUNT}):
            publisher.publish("a", bytes(4000))
            if number % 50 == 0:
                publisher.publish("b", number)
            if number == 100:
                print("begun", flush=True)
            time.sleep(max(0, begun + number / 40 - time.monotonic()))
        sys.stdin.readline()
"""
SUBSCRIBER = f"""
    import json, p2pmsg
    with p2pmsg.Subscriber("{PLACE}", name="screen", start="earliest") as subscriber:
        got = 0
        while got < {COUNT + COUNT // 50}:
            got += len(subscriber.receive_many(timeout=60))
        stats = subscriber.stats()
        print(json.dumps([stats.balanced, stats.lost, stats.repaired["buffer"], stats.duplicates]))
"""


def slow_down(pid, name):
    rule = f"tc qdisc add dev {name} root tbf rate 2mbit burst 16kb latency 200ms"
    if inside(pid, *rule.split()).wait(60):
        pytest.skip("tc cannot make a link slow here")


@pytest.fixture
def run(wire):
    """Make the link slow; start programs at its ends, which are ended with the test."""
    slow_down(wire.sender_pid, "va")
    slow_down(wire.receiver_pid, "vb")
    with ExitStack() as undo:

        def start(pid, program):
            process = python(pid, program)
            undo.callback(process.communicate)
            undo.callback(process.kill)
            return process

        yield start


def begin(run, wire, program):
    """Start a publisher, and wait until it has what it publishes first."""
    publisher = run(wire.sender_pid, program)
    assert publisher.stdout.readline() == "begun\n"
    return publisher


def test_a_slow_link_that_was_down_carries_each_repair_about_once(wire, run):
    publisher, subscriber = run(wire.sender_pid, PUBLISHER), run(wire.receiver_pid, SUBSCRIBER)
    assert publisher.stdout.readline() == "begun\n"
    command(wire.sender_pid, "ip link set va down")
    time.sleep(12)
    command(wire.sender_pid, "ip link set va up")
    balanced, lost, repaired, twice = json.loads(subscriber.communicate(timeout=150)[0])
    assert (balanced, lost) == (True, 0)
    assert repaired > 300
    assert twice < repaired / 20  # it was more than twice as many, and took twice as long


LARGE = f"""
    import sys, time, p2pmsg
    config = p2pmsg.PublisherConfig(message_bytes_max=2**22)
    with p2pmsg.Publisher(
        "{PLACE}", name="feed", recovery_endpoint="{PLACE[:-1]}2", config=config
    ) as publisher:
        for number in range(3):
            publisher.publish("a", bytes([number]) * 1_500_000)
        print("begun", flush=True)
        sys.stdin.readline()
"""
LATE = f"""
    import json, p2pmsg
    with p2pmsg.Subscriber("{PLACE}", start="earliest") as subscriber:
        got = [subscriber.receive(timeout=120).value[0] for _ in range(3)]
        stats = subscriber.stats()
        print(json.dumps([got, stats.lost, stats.duplicates, stats.repaired["buffer"]]))
"""


def test_what_is_repaired_comes_though_a_message_takes_longer_than_a_peer_may_be_silent(wire, run):
    """6 s each: an answer was given up after 2 s, a connection after 5, a message after 10."""
    begin(run, wire, LARGE)
    subscriber = run(wire.receiver_pid, LATE)
    assert json.loads(subscriber.communicate(timeout=150)[0]) == [[0, 1, 2], 0, 0, 3]


GROUP = "udp://239.255.12.9:5609?interface="
KEPT = f"""
    import sys, p2pmsg
    with p2pmsg.Publisher("{GROUP}{SENDER_ADDRESS}", name="feed") as publisher:
        for number in range({COUNT}):
            publisher.publish("a", number.to_bytes(2, "big") * 500)
        publisher.flush()
        print("begun", flush=True)
        sys.stdin.readline()
"""
MEMBER = f"""
    import json, p2pmsg
    with p2pmsg.Subscriber("{GROUP}{RECEIVER_ADDRESS}", start="earliest") as subscriber:
        got = 0
        while got < {COUNT}:
            got += len(subscriber.receive_many(timeout=60))
        stats = subscriber.stats()
        print(json.dumps([got, stats.lost, stats.duplicates]))
"""


def test_a_groups_history_crosses_a_slow_link_about_once(wire, run):
    begin(run, wire, KEPT)
    member = run(wire.receiver_pid, MEMBER)
    got, lost, twice = json.loads(member.communicate(timeout=150)[0])
    assert (got, lost) == (COUNT, 0)
    assert twice < COUNT / 10  # it came more than four times
