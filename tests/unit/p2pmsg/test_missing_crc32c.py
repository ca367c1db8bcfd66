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
CASES = {
    "publish by tcp": ('p2pmsg.Publisher("tcp://127.0.0.1:0").close(0)', "fine"),
    "publish by udp": (f'p2pmsg.Publisher("{GROUP}")', "crc32c: p2pmsg[udp]"),
    "subscribe by udp": (f'p2pmsg.Subscriber("{GROUP}")', "crc32c: p2pmsg[udp]"),
    "log": ('p2pmsg.LogConfig("var")', "p2pmsg[log]"),
}


@pytest.mark.parametrize(("statement", "said"), CASES.values(), ids=CASES)
def test_what_needs_it_says_so(statement, said):
    code = SCRIPT.format(statement)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert said in ended.stdout
