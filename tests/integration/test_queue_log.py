"""A queue's log and the processes around it: forks, a disk that is full."""

import os
import signal
import subprocess
import sys
import time

import p2pmsg
from tests.integration.peers import LOOPBACK

FORKS = """
import os, sys, time, p2pmsg
pusher = p2pmsg.Pusher("tcp://127.0.0.1:0", log=sys.argv[1])
pusher.push("before")
if not os.fork():
    try:
        pusher.push("in the child")
    except p2pmsg.ClosedError:
        print(os.getpid(), flush=True)
time.sleep(60)
"""

FILLS = """
import resource, sys, p2pmsg
with p2pmsg.Pusher(sys.argv[1], log=sys.argv[2], in_flight_max=10**6, ack_timeout=60) as pusher:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    pushed = 0
    for value in (bytes(1000), b""):  # the second ones fill what the first ones left
        try:
            while True:
                pusher.push(value, key=f"k{pushed}")
                pushed += 1
        except OSError:
            pass
    print(pushed, flush=True)
    sys.stdin.readline()
    stats = pusher.stats()
    print(stats.done, stats.in_hands, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    sys.stdin.readline()
    print(pusher.push("more", key="more"), flush=True)
    pusher.join(timeout=60)
    print(pusher.stats().balanced, pusher.stats().done, flush=True)
"""


def start(opened, code, *arguments):
    child = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for call in (child.stdout.close, child.stdin.close, child.wait, child.kill):
        opened.callback(call)
    return child


def test_a_forked_child_does_not_keep_the_log_of_its_dead_parent(tmp_path, opened):
    parent = start(opened, FORKS, tmp_path / "log")
    opened.callback(os.kill, int(parent.stdout.readline()), signal.SIGKILL)
    parent.kill()
    parent.wait()

    with p2pmsg.Pusher(LOOPBACK, log=tmp_path / "log") as pusher:
        assert pusher.stats().restored == 1


def test_while_the_disk_is_full_nothing_is_said_that_is_not_written(tmp_path, opened, make_puller):
    place = f"ipc://{tmp_path}/queue"
    child = start(opened, FILLS, place, tmp_path / "log")
    pushed = int(child.stdout.readline())
    assert pushed > 50
    puller = make_puller(place, prefetch=64)
    # Jobs with keys are given out once that is written down, which it cannot be.
    time.sleep(0.5)
    assert puller.stats().received == 0
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline().split()[0] == "0"
    child.stdin.write("\n")
    child.stdin.flush()
    assert int(child.stdout.readline()) == pushed
    for _ in range(pushed + 1):
        puller.receive(timeout=60).ack()
    assert child.stdout.readline().split() == ["True", str(pushed + 1)]
    assert child.wait(60) == 0


def test_a_change_of_rights_makes_no_copy_of_a_log(tmp_path, caplog):
    with p2pmsg.Pusher("inproc://rights", log=tmp_path) as pusher:
        session = pusher.session
        pusher.push(1)
    for path in (tmp_path, *tmp_path.iterdir()):  # as who mounts a volume may do at each start
        os.chown(path, os.getuid(), os.getgid())

    with p2pmsg.Pusher("inproc://rights", log=tmp_path) as pusher:
        assert pusher.session == session
    assert "copy" not in caplog.text
