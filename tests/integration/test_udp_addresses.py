"""Publishers with several addresses, and with another one than before, in network namespaces."""

import json

import pytest

from tests.bench.groups import RECEIVER_ADDRESS, SENDER_ADDRESS
from tests.integration.test_udp_network import filter_datagrams, inside, pytestmark, python  # noqa: F401

PUBLISHER = """
    import sys, time, p2pmsg
    with p2pmsg.Publisher(sys.argv[1].split(","), name="feed") as publisher:
        publisher.wait_for_subscribers(1, 60)
        print("joined", flush=True)
        n = 0
        while n < int(sys.argv[2]):
            publisher.publish("t", n)
            n += 1
            time.sleep(0.005)
        sys.stdin.readline()
"""
SUBSCRIBER = """
    import sys, json, p2pmsg
    with p2pmsg.Subscriber(sys.argv[1].split(","), start="earliest") as sub:
        got = []
        while len(got) < int(sys.argv[2]):
            got += sub.receive_many(timeout=30).values
        stats = sub.stats()
        print(json.dumps([got == list(range(len(got))), stats.lost,
                          [line.connected for line in stats.lines]]), flush=True)
"""
A, B = "udp://239.255.12.1:5601?interface={}", "udp://239.255.12.2:5602?interface={}"
V6 = "udp://[ff15::78]:5603?interface={}"


def add_addresses(wire, ours, theirs):
    for pid, name, address in ((wire.sender_pid, "va", ours), (wire.receiver_pid, "vb", theirs)):
        nodad = ["nodad"] if ":" in address else []
        if inside(pid, "ip", "addr", "add", address, "dev", name, *nodad).wait(60):
            pytest.skip("no such addresses here")


def run(wire, ours, theirs, count, midway=None):
    publisher = python(wire.sender_pid, PUBLISHER, ours, str(count))
    subscriber = python(wire.receiver_pid, SUBSCRIBER, theirs, str(count))
    try:
        assert publisher.stdout.readline() == "joined\n"
        if midway is not None:
            midway()
        return json.loads(subscriber.stdout.readline())
    finally:
        for one in (publisher, subscriber):
            one.kill()
            one.communicate()


@pytest.mark.long
def test_where_tcp_is_blocked_on_one_line_it_is_used_over_the_other(wire):
    add_addresses(wire, "10.78.0.1/24", "10.78.0.2/24")
    filter_datagrams(wire.sender_pid, f"ip daddr {SENDER_ADDRESS} meta l4proto tcp drop")
    ours = f"{A.format(SENDER_ADDRESS)},{B.format('10.78.0.1')}"
    theirs = f"{A.format(RECEIVER_ADDRESS)},{B.format('10.78.0.2')}"
    in_order, lost, connected = run(wire, ours, theirs, 20)
    assert (in_order, lost, connected) == (True, 0, [True, True])


@pytest.mark.long
@pytest.mark.parametrize("lines", [[A.format("va"), V6], [V6, A.format("va")]])
def test_a_subscriber_of_the_ipv6_line_alone_joins(wire, lines):
    add_addresses(wire, "fd77::1/64", "fd77::2/64")
    ours = ",".join(one.format("va") for one in lines)
    assert run(wire, ours, V6.format("vb"), 20) == [True, 0, [True]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("group", "before", "after"),
    [(V6, "fd77::1/64", "fd77::9/64"), (A, f"{SENDER_ADDRESS}/24", "10.77.0.9/24")],
)
def test_a_publisher_whose_address_changes_is_received_on(wire, group, before, after):
    add_addresses(wire, "fd77::1/64", "fd77::2/64")

    def change():
        assert inside(wire.sender_pid, "ip", "addr", "del", before, "dev", "va").wait(60) == 0
        nodad = ["nodad"] if ":" in after else []
        added = inside(wire.sender_pid, "ip", "addr", "add", after, "dev", "va", *nodad)
        assert added.wait(60) == 0

    in_order, lost, _ = run(wire, group.format("va"), group.format("vb"), 2000, change)
    assert (in_order, lost) == (True, 0)
