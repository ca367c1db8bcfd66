"""Without the package crc32c all but multicast and the log works, and those say what is missing."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys

class NoCrc32c:
    def find_spec(self, name, path=None, target=None):
        if name == "crc32c":
            raise ImportError(name, name=name)

sys.meta_path.insert(0, NoCrc32c())
import p2pmsg
try:
    {}
except p2pmsg.ConfigError as error:
    print(error)
else:
    print("fine")
"""
GROUP = "udp://239.255.77.1:47000?interface=127.0.0.1"
UDP = (
    "endpoint 'udp://' needs the package crc32c, which is not installed: "
    "pip install 'p2pmsg[udp]'"
)
CASES = {
    "publish by tcp": ('p2pmsg.Publisher("tcp://127.0.0.1:0").close(0)', "fine"),
    "publish by udp": (f'p2pmsg.Publisher("{GROUP}")', UDP),
    "subscribe by udp": (f'p2pmsg.Subscriber("{GROUP}")', UDP),
    "log": ('p2pmsg.LogConfig("var")', "p2pmsg[log]"),
}


def output_of(code):
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.mark.parametrize(("statement", "said"), CASES.values(), ids=CASES)
def test_what_needs_it_says_so(statement, said):
    assert said in output_of(SCRIPT.format(statement))


ONLY = """
import importlib.machinery, sys, sysconfig
HAD = {"zmq", "msgspec"}

class Bare:
    \"\"\"Finds no third-party package but the two that p2pmsg needs.\"\"\"

    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root in HAD or root in sys.stdlib_module_names:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if found is not None and "-packages" in str(found.origin):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Bare())
"""
BARE = {
    "hasattr": """
import p2pmsg
assert not hasattr(p2pmsg, "LogConfig")
assert not hasattr(p2pmsg, "LogReader")
assert hasattr(p2pmsg, "LogLockedError")
assert getattr(p2pmsg, "LogConfig", None) is None
hasattr(p2pmsg, "metrics"), hasattr(p2pmsg, "statsd")
""",
    "import *": """
from p2pmsg import *
assert Publisher and Subscriber and LogFormatError
assert "LogConfig" not in globals()
""",
    "import * of statsd": "from p2pmsg.statsd import *\nassert parse_line",
    "import * of metrics": "from p2pmsg.metrics import *\nassert Client",
    "pydoc": """
import pydoc
text = pydoc.render_doc("p2pmsg", renderer=pydoc.plaintext)
assert "class Publisher" in text
pydoc.render_doc("p2pmsg.statsd", renderer=pydoc.plaintext)
""",
    "spark_bridge": """
import pydoc, spark_bridge
assert not hasattr(spark_bridge, "LagListener")
assert all(hasattr(spark_bridge, name) for name in spark_bridge.__all__)
pydoc.render_doc("spark_bridge", renderer=pydoc.plaintext)
from spark_bridge import *
assert configure and CommittedRows
try:
    spark_bridge.LagListener
except spark_bridge.MissingNameError as error:
    assert "pip install 'p2pmsg[spark]'" in str(error)
else:
    raise AssertionError
""",
    "inspect": """
import inspect, p2pmsg
inspect.getmembers(p2pmsg)
assert all(hasattr(p2pmsg, name) for name in p2pmsg.__all__)
""",
    "what is missing is named": """
import p2pmsg
try:
    p2pmsg.LogConfig
except p2pmsg.MissingExtraError as error:
    assert isinstance(error, p2pmsg.ConfigError)
    assert (error.package, error.extra) == ("crc32c", "log")
    assert "pip install 'p2pmsg[log]'" in str(error)
else:
    raise AssertionError
""",
}


@pytest.mark.parametrize("statement", BARE.values(), ids=BARE)
def test_with_nothing_but_what_is_needed_the_package_can_be_looked_at(statement):
    output_of(ONLY + statement)
