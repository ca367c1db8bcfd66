"""What a program imports, catches and calls: names, errors, arguments, and what is installed."""

import importlib
import inspect
import subprocess
import sys

import pytest

import p2pmsg
import recovery.errors
import recovery.log
from p2pmsg import errors

MODULES = (
    "aio", "app", "bridge", "config", "errors", "frames", "http", "listener", "log", "message",
    "metrics", "moldudp64", "queue", "reader", "relay", "requests", "security", "stats",
    "statsd", "testing", "webhooks",
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
        "ssl", "transports.memory", "transports.udp",
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


def test_all_errors_are_exported_and_in_the_drawn_tree():
    found = [
        name
        for name, each in vars(errors).items()
        if inspect.isclass(each) and issubclass(each, p2pmsg.P2PError) and name[0] != "_"
    ]
    assert len(found) > 20
    for name in found:
        assert name in errors.__doc__


def test_a_log_that_another_writer_has_raises_ours(tmp_path):
    config = p2pmsg.LogConfig(tmp_path)
    with p2pmsg.Publisher("tcp://127.0.0.1:0", log=config):
        with pytest.raises(p2pmsg.errors.LogInUseError) as caught:
            p2pmsg.Publisher("tcp://127.0.0.1:0", log=config)
        assert isinstance(caught.value, p2pmsg.P2PError)
        assert isinstance(caught.value.__cause__, recovery.log.LogLockedError)
        with pytest.raises(p2pmsg.errors.LogInUseError):
            p2pmsg.Relay("tcp://127.0.0.1:1", "tcp://127.0.0.1:0", log=config)


def test_a_log_that_is_none_raises_ours(tmp_path):
    with p2pmsg.Publisher("tcp://127.0.0.1:0", log=p2pmsg.LogConfig(tmp_path)) as publisher:
        publisher.publish("t", 1)
    (segment,) = tmp_path.glob("*.log")
    segment.write_bytes(b"something else, and long enough to be looked at" * 10)
    with pytest.raises(p2pmsg.errors.LogFormatError) as caught:
        p2pmsg.Publisher("tcp://127.0.0.1:0", log=p2pmsg.LogConfig(tmp_path))
    assert str(tmp_path) in caught.value.path
    assert caught.value.offset == 0
    assert str(caught.value) == str(caught.value.__cause__)


def output_of(code):
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


ONLY = """
import importlib.machinery, sys, sysconfig
HAD = {"zmq", "msgpack", "msgspec", "crc32c"}

class Bare:
    \"\"\"Finds no third-party package but those that p2pmsg needs.\"\"\"

    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root in HAD or root in sys.stdlib_module_names:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if found is not None and "-packages" in str(found.origin):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Bare())
"""
LOOKS = """
import tempfile, p2pmsg
from p2pmsg import *
assert Publisher and Subscriber and LogConfig
assert all(hasattr(p2pmsg, name) for name in p2pmsg.__all__)
assert not hasattr(p2pmsg, "Frobnicator")
group = "udp://239.255.77.1:47000?interface=127.0.0.1&ttl=0"
log = p2pmsg.LogConfig(tempfile.mkdtemp())
with p2pmsg.Publisher(group, log=log) as publisher, p2pmsg.Subscriber(group) as subscriber:
    publisher.wait_for_subscribers(1, timeout=60.0)
    publisher.publish("t", 1)
    assert subscriber.receive(timeout=60.0).value == 1
from p2pmsg.statsd import parse_line
from p2pmsg.metrics import *
assert parse_line and Client
import p2pmsg.statsd
try:
    from p2pmsg.statsd import Collector
except ModuleNotFoundError as error:
    assert "p2pmsg.statsd.Collector needs the package" in str(error), error
    assert "pip install 'p2pmsg[statsd]'" in str(error)
else:
    raise AssertionError
from p2pmsg import errors, webhooks
from p2pmsg.http import make_server
assert webhooks.receive and webhooks.Endpoint("https://example.com")
for make in (
    lambda: webhooks.Sender("tcp://127.0.0.1:1", state="/nonexistent", endpoints=[]),
    lambda: webhooks.Endpoint("https://example.com", secret="whsk_" + "A" * 43 + "="),
    lambda: make_server(None),
):
    try:
        make()
    except errors.MissingExtraError as error:
        assert isinstance(error, errors.ConfigError)
        assert "pip install 'p2pmsg[" in str(error)
    else:
        raise AssertionError
"""
SPARK = """
import spark_bridge
assert not hasattr(spark_bridge, "LagListener")
assert all(hasattr(spark_bridge, name) for name in spark_bridge.__all__)
from spark_bridge import *
assert configure and CommittedRows
try:
    spark_bridge.LagListener
except AttributeError as error:
    assert "pip install 'p2pmsg[spark]'" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.parametrize("statement", [LOOKS, pytest.param(SPARK, marks=pytest.mark.long)])
def test_with_nothing_but_what_is_needed_the_package_can_be_looked_at(statement):
    output_of(ONLY + statement)
