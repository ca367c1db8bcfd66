"""TCP in network namespaces: addresses with a zone, connections whose packets are dropped.

They need root (`unshare`, `nsenter`, `ip`, `nft`).
"""

import json
import subprocess
import sys
import textwrap

import pytest

from tests.integration.peers import ROOT
from tests.integration.test_udp_network import inside, pytestmark  # noqa: F401

NEAR_END = """
    import json, sys, p2pmsg
    at = "tcp://[fe80::1%va]:{}"
    with (
        p2pmsg.Publisher(at.format(5600), name="feed") as publisher,
        p2pmsg.Pusher(at.format(5601)) as pusher,
        p2pmsg.Responder(at.format(5602), {"double": lambda n: 2 * n}),
    ):
        publisher.publish_many("t", list(range(10)))
        pusher.push("job")
        print("open", flush=True)
        relay = sys.stdin.readline().strip()
        with p2pmsg.Subscriber(relay, start=0) as subscriber:
            values = [subscriber.receive(timeout=60).value for _ in range(10)]
        print(json.dumps(values), flush=True)
        sys.stdin.readline()
"""
FAR_END = """
    import json, p2pmsg
    from p2pmsg.reader import RangeReader
    at = "tcp://[fe80::1%vb]:{}"
    with p2pmsg.Relay(at.format(5600), "tcp://[fe80::2%vb]:5603"):
        with p2pmsg.Subscriber(at.format(5600), start=0) as subscriber:
            values = [subscriber.receive(timeout=60).value for _ in range(10)]
        with RangeReader(at.format(5600)) as reader:
            values.append([one for batch in reader.fetch("t", 0, 3) for one in batch.values])
        with p2pmsg.Puller(at.format(5601)) as puller:
            job = puller.receive(timeout=60)
            job.ack()
            values.append(job.value)
        with p2pmsg.Requester(at.format(5602)) as requester:
            values.append(requester.request("double", 21, timeout=60))
        print(json.dumps(values), flush=True)
        input()
"""


def run_in(pid, program):
    return inside(
        pid, sys.executable, "-c", textwrap.dedent(program),
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_link_local_addresses_have_the_zone_of_who_connects(wire):
    """The zone that a publisher announces, `va`, is no interface of the subscriber's host."""
    for pid, name, address in (
        (wire.sender_pid, "va", "fe80::1"),
        (wire.receiver_pid, "vb", "fe80::2"),
    ):
        if inside(pid, "ip", "addr", "add", f"{address}/64", "dev", name, "nodad").wait(60):
            pytest.skip("no IPv6 here")
    here = run_in(wire.sender_pid, NEAR_END)
    there = run_in(wire.receiver_pid, FAR_END)
    try:
        assert here.stdout.readline() == "open\n"
        values = json.loads(there.stdout.readline() or "[]")
        assert values == [*range(10), [0, 1, 2], "job", 42]
        print("tcp://[fe80::2%va]:5603", file=here.stdin, flush=True)
        assert json.loads(here.stdout.readline() or "[]") == [*range(10)]
    finally:
        for one in (here, there):
            one.kill()
            one.communicate()


DROPPED = """
    import asyncio, subprocess, p2pmsg
    from p2pmsg import aio

    def nft(*lines):
        subprocess.run(["nft", "-f", "-"], input="\\n".join([*lines, ""]), text=True, check=True)

    def drop(endpoint):
        # For ever, all that the connections there have now: others have other ports.
        there, rules = int(endpoint.rpartition(":")[2]), []
        for line in open("/proc/self/net/tcp").readlines()[1:]:
            here, to, state = line.split()[1:4]
            if state == "01" and int(to.rpartition(":")[2], 16) == there:
                port = int(here.rpartition(":")[2], 16)
                rules += [f"add rule inet loss input tcp {way} {port} drop"
                          for way in ("sport", "dport")]
        nft(*rules)

    def answer(endpoint):  # over a connection that has just been cut
        if endpoint:
            drop(endpoint)

    patient = {"timeout": 1000.0, "attempts_max": 2}  # asked again after 500 s

    def in_threads(loses):
        with (
            p2pmsg.Responder("tcp://127.0.0.1:0", {"t": answer}) as responder,
            p2pmsg.Requester(responder.endpoint) as requester,
        ):
            requester.request("t")
            if loses == "request":
                drop(responder.endpoint)
            requester.request("t", loses == "answer" and responder.endpoint, **patient)
            return 1

    async def in_loop(loses):
        with p2pmsg.Responder("tcp://127.0.0.1:0", {"t": answer}) as responder:
            async with aio.Requester(responder.endpoint) as requester:
                await requester.request("t")
                if loses == "request":
                    drop(responder.endpoint)
                await requester.request("t", loses == "answer" and responder.endpoint, **patient)
                return 1

    async def main():
        print(sum(await asyncio.gather(*(
            one for what in ("request", "answer")
            for one in (asyncio.to_thread(in_threads, what), in_loop(what))
        ))), "answered")

    nft("table inet loss {", "chain input {", "type filter hook input priority 0;", "}", "}")
    asyncio.run(main())
"""


def test_a_request_outlives_the_connection_that_carried_it(wire):
    """Its packets are dropped for ever, or those of the answer; a new connection is as any."""
    asking = run_in(wire.sender_pid, DROPPED)
    try:
        assert asking.communicate(timeout=60)[0] == "4 answered\n"
    finally:
        asking.kill()
        asking.communicate()
