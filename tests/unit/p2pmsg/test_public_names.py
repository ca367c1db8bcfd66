"""What a program imports: few names at the top, the rest by subject."""

import importlib
import subprocess
import sys

import pytest

import p2pmsg

MODULES = (
    "aio", "app", "bridge", "config", "errors", "frames", "http", "log", "message", "metrics",
    "moldudp64", "queue", "reader", "relay", "requests", "security", "stats", "statsd", "testing",
    "webhooks",
)  # fmt: skip


def test_the_top_has_few_names_and_they_can_be_imported():
    assert len(p2pmsg.__all__) <= 30
    assert all(hasattr(p2pmsg, name) for name in p2pmsg.__all__)
    assert set(p2pmsg.__all__) <= set(dir(p2pmsg))


@pytest.mark.parametrize("name", MODULES)
def test_a_subject_has_its_names(name):
    module = importlib.import_module(f"p2pmsg.{name}")

    assert getattr(p2pmsg, name) is module
    assert all(hasattr(module, each) for each in getattr(module, "__all__", ()))


def test_an_unknown_name_is_refused_by_name():
    with pytest.raises(AttributeError, match="has no attribute 'Frobnicator'"):
        _ = p2pmsg.Frobnicator


UNUSED = {
    "": ("asyncio", "dataclasses", "json", "logging", "msgspec", "recovery", "transports", "zmq"),
    "Publisher Subscriber": (
        "argparse", "asyncio", "crc32c", "ctypes", "difflib", "email", "hashlib",
        "importlib.metadata", "logging", "multiprocessing", "p2pmsg.mold",
        "p2pmsg.multicast.datagram", "p2pmsg.multicast.sender", "p2pmsg.queue", "p2pmsg.reader",
        "p2pmsg.relay", "p2pmsg.requests", "p2pmsg.stats", "p2pmsg.subscriber.group",
        "p2pmsg.peers.commits", "p2pmsg.testing", "recovery.log",
        "ssl", "transports.diagnosis", "transports.memory",
        "transports.udp",
    ),
    "Publisher": ("p2pmsg.subscriber",),
}  # fmt: skip
IMPORTING = """
import sys, p2pmsg
peers = [getattr(p2pmsg, name) for name in sys.argv[1].split()]
made = [peer("tcp://127.0.0.1:0") for peer in peers if peer.__name__ == "Publisher"]
made += [peer(made[0].endpoint) for peer in peers if peer.__name__ == "Subscriber"]
for peer in reversed(made):
    peer.close()
print(*sys.modules)
"""


@pytest.mark.parametrize(("peers", "unused"), UNUSED.items(), ids=["nothing", "both", "publisher"])
def test_what_is_not_used_is_not_imported(peers, unused):
    command = [sys.executable, "-c", IMPORTING, peers]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert not set(unused) & set(ended.stdout.split()), ended.stderr
    assert "p2pmsg" in ended.stdout.split(), ended.stderr
