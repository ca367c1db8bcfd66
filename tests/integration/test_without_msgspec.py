"""Without msgspec peers do all that they do with it, and talk to peers that have it."""

import subprocess
import sys

import pytest

from p2pmsg import codec
from tests.integration.peers import ROOT

HIDDEN = """
import sys
sys.modules["msgspec"] = None  # so that importing it raises ModuleNotFoundError
"""
PEERS = """
import datetime, decimal, pathlib, tempfile, threading
from dataclasses import dataclass
import p2pmsg
from p2pmsg import codec
from p2pmsg.errors import InvalidValueError
assert codec.NAME == "msgpack"

@dataclass
class Trade:
    price: decimal.Decimal
    day: datetime.date | None = None

folder = pathlib.Path(tempfile.mkdtemp())
log = p2pmsg.LogConfig(folder / "log")
for run in range(2):
    with (
        p2pmsg.Publisher("tcp://127.0.0.1:0", log=log) as publisher,
        p2pmsg.Subscriber(
            publisher.endpoint, types={"t": Trade}, cursor=folder / "cursor", commit="message",
            start="earliest",
        ) as subscriber,
    ):
        publisher.wait_for_subscribers(1, timeout=60)
        publisher.publish("t", Trade(decimal.Decimal("1.50"), datetime.date(2026, 1, run + 1)))
        publisher.publish_many("t", [{"price": "2"}, {"price": None}, {"price": 3}], keys=["k"] * 3)
        publisher.publish("u", {"a": [1, 2.5, b"x"]}, headers={"h": 1}, timestamp_ns=5)
        found = []
        while len(found) < 5:
            try:
                found.append(subscriber.receive(60).value)
            except InvalidValueError as error:
                found.append(error.path)
        trades = [one.price for one in found if isinstance(one, Trade)]
        assert sorted(trades) == [decimal.Decimal(text) for text in ("1.50", "2", "3")], found
        assert "$.price" in found and {"a": [1, 2.5, b"x"]} in found, found
        assert subscriber.stats().balanced
kept = p2pmsg.queue.QueueLogConfig(directory=str(folder / "queue"))
with p2pmsg.Pusher("tcp://127.0.0.1:0", log=kept) as pusher:
    with p2pmsg.Puller(pusher.endpoint) as puller:
        for number in range(20):
            pusher.push({"n": number}, key="k", headers={"h": number})
        for number in range(20):
            with puller.receive(60) as job:
                assert (job.value, job.headers) == ({"n": number}, {"h": number})
        pusher.join(timeout=60)
with p2pmsg.Responder("tcp://127.0.0.1:0", {"double": lambda value: 2 * value}) as responder:
    with p2pmsg.Requester([responder.endpoint]) as requester:
        assert requester.request("double", 21, timeout=60) == 42
assert "msgspec" not in {name for name, one in sys.modules.items() if one is not None}
print("done")
"""
READER = """
import sys
import p2pmsg
from p2pmsg import codec
assert codec.NAME == "msgpack"
with p2pmsg.Subscriber(sys.argv[1], start="earliest") as subscriber:
    values = [subscriber.receive(60).value for _ in range(int(sys.argv[2]))]
sys.stdout.buffer.write(codec.encode(values))
"""


def run(code, *arguments):
    ended = subprocess.run(
        [sys.executable, "-c", HIDDEN + code, *map(str, arguments)],
        capture_output=True, timeout=100, cwd=ROOT,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, b"")
    return ended.stdout


def test_every_kind_of_peer_works_without_msgspec():
    assert run(PEERS) == b"done\n"


def test_a_reader_without_msgspec_gets_what_a_publisher_with_it_sends(make_publisher):
    if codec.NAME != "msgspec":
        pytest.skip("there is no msgspec here")
    values = [
        1,
        -5,
        2**63,
        1.5,
        "é" * 300,
        b"x" * 70_000,
        None,
        True,
        [1, [2, {"a": None}]],
        {1: 2},
    ]
    publisher = make_publisher()
    for value in values:
        publisher.publish("t", value)
    publisher.publish_many("t", values)

    assert run(READER, publisher.endpoint, 2 * len(values)) == codec.encode(values * 2)
