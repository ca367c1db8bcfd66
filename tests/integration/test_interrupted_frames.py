"""Ctrl-C while large frames are published: none is forgotten in pyzmq, which frees their memory."""

import subprocess
import sys

import pytest

COUNT = 60
PUBLISHES = f"""
import os, signal, subprocess, sys, threading, time, p2pmsg
unraisable, came = [], 0
sys.unraisablehook = lambda it: unraisable.append(it.exc_type)
def strike(number, frame):
    global came
    if frame.f_code.co_name != "<module>":  # there nobody catches it
        came += 1
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, strike)
publisher = p2pmsg.Publisher("tcp://127.0.0.1:0", replay_bytes=2**20)
READ = '''
import sys, p2pmsg
with p2pmsg.Subscriber(sys.argv[1], topics=["t"]) as subscriber:
    while True:
        subscriber.receive_many(1000, timeout=30)
'''
reader = subprocess.Popen(
    [sys.executable, "-c", READ, publisher.endpoint], stderr=subprocess.DEVNULL
)
publisher.wait_for_subscribers(1, timeout=30)
if sys.argv[1] == "busy":
    def spin():
        while True:
            pass
    threading.Thread(target=spin, daemon=True).start()
STRIKE = '''
import os, random, signal, sys, time
for _ in range({COUNT}):
    time.sleep(random.uniform(0.02, 0.05))
    os.kill(int(sys.argv[1]), signal.SIGINT)
'''
value = bytes(65536)
striker = subprocess.Popen([sys.executable, "-c", STRIKE, str(os.getpid())])
while True:
    try:
        if striker.poll() is not None:
            break
        for _ in range(20):
            publisher.publish("t", value)
    except KeyboardInterrupt:
        pass
signal.signal(signal.SIGINT, signal.SIG_IGN)
reader.kill()
print(came, len(unraisable), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("load", ["alone", "busy"])
def test_no_interrupt_is_lost_where_a_frame_is_freed(load):
    command = [sys.executable, "-c", PUBLISHES, load]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    came, unraisable = map(int, done.stdout.split())
    assert unraisable == 0, done.stderr
    assert came > COUNT // 2
