"""Networks that refuse to send: firewalls, interfaces that are taken away and come back.

Two namespaces joined by veth, as in `test_udp_network`; without root, what needs no firewall.
"""

import json
import logging
import subprocess
from contextlib import ExitStack

import pytest

import p2pmsg
from tests.bench.groups import RECEIVER_ADDRESS, SENDER_ADDRESS
from tests.endpoints import free_port
from tests.integration.test_udp_network import filter_datagrams, inside, python
from tests.integration.test_udp_network import pytestmark as needs_root

BROADCAST = "255.255.255.255"
"""The system refuses to send there: sockets that do not ask for it may not broadcast."""
GROUP = "udp://239.255.12.1:5600?interface={}"
PUBLISHER = """
    import json, logging, sys, time, p2pmsg
    said = []
    class Handler(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage() + (" TRACEBACK" if record.exc_info else ""))
    logging.getLogger("p2pmsg").addHandler(Handler())
    number, errors = 0, []
    with p2pmsg.Publisher(sys.argv[1].split(","), name="feed") as publisher:
        def publish(until):
            global number
            end = time.monotonic() + 60
            while not until() and time.monotonic() < end:
                try:
                    publisher.publish("t", number)
                except Exception as error:
                    errors.append(repr(error))
                number += 1
                time.sleep(0.001)
        lines = lambda: publisher.stats().multicast.lines
        publisher.wait_for_subscribers(1, 60)
        publish(lambda: number >= 200)
        print("begun", flush=True)
        publish(lambda: any(line.failing for line in lines()) and number >= 1000)
        print("failing", flush=True)
        sys.stdin.readline()
        first = number
        publish(lambda: number >= first + 500)
        publisher.publish("t", None)
        print(json.dumps([number, errors, [line.unsent for line in lines()],
                          [line.failing for line in lines()], said,
                          publisher.stats().multicast.datagrams_sent]), flush=True)
        sys.stdin.readline()
"""
SUBSCRIBER = """
    import json, logging, sys, time, p2pmsg
    said = []
    class Handler(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())
    logging.getLogger("p2pmsg").addHandler(Handler())
    config = p2pmsg.SubscriberConfig(publisher_timeout=1.0)
    with p2pmsg.Subscriber(sys.argv[1].split(","), name="screen", config=config) as subscriber:
        values = []
        while None not in values[-1000:]:
            values += subscriber.receive_many(timeout=60).values
        stats = subscriber.stats()
        print(json.dumps([values[:-1] == list(range(len(values) - 1)), stats.balanced, stats.lost,
                          stats.duplicates]), flush=True)
        sys.stdin.readline()  # what is sent is heard again from here on
        frames, end = [line.frames for line in subscriber.stats().lines], time.monotonic() + 60
        while time.monotonic() < end:
            now = [line.frames for line in subscriber.stats().lines]
            if all(b > a for a, b in zip(frames, now)):
                break
            time.sleep(0.01)
        print(json.dumps([a < b for a, b in zip(frames, now)] + [said]), flush=True)
"""
REJOINER = """
    import logging, sys
    from transports.udp import UdpReceiver
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    receiver = UdpReceiver(sys.argv[1])
    receiver.connect()
    for step in sys.stdin:
        for _ in range(2):
            receiver.reconnect()
        print("tried", flush=True)
"""


class Run:
    """A publisher and a subscriber in their namespaces."""

    def __init__(self, wire, undo, groups=(GROUP,), interfaces=(SENDER_ADDRESS, RECEIVER_ADDRESS)):
        ours, theirs = (",".join(one.format(name) for one in groups) for name in interfaces)
        self.ours = python(wire.sender_pid, PUBLISHER, ours)
        self.theirs = python(wire.receiver_pid, SUBSCRIBER, theirs)
        for one in (self.ours, self.theirs):
            undo.callback(one.communicate)
            undo.callback(one.kill)

    def has(self, word):
        assert self.ours.stdout.readline() == f"{word}\n"

    def go_on(self):
        print("go on", file=self.ours.stdin, flush=True)
        return json.loads(self.ours.stdout.readline()), json.loads(self.theirs.stdout.readline())

    def heard(self):
        """Return whether each of the subscriber's lines brings something, and its warnings."""
        print("go on", file=self.theirs.stdin, flush=True)
        *heard, said = json.loads(self.theirs.stdout.readline())
        return heard, said


@pytest.fixture
def run(wire):
    with ExitStack() as undo:
        yield lambda *groups: Run(wire, undo, *groups)


def refuse(pid, rule):
    """Let nftables refuse what goes out; an empty rule takes it off."""
    filter_datagrams(pid, rule, "output")


def command(pid, text):
    assert not inside(pid, *text.split()).wait(60), text


def take_away(wire):
    """Delete both interfaces; returns what `bring_back` needs."""
    ends = ((wire.sender_pid, "va"), (wire.receiver_pid, "vb"))
    hardware = [hardware_address(*end) for end in ends]
    command(wire.sender_pid, "ip link del va")
    return hardware


