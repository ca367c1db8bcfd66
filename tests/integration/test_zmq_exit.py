"""What a process has yet to send when it ends, out of memory that nobody else holds any more."""

import os
import subprocess
import sys

import pytest

from tests.unit.transports.sockets import socket_opener
from transports import ZmqReceiver
from transports.zmq_frame import SHARED_BYTES

COUNT = 200
FRAME_BYTES = 8 * SHARED_BYTES
LEAVES = f"""
import transports
sender = transports.ZmqSender("tcp://127.0.0.1:0", context=transports.context())
print(sender.endpoint, flush=True)
while not sender.receive_subscriptions():
    pass
for number in range({COUNT}):
    frame = b"%08d" % number + bytes([number]) * {FRAME_BYTES - 8}
    assert sender.send(transports.make_zmq_frame(frame) if number % 2 else frame)
sender.close(linger_ms=10_000)
print("leaving", flush=True)
"""


@pytest.fixture
def opened():
    with socket_opener() as open_socket:
        yield open_socket


def test_large_frames_leave_unharmed_after_the_program_has_ended(opened):
    # glibc overwrites with this what is freed, so that a frame freed too early shows.
    environment = {**os.environ, "MALLOC_PERTURB_": "165"}
    command = [sys.executable, "-c", LEAVES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            endpoint = child.stdout.readline().strip()
            receiver = opened(ZmqReceiver, endpoint, queue_frames=1)
            receiver.subscribe(b"")
            receiver.connect()
            assert child.stdout.readline() == "leaving\n"
            for number in range(COUNT):
                frame = receiver.receive_wait(10_000)
                assert frame == b"%08d" % number + bytes([number]) * (FRAME_BYTES - 8), number
            assert child.wait(20) == 0
        finally:
            child.kill()
