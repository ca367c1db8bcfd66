"""An exception at any line of a puller's engines: after `resync` no job is forgotten."""

import sys

import pytest

from p2pmsg.queue import puller_core
from p2pmsg.queue.pipeline import taking
from p2pmsg.queue.puller_core import Process, PullerCore
from p2pmsg.queue.rules import JobRun
from tests.unit.p2pmsg.queue.test_puller_core import down, make_pusher, up

JOBS = 6


def struck_at(line, module, call):
    """Call, with an interrupt at the so many-th line of a module that runs; whether it came."""
    left = line

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def work(pusher, line, done, now_ns):
    """Do one round of both ends, and all jobs that are there."""
    line.handle_timer(now_ns=now_ns)
    up(line, pusher, now_ns=now_ns)
    pusher.handle_timer(now_ns=now_ns)
    down(pusher, line, now_ns=now_ns)
    while (job := line.take(now_ns=now_ns)) is not None:
        done.append(job.sequence)
        if job.sequence % 3 == 2 and job.delivery_count == 1:
            line.reject(job, "not yet", 0.0)
        else:
            line.ack(job)
    line.flush(now_ns=now_ns)


def test_at_any_line_of_one_that_acknowledges_each():
    number, was_struck = 0, True
    while was_struck:
        number += 1
        pusher = make_pusher()
        pusher.queue.store.push_run(JobRun(0, b"\xc0" * JOBS, [*range(1, JOBS + 1)], 0))
        line, done = PullerCore(1, "worker", 4, Process(), now_ns=0), []

        def some(pusher=pusher, line=line, done=done):
            for step in range(8):
                work(pusher, line, done, step * 10**9)

        if was_struck := struck_at(number, puller_core, some):
            line.resync()
        for step in range(8, 40):
            work(pusher, line, done, step * 10**9)
        store = pusher.queue.store
        assert (store.done, store.in_flight) == (JOBS, 0), number
        assert {*done} == {*range(JOBS)}
        assert (line.unsent, len(line.ready), line.has_unconfirmed) == (0, 0, False)
    assert number > 300


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [1, 2, 0, 4, 3], [4, 3, 2, 1, 0]])
def test_at_any_line_of_the_frames_of_a_share(order):
    number, was_struck = 0, True
    while was_struck:
        number += 1
        intake, left = taking.Intake(7), [*order]

        def receive(intake=intake, left=left):
            while left:
                frame = left.pop(0)
                intake.receive(frame, b"%d" % frame, now_ns=0)

        if was_struck := struck_at(number, taking, receive):
            intake.resync()
        receive()
        intake.on_head(len(order), now_ns=0)
        for start, stop in intake.missing(now_ns=10**10):
            for frame in range(start, stop):
                intake.receive(frame, b"%d" % frame, now_ns=10**10)
        assert [each.number for each in intake.ready] == [*range(len(order))], number
        assert intake.bytes == len(order)
    assert number > 20
