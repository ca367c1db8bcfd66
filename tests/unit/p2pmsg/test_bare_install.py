"""After `pip install p2pmsg`, without any extra: what works, and what is said of the rest."""

import subprocess
import sys

import pytest


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
