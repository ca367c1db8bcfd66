"""The work queue: `p2pmsg push` and `pull`."""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from p2pmsg import Puller, Pusher
from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import command, note, option
from p2pmsg.cli.program import check_program, run_program
from p2pmsg.cli.pubsub import publish_lines
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import value_text
from p2pmsg.errors import MessageError, SecurityError
from p2pmsg.queue import Job
from p2pmsg.toolkit import json_value, to_json

DISCARD_STATUS = 65
"""EX_DATAERR of sysexits.h: the input is wrong, so no worker can do the job."""
_SLICE_S = 0.25
"""How often `pull` looks whether it is to end."""
_EXTEND_S = 60.0
"""For how long `pull` extends a job, again and again while its command runs."""
_ACKNOWLEDGE = option(
    "--acknowledge", "each (default), or batch: workers confirm many jobs at a time, which is "
    "faster", choices=("each", "batch"), default="each",
)  # fmt: skip


@command(
    "push", kinds.BIND_STREAM, kinds.JSON_LINES, _ACKNOWLEDGE,
    option("--key-field", f"{kinds.KEY_FIELD}; jobs of one key keep their order", "FIELD"),
    option("--log", "keep jobs in this log, and continue with those that were not done", "DIR"),
    option("--deliveries", "a job that failed so many attempts is a dead letter (default 5)", "N",
           kinds.count(1)),
    option("--timeout", "give up when jobs are not done so many seconds after the last line "
           "(default: never)", "S", kinds.seconds),
    *SECURITY,
)  # fmt: skip
def push(arguments: argparse.Namespace) -> int:
    """Make a job of each line of standard input.

    A job's value is the line's bytes; with --json, the JSON value on it. At the end the command
    waits until all jobs are done. A line that cannot be a job is an end, too: the jobs of those
    before it are waited for. Exit status 1: there was such a line, or some jobs became dead
    letters.

    With --acknowledge batch, jobs are for `p2pmsg pull --acknowledge batch`: workers confirm many
    at a time, which is faster, and there are no keys, dead letters and logs.

    For example:
      seq 100 | p2pmsg push tcp://127.0.0.1:5557
      p2pmsg push 'tcp://*:5557' --json --key-field order --log jobs.log < orders.jsonl
    """
    source = kinds.standard_input()
    pusher = Pusher(
        arguments.endpoint,
        acknowledge=arguments.acknowledge,
        log=arguments.log,
        deliveries_max=arguments.deliveries,
        security=security_of(arguments),
    )

    def push_one(value: Any, key: str | None) -> None:
        pusher.push(value, key=key)

    failed = False
    try:
        if pusher.endpoint != arguments.endpoint:
            note("push", f"listening at {pusher.endpoint}")
        try:
            publish_lines(source, arguments, push_one)
        except MessageError as error:
            note("push", str(error))
            failed = True
        pusher.join(timeout=arguments.timeout)
    finally:
        pusher.close(timeout=0.0)
        stats = pusher.stats()
        counts = f"{stats.done:,} done, {stats.dead:,} dead letters, {stats.in_flight:,} not done"
        note("push", counts)
    return 1 if failed or stats.dead else 0


