"""Requests through forks and kills: whose answer is whose, and how often work is done."""

import os
import subprocess
import sys
import threading

import pytest

import p2pmsg

FORKS = """
import os, sys, threading, p2pmsg

def ask(requester, who):
    try:
        answers = [requester.request("echo", f"{who} {n}", timeout=5.0) for n in range(3)]
        print(answers == [f"{who} {n}" for n in range(3)], flush=True)
    except p2pmsg.ClosedError as error:
        print(error, flush=True)

requester = p2pmsg.Requester(sys.argv[1])
requester.request("echo", "before")
if child := os.fork():
    ask(requester, "parent")
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    for call in (ask, ask):
        thread = threading.Thread(target=call, args=(requester, "child"))
        thread.start()
        thread.join()
        requester = p2pmsg.Requester(sys.argv[1])
    os._exit(0)
"""

WORKS = """
import os, sys, time, p2pmsg
place, done, dies = sys.argv[1:]

def work(value):
    with open(done, "a") as book:
        book.write(f"{value}\\n")
    if dies == "dies":
        os.kill(os.getpid(), 9)
    return value

with p2pmsg.Responder(place, {"work": work}):
    print("ready", flush=True)
    time.sleep(60)
"""


def start(opened, code, *arguments):
    child = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    for call in (child.stdout.close, child.wait, child.kill):
        opened.callback(call)
    return child


def test_a_forked_child_does_not_get_its_parents_answers(tmp_path, opened):
    place = f"ipc://{tmp_path}/requests"
    with p2pmsg.Responder(place, {"echo": lambda value: value}) as responder:
        child = start(opened, FORKS, place)
        told = [child.stdout.readline().strip() for _ in range(4)]
        assert child.wait(20) == 0
    refused = "the requester cannot be used: it belongs to the parent process"
    assert sorted(told) == sorted(["True", refused, "True", "0"])
    assert responder.cached == 0


@pytest.mark.parametrize("attempts_max", [1, 3])
def test_a_responder_that_dies_between_work_and_answer(tmp_path, opened, attempts_max):
    """At least once while attempts are left, and at most once with one."""
    place, done = f"ipc://{tmp_path}/requests", tmp_path / "done"
    first = start(opened, WORKS, place, done, "dies")
    assert first.stdout.readline() == "ready\n"
    requester = opened.enter_context(p2pmsg.Requester(place))
    found = []
    # One attempt is waited for to its end.
    options = {"timeout": 4.0 if attempts_max > 1 else 2.0, "attempts_max": attempts_max}

    def ask():
        try:
            found.append(requester.request("work", "it", **options))
        except TimeoutError:
            found.append("time-out")

    asking = threading.Thread(target=ask)
    asking.start()
    assert first.wait(10) == -9
    os.unlink(tmp_path / "requests")
    second = start(opened, WORKS, place, done, "lives")
    assert second.stdout.readline() == "ready\n"
    asking.join(20)
    assert found == (["it"] if attempts_max > 1 else ["time-out"])
    assert done.read_text().split() == ["it"] * (2 if attempts_max > 1 else 1)
