"""Signals while large frames are published: what a handler raises is not forgotten in pyzmq.

It frees their memory, and handles signals where it does.
"""

import subprocess
import sys

import pytest

PUBLISHES = """
import os, signal, subprocess, sys, threading, p2pmsg
which, load = signal.Signals[sys.argv[1]], sys.argv[2]
raised = KeyboardInterrupt if which == signal.SIGINT else SystemExit
unraisable, came = [], 0
sys.unraisablehook = lambda it: unraisable.append(it.exc_type)
def strike(number, frame):
    raise raised
if sys.argv[3] == "own":
    signal.signal(which, strike)
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
if load == "busy":
    def spin():
        while True:
            pass
    threading.Thread(target=spin, daemon=True).start()
STRIKE = '''
import os, random, sys, time
for _ in range(int(sys.argv[3])):
    time.sleep(random.uniform(0.02, 0.05))
    os.kill(int(sys.argv[1]), int(sys.argv[2]))
'''
value = bytes(65536)
striker = subprocess.Popen(
    [sys.executable, "-c", STRIKE, str(os.getpid()), str(int(which)), sys.argv[4]]
)
def has_ended():  # what strikes in `Popen.poll` would leave its lock taken
    try:
        return os.waitpid(striker.pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
is_over = False
while not is_over:
    try:  # for what strikes where the other one has just caught
        while not is_over:
            try:
                is_over = has_ended()
                for _ in range(20):
                    publisher.publish("t", value)
            except raised:
                came += 1
    except raised:
        came += 1
signal.signal(which, signal.SIG_IGN)
reader.kill()
print(came, len(unraisable), flush=True)
os._exit(0)
"""


CASES = {  # each signal, each handler and each load once, then the rest
    ("SIGINT", "usual", "alone"): (),
    ("SIGINT", "own", "busy"): (),
    ("SIGTERM", "own", "alone"): (),
    ("SIGALRM", "own", "busy"): (),
    ("SIGINT", "usual", "busy"): pytest.mark.long,
    ("SIGINT", "own", "alone"): pytest.mark.long,
    ("SIGTERM", "own", "busy"): pytest.mark.long,
    ("SIGALRM", "own", "alone"): pytest.mark.long,
}


@pytest.mark.rounds(20, 400)
@pytest.mark.parametrize(
    ("name", "handler", "load"),
    [pytest.param(*case, marks=marks) for case, marks in CASES.items()],
)
def test_nothing_is_lost_where_a_frame_is_freed(name, handler, load, rounds):
    command = [sys.executable, "-c", PUBLISHES, name, load, handler, str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr  # else SystemExit has ended it there
    came, unraisable = map(int, done.stdout.split())
    assert unraisable == 0, done.stderr
    assert came > rounds // 2