@command(
    "pull",
    option("endpoints", "the pushers' endpoints", "ENDPOINT[,ENDPOINT…]", kinds.endpoints),
    _ACKNOWLEDGE,
    option("--prefetch", "how many jobs to have received in advance (default 16, or what is done "
           "in 20 ms)", "N", kinds.count(1, 65_536)),
    option("--count", "end after so many jobs (default: never)", "N", kinds.count(1)),
    option("--timeout", "end when no job came for so many seconds; with status 1 where nobody "
           "answers (default: never)", "S", kinds.seconds),
    option("--job-timeout", "kill the command after so many seconds, and have the job tried again",
           "S", kinds.seconds),
    option("--name", "the worker's name (default: host and process id)"),
    *SECURITY,
    ended_by=("count", "timeout"),
    usage="p2pmsg pull [options] ENDPOINT[,ENDPOINT…] [-- COMMAND …]",
)  # fmt: skip
def pull(arguments: argparse.Namespace) -> int:
    """Run a command for each job, with its value on standard input.

    Text and bytes come as they are, anything else as JSON. The job is done if the command ends
    with status 0, and is tried again otherwise; with status 65 it becomes a dead letter at once.
    The environment has P2PMSG_SEQUENCE, P2PMSG_DELIVERY_COUNT, P2PMSG_LAST_REASON and, where they
    were given, P2PMSG_KEY, P2PMSG_MESSAGE_ID and P2PMSG_HEADERS (JSON). Without a command, values
    are printed, a line each.

    A command may run for as long as --job-timeout says, and without it as long as it likes, also
    where the pusher's job_timeout (30 min by default) is shorter: the job is extended while it
    runs, by 24 h at most. Where the result does not count, since the
    pusher could not be reached for too long, a line on standard error says so, and the job is
    tried again; as with a command that failed, the exit status stays 0.

    With --acknowledge batch, from `p2pmsg push --acknowledge batch`: a job is done when its command
    has ended. One that failed, or was killed, is named on standard error and not tried again; the
    exit status is 1 then.

    For example:
      p2pmsg pull tcp://127.0.0.1:5557 -- sh -c 'read n; echo $((n * n))'
      p2pmsg pull tcp://a:5557,tcp://b:5557 --prefetch 1 -- ./resize-picture
    """
    check_program(arguments.rest)
    by_batch = arguments.acknowledge == "batch"
    with Puller(
        arguments.endpoints, acknowledge=arguments.acknowledge, prefetch=arguments.prefetch,
        name=arguments.name, security=security_of(arguments),
    ) as puller:  # fmt: skip
        status = 0
        for job in _jobs(puller, arguments):
            if not _do(job, arguments, by_batch):
                status = 1
        puller.commit()
    return status


def _jobs(puller: Puller, arguments: argparse.Namespace) -> Iterator[Job]:
    """Yield as many jobs as are wanted and come in time; `TimeoutError` where nobody is there."""
    timeout, taken, began_s = arguments.timeout, 0, time.monotonic()
    while arguments.count is None or taken < arguments.count:
        left_s = math.inf if timeout is None else began_s + timeout - time.monotonic()
        try:
            job = puller.receive(timeout=max(0.0, min(_SLICE_S, left_s)))
        except SecurityError:
            continue  # it was logged; it is tried again, and others may answer
        except TimeoutError:
            if left_s > _SLICE_S:
                continue
            if not taken and not any(puller.stats().answering.values()):
                where = ", ".join(arguments.endpoints)
                raise TimeoutError(f"no job for {timeout:g} s: nobody answers at {where}") from None
            return
        taken += 1
        yield job
        began_s = time.monotonic()


def _print(value: Any) -> None:
    print(value_text(value, to_terminal=kinds.is_terminal(sys.stdout)), flush=True)


def _do(job: Job, arguments: argparse.Namespace, by_batch: bool) -> bool:
    """Print a job's value, or run the command, and acknowledge or reject it by the exit status.

    Returns False where it failed, and is not tried again.
    """
    if not arguments.rest:
        with job:
            _print(job.value)
        if job.state == "gone":
            _say_gone(job)
        return True
    extend = (lambda: None) if by_batch else partial(job.extend, _EXTEND_S)
    extend()
    wrong, status, _ = run_program(
        arguments.rest, job.value, timeout=arguments.job_timeout, environment=_environment(job),
        meanwhile=extend,
    )  # fmt: skip
    if wrong and by_batch:
        note("pull", f"job {job.sequence} failed: {wrong}")
        return False
    if wrong:
        _reject(job, wrong, status == DISCARD_STATUS)
    elif not job.ack():
        _say_gone(job)
    return True


def _say_gone(job: Job) -> None:
    """Say that what was done for a job does not count."""
    note(
        "pull",
        f"job {job.sequence} was done, but its result does not count: it is not this worker's any "
        "more; its pusher, if it is still there, has the job tried again",
    )


def _reject(job: Job, reason: str, discard: bool) -> None:
    counts = job.discard(reason) if discard else job.reject(reason)
    if not counts:
        note("pull", f"job {job.sequence} failed, and is not this worker's any more: {reason}")
        return
    note("pull", f"job {job.sequence} {'discarded' if discard else 'rejected'}: {reason}")


def _environment(job: Job) -> dict[str, str]:
    own = {
        "P2PMSG_SEQUENCE": str(job.sequence),
        "P2PMSG_DELIVERY_COUNT": str(job.delivery_count),
        "P2PMSG_LAST_REASON": job.last_reason.replace("\0", ""),
    }
    for name, value in (("KEY", job.key), ("MESSAGE_ID", job.message_id)):
        if value is not None:
            own[f"P2PMSG_{name}"] = value.replace("\0", "")
    if job.headers is not None:
        own["P2PMSG_HEADERS"] = to_json(json_value(job.headers))
    return {**os.environ, **own}
