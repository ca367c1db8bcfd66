"""Two network namespaces joined by veth: nftables drops, a partition that heals, a crash.

They need root (`unshare`, `ip`, `nft`); without it, `tests/integration/test_udp_multicast.py` has
the socket filter, which needs no privilege.
"""

import os
import shutil
import subprocess
import sys
import textwrap
import time

import pytest

from tests.bench.groups import RECEIVER_ADDRESS, SENDER_ADDRESS
from tests.integration.peers import ROOT, eventually

TOOLS = ("unshare", "nsenter", "ip", "nft")
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or any(shutil.which(tool) is None for tool in TOOLS),
    reason=f"needs root and {', '.join(TOOLS)}",
)
COUNT = 20_000
PLACE = "udp://239.255.12.1:5600?interface={}"
PUBLISHER = """
    import sys, time, p2pmsg
    with p2pmsg.Publisher(sys.argv[1], name="feed") as publisher:
        publisher.wait_for_subscribers(1, 60)
        for start in range(0, {count}, 100):
            publisher.publish_many("t", list(range(start, start + 100)))
            if start == {count} // 2:
                print("half", flush=True)
            time.sleep(0.004)
        sys.stdin.readline()
"""
SUBSCRIBER = """
    import sys, json, time, p2pmsg
    with p2pmsg.Subscriber(sys.argv[1], name="screen", repair_timeout=float(sys.argv[2])) as sub:
        got, idle = [], time.monotonic()
        while len(got) < {count} and (not got or time.monotonic() - idle < float(sys.argv[3])):
            try:
                got += sub.receive_many(timeout=0.1).values
                idle = time.monotonic()
            except TimeoutError:
                pass
        stats = sub.stats()
        print(json.dumps([got == list(range(len(got))), len(got), stats.balanced, stats.lost,
                          sum(stats.repaired.values()), stats.outstanding,
                          sorted({{loss.reason for loss in stats.losses}})]), flush=True)
"""


def inside(pid, *command, **options):
    return subprocess.Popen(["nsenter", "-t", str(pid), "-n", *command], **options)


def python(pid, program, *arguments):
    text = textwrap.dedent(program.format(count=COUNT))
    return inside(
        pid, sys.executable, "-c", text, *arguments,
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def filter_datagrams(pid, rule, hook="input"):
    """Let nftables drop what comes in, or goes out; an empty rule takes it off."""
    lines = ["flush ruleset"]
    if rule:
        lines += [f"table inet t {{ chain c {{ type filter hook {hook} priority 0; {rule}; }}; }}"]
    done = inside(pid, "nft", "-f", "-", stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _, said = done.communicate("\n".join(lines) + "\n", timeout=60)
    if done.returncode:
        pytest.skip(f"nftables cannot do that here: {said.strip()}")


def start(wire, *, repair_timeout=10.0, idle=15.0, places=None):
    ours, theirs = places or (PLACE.format(SENDER_ADDRESS), PLACE.format(RECEIVER_ADDRESS))
    publisher = python(wire.sender_pid, PUBLISHER, ours)
    subscriber = python(wire.receiver_pid, SUBSCRIBER, theirs, str(repair_timeout), str(idle))
    return publisher, subscriber


def end(publisher, subscriber, timeout=110):
    import json

    try:
        output, _ = subscriber.communicate(timeout=timeout)
        return json.loads(output)
    finally:
        for one in (publisher, subscriber):
            one.kill()
            one.communicate()


OPEN = """
    import logging, sys, transports.udp
    logging.basicConfig(stream=sys.stdout)
    try:
        getattr(transports.udp, sys.argv[1])(sys.argv[2])
    except transports.EndpointError as error:
        print(error)
"""


@pytest.mark.long
def test_an_interface_without_an_address_is_joined_and_not_sent_through(wire):
    """As when the machine starts, before DHCP."""

    def change(*command):
        assert inside(wire.receiver_pid, "ip", "addr", *command).wait(60) == 0

    def is_member():
        shown = inside(wire.receiver_pid, "cat", "/proc/net/igmp", stdout=subprocess.PIPE)
        return b"010CFFEF" in shown.communicate(timeout=60)[0]

    def said(what, interface):
        one = python(wire.receiver_pid, OPEN, what, PLACE.format(interface))
        return one.communicate(timeout=60)[0]

    change("flush", "dev", "vb")
    assert "interface 'vb' has no IPv4 address" in said("UdpSender", "vb")
    assert said("UdpReceiver", "vb") == ""
    assert "interface 'vc' cannot be used" in said("UdpReceiver", "vc")
    publisher, subscriber = start(wire, places=(PLACE.format(SENDER_ADDRESS), PLACE.format("vb")))
    eventually(is_member)
    change("add", f"{RECEIVER_ADDRESS}/24", "dev", "vb")
    in_order, got, balanced, lost, *_ = end(publisher, subscriber)
    assert (in_order, got, balanced, lost) == (True, COUNT, True, 0)


@pytest.mark.long
def test_a_partition_heals(wire):
    publisher, subscriber = start(wire)
    assert publisher.stdout.readline() == "half\n"
    filter_datagrams(wire.receiver_pid, "drop")
    time.sleep(1.5)
    filter_datagrams(wire.receiver_pid, "")
    in_order, got, balanced, lost, _, _, _ = end(publisher, subscriber)
    assert (in_order, got, balanced, lost) == (True, COUNT, True, 0)
