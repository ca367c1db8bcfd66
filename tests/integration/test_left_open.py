"""Peers that Ctrl-C leaves open: each says so, ends within its time, and logs no traceback."""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys

import pytest

from recovery.log import LogReader
from tests.integration.peers import ROOT, take

LOOPED = {
    "Publisher": 'Publisher("tcp://127.0.0.1:0")',
    "Publisher with a log": 'Publisher("tcp://127.0.0.1:0", log=p2pmsg.LogConfig("log"))',
    "Subscriber": 'Subscriber("tcp://127.0.0.1:9")',
    "Pusher": 'Pusher("tcp://127.0.0.1:0")',
    "Puller": 'Puller("tcp://127.0.0.1:9")',
    "pipeline's Pusher": 'Pusher("tcp://127.0.0.1:0", acknowledge="batch")',
    "pipeline's Puller": 'Puller("tcp://127.0.0.1:9", acknowledge="batch")',
    "Requester": 'Requester("tcp://127.0.0.1:9")',
    "Responder": 'Responder("tcp://127.0.0.1:0", {"f": abs})',
    "Relay": 'Relay("tcp://127.0.0.1:9", "tcp://127.0.0.1:0")',
    "Client": 'metrics.Client("tcp://127.0.0.1:0")',
}
IMPORTS = """
import asyncio, signal, sys, time
import p2pmsg, p2pmsg.metrics
from p2pmsg import aio
from p2pmsg.aio import metrics
from p2pmsg.reader import HeadsWatch, RangeReader
from p2pmsg.statsd import Collector
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
IN_LOOP = """
async def main():
    global peer
    peer = {made}
    print("made", flush=True)
    await asyncio.sleep({seconds})
{run}(main())
"""
OWN = re.compile(  # those of Ctrl-C itself; asyncio chains two
    r"Traceback \(most recent call last\):\n(  .*\n)+"
    r"(asyncio\.exceptions\.CancelledError|KeyboardInterrupt)\b"
)


@pytest.fixture
def start(opened, tmp_path):
    def start(program):
        child = subprocess.Popen(
            [sys.executable, "-W", "error::RuntimeWarning", "-c", IMPORTS + program],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        opened.callback(child.communicate)
        opened.callback(child.kill)
        return child

    return start


def interrupt(child):
    """Press Ctrl-C; return what it says except for that.

    It is pressed again where nothing happens, as people do: a signal that comes in the moment in
    which Python goes to sleep does not wake it.
    """
    for _ in range(12):
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            said = child.communicate(timeout=5)[1]
            break
    else:
        pytest.fail("it goes on")
    assert child.returncode == -signal.SIGINT, said
    assert "KeyboardInterrupt" in said
    return OWN.sub("", said)


@pytest.mark.long
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("name", LOOPED)
def test_a_peer_of_a_loop_is_named_and_closed(start, name, loop):
    if loop == "uvloop" and importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not there")
    made = LOOPED[name]
    made = f"aio.{made}" if not made.startswith("metrics") else made
    run = "asyncio.run" if loop == "asyncio" else "import uvloop; uvloop.run"
    child = start(IN_LOOP.format(made=made, run=run, seconds=600))
    assert child.stdout.readline() == "made\n"
    said = interrupt(child)
    assert "was not closed before its event loop ended" in said
    assert "Traceback" not in said
    assert "Warning" not in said


@pytest.mark.long
def test_what_a_publisher_had_accepted_when_its_loop_ended_arrives_and_is_logged(
    start, make_subscriber, tmp_path
):
    child = start(
        """
async def main():
    global publisher
    publisher = aio.Publisher("tcp://127.0.0.1:0", log=p2pmsg.LogConfig("log"))
    print(publisher.endpoint, flush=True)
    await publisher.wait_for_subscribers(1, 60)
    for number in range(2000):
        publisher.publish("t", number)
    print("made", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    )
    subscriber = make_subscriber(child.stdout.readline().strip(), start="earliest")
    assert child.stdout.readline() == "made\n"
    child.send_signal(signal.SIGINT)
    assert [message.value for message in take(subscriber, 2000)] == [*range(2000)]
    child.communicate(timeout=60)
    reader = LogReader(tmp_path / "log")
    assert [kept.stop for kept in reader.follow(reader.session, "t", 0)][-1] == 2000
    assert not [name for name in os.listdir(tmp_path / "log") if name == "tail"]