def hardware_address(pid, name):
    shown = inside(pid, "ip", "-j", "link", "show", name, stdout=subprocess.PIPE)
    output, _ = shown.communicate(timeout=60)
    return json.loads(output)[0]["address"]


def bring_back(wire, hardware):
    """Make the interfaces again: the same names and addresses, other indexes."""
    one, two = wire.sender_pid, wire.receiver_pid
    ours, theirs = hardware
    command(
        one, f"ip link add va address {ours} type veth peer name vb address {theirs} netns {two}"
    )
    for pid, name, address in ((one, "va", SENDER_ADDRESS), (two, "vb", RECEIVER_ADDRESS)):
        command(pid, f"ip addr add {address}/24 dev {name}")
        command(pid, f"ip link set {name} up")
        command(pid, f"ip route add 224.0.0.0/4 dev {name}")
    add_ipv6(wire)


def add_ipv6(wire):
    """Give both ends an address; without IPv6 only what needs it fails."""
    for pid, name, end in ((wire.sender_pid, "va", 1), (wire.receiver_pid, "vb", 2)):
        inside(pid, "ip", "addr", "add", f"fd77::{end}/64", "dev", name, "nodad").wait(60)


@pytest.mark.long
@needs_root
@pytest.mark.parametrize(
    "part",
    [
        pytest.param("", marks=pytest.mark.long, id="all"),  # one of two lines, below
        pytest.param("numgen random mod 100 < 20 ", id="a part"),
    ],
)
def test_what_a_firewall_refuses_is_lost_and_repaired(wire, run, part):
    one = run()
    one.has("begun")
    refuse(wire.sender_pid, f"udp dport 5600 {part}drop")
    one.has("failing")
    refuse(wire.sender_pid, "")
    (_, errors, unsent, _, said, _), got = one.go_on()
    assert errors == []
    assert unsent[0] > 0
    assert got == [True, True, 0, got[3]]
    assert len([text for text in said if "cannot be sent: Operation not permitted" in text]) == 1
    assert not any("TRACEBACK" in text for text in said)


PLACES = {
    "by address": (GROUP, SENDER_ADDRESS, RECEIVER_ADDRESS),
    "by name": (GROUP, "va", "vb"),
    "ipv6": ("udp://[ff15::77]:5600?interface={}", "va", "vb"),
    "of the link": ("udp://[ff12::77]:5600?interface={}", "va", "vb"),
}


@pytest.mark.long
@needs_root
@pytest.mark.parametrize(
    ("group", "ours", "theirs"),
    [
        pytest.param(*place, id=name, marks=[] if name == "by name" else pytest.mark.long)
        for name, place in PLACES.items()
    ],
)
def test_an_interface_that_is_made_again_carries_the_group_again(wire, run, group, ours, theirs):
    add_ipv6(wire)
    one = run((group,), (ours, theirs))
    one.has("begun")
    taken = take_away(wire)
    one.has("failing")
    bring_back(wire, taken)
    (_, errors, unsent, _, said, _), got = one.go_on()
    assert errors == []
    assert unsent[0] > 0
    assert got == [True, True, 0, got[3]]
    assert not any("TRACEBACK" in text for text in said)
    assert one.heard()[0] == [True]


@pytest.mark.long
@needs_root
@pytest.mark.parametrize("interface", [RECEIVER_ADDRESS, "vb"])
def test_a_receiver_says_once_that_its_interface_is_away_and_when_it_is_back(wire, interface):
    child = python(wire.receiver_pid, REJOINER, GROUP.format(interface))

    def try_again():
        print("go on", file=child.stdin, flush=True)
        return list(iter(lambda: child.stdout.readline().strip(), "tried"))

    try:
        assert try_again() == []
        taken = take_away(wire)
        (said,) = try_again()
        assert "the group cannot be joined again: " in said
        bring_back(wire, taken)
        (said,) = try_again()
        assert "it works again" in said
    finally:
        child.kill()
        child.communicate()


def test_a_publisher_that_may_not_send_accepts_messages_and_says_why(caplog):
    with (
        caplog.at_level(logging.WARNING, logger="p2pmsg"),
        p2pmsg.Publisher(f"udp://{BROADCAST}:{free_port()}") as publisher,
    ):
        assert [publisher.publish("t", number) for number in range(100)] == list(range(100))
        publisher.publish_many("t", list(range(1000)))
        publisher.flush()
        stats = publisher.stats()
        (line,) = stats.multicast.lines
        assert line.endpoint == publisher.endpoint
        assert line.unsent > 0
        assert line.failing == "Permission denied"
    assert stats.published == 1100
    said = [record for record in caplog.records if "cannot be sent" in record.message]
    assert len(said) == 1
    assert not any(record.exc_info for record in caplog.records)
