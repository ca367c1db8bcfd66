"""The work queue: `p2pmsg push`, `pull` and `dead-letters`."""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, overload

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import UsageError, command, flag, note, option
from p2pmsg.cli.program import check_program, run_program
from p2pmsg.cli.progress import drawn
from p2pmsg.cli.pubsub import publish_lines
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import render_columns, time_text, value_text
from p2pmsg.cli.waiting import Answers, Waiting, checking, several
from p2pmsg.errors import MessageError, SecurityError
from p2pmsg.json_text import json_value, to_json
from p2pmsg.queue.admin import LiveBox, LogBox
from p2pmsg.queue.config import PusherConfig
from p2pmsg.queue.dead_letters import DeadLetter
from p2pmsg.queue.job import Job
from p2pmsg.queue.pipeline.config import PipelineConfig, PipelinePusherStats
from p2pmsg.queue.pipeline.puller import PipelineJob, PipelinePuller
from p2pmsg.queue.pipeline.pusher import PipelinePusher
from p2pmsg.queue.puller import Puller
from p2pmsg.queue.pusher import Pusher
from p2pmsg.queue.stats import PusherStats

DISCARD_STATUS = 65
"""EX_DATAERR of sysexits.h: the input is wrong, so no worker can do the job."""
_SLICE_S = 0.25
"""How often `pull` looks whether there is something to say."""
_EXTEND_S = 60.0
"""For how long `pull` extends a job, again and again while its command runs."""
_REASON_CHARACTERS = 60
_MODE = option("--mode", "queue (default), or pipeline: workers confirm many jobs at a time",
               choices=("queue", "pipeline"), default="queue")  # fmt: skip
_PUSH_ONLY = {
    "key_field": None, "priority": 0, "delay": 0.0, "log": None, "in_flight": None, "deliveries": 5,
    "admin": "local",
}  # fmt: skip
"""Options of `push` that a pipeline does not have, and their defaults."""
_PULL_ONLY = {"prefetch": None}
"""The same of `pull`."""
_FIELDS = (
    "sequence", "why", "value", "key", "priority", "message_id", "headers", "delivery_count",
)  # fmt: skip


@command(
    "push",
    option("endpoint", "where to bind: tcp://HOST:PORT or ipc://PATH", "ENDPOINT",
           kinds.stream_endpoint),
    kinds.JSON_LINES,
    _MODE,
    option("--key-field", f"{kinds.KEY_FIELD}; jobs of one key keep their order", "FIELD"),
    option("--priority", "0 to 9 (default 0)", "N", kinds.count(0, 9), default=0),
    option("--delay", "deliver a job no earlier than after so many seconds (default 0, at most 366 "
           "days)", "S",
           kinds.seconds, default=0.0),
    option("--log", "keep jobs in this log, and continue with those that were not done", "DIR"),
    option("--in-flight", "read on while fewer jobs than this are not done (default 1000, "
           "or what is done in 50 ms)", "N", kinds.count(1)),
    option("--ack-timeout", "give the jobs of a worker that is silent for so many seconds to "
           "others (default 30; of a pipeline 5)", "S", kinds.seconds),
    option("--deliveries", "a job that failed so many attempts is a dead letter (default 5)", "N",
           kinds.count(1), default=5),
    option("--admin", "answer `p2pmsg dead-letters`: only where bound to loopback or a Unix "
           "socket (local, the default), always, or never", choices=("local", "always", "never"),
           default="local"),
    option("--timeout", "give up when jobs are not done so many seconds after the last line "
           "(default: never)", "S", kinds.seconds),
    *SECURITY,
    flag("--quiet", "draw no progress bar, and do not say that a worker is waited for"),
)  # fmt: skip
def push(arguments: argparse.Namespace) -> int:
    """Make a job of each line of standard input.

    A job's value is the line's bytes; with --json, the JSON value on it. At the end the command
    waits until all jobs are done. A line that cannot be a job is an end, too: the jobs of those
    before it are waited for. Exit status 1: there was such a line, or some jobs became dead
    letters. On a terminal, a bar shows how far the jobs are. Where there is no worker, a line on
    standard error says so.

    With --mode pipeline, jobs are for `p2pmsg pull --mode pipeline`: workers confirm many at a
    time, which is faster, and there are no keys, priorities, delays, dead letters and logs.

    For example:
      seq 100 | p2pmsg push tcp://127.0.0.1:5557
      p2pmsg push 'tcp://*:5557' --json --key-field order --log jobs.log < orders.jsonl
    """
    pipeline = arguments.mode == "pipeline"
    if pipeline:
        _refuse(arguments, _PUSH_ONLY)
    source = kinds.standard_input()
    pusher = _make_pipeline(arguments) if pipeline else _make_pusher(arguments)

    def push_one(value: Any, key: str | None) -> None:
        if isinstance(pusher, PipelinePusher):
            pusher.push(value)
        else:
            pusher.push(value, key=key, priority=arguments.priority, delay=arguments.delay)

    failed = False
    try:
        with _shown(pusher, arguments.quiet):
            try:
                publish_lines(source, arguments, push_one)
            except MessageError as error:
                note("push", str(error))
                failed = True
            pusher.drain(timeout=arguments.timeout)
    finally:
        pusher.close(timeout=0.0)
        stats = pusher.stats()
        dead = f"{_dead(stats):,} {'undeliverable' if pipeline else 'dead letters'}, "
        if pipeline and not _dead(stats):
            dead = ""
        note("push", f"{stats.done:,} done, {dead}{stats.in_flight:,} not done")
    return 1 if failed or _dead(stats) else 0


def _refuse(arguments: argparse.Namespace, defaults: dict[str, Any]) -> None:
    """Raise `UsageError` for an option that a pipeline does not have."""
    for name, default in defaults.items():
        if getattr(arguments, name) != default:
            raise UsageError(f"--{name.replace('_', '-')} is not for --mode pipeline")


def _make_pusher(arguments: argparse.Namespace) -> Pusher:
    return Pusher(
        arguments.endpoint,
        log=arguments.log,
        in_flight_max=arguments.in_flight,
        ack_timeout=arguments.ack_timeout,
        deliveries_max=arguments.deliveries,
        config=PusherConfig(admin=arguments.admin),
        security=security_of(arguments),
    )


def _make_pipeline(arguments: argparse.Namespace) -> PipelinePusher:
    given = {} if arguments.ack_timeout is None else {"ack_timeout": arguments.ack_timeout}
    return PipelinePusher(
        arguments.endpoint, config=PipelineConfig(**given), security=security_of(arguments)
    )


def _dead(stats: PusherStats | PipelinePusherStats) -> int:
    return stats.dead if isinstance(stats, PusherStats) else stats.undeliverable


def _has_worker(stats: PusherStats | PipelinePusherStats) -> bool:
    if isinstance(stats, PusherStats):
        return any(worker.connected for worker in stats.workers)
    return bool(stats.pullers)


@contextmanager
def _shown(pusher: Pusher | PipelinePusher, quiet: bool) -> Iterator[None]:
    """Show on standard error how far jobs are, and that no worker is there."""

    def describe() -> str:
        stats = pusher.stats()
        if not stats.in_flight or _has_worker(stats):
            return ""
        return f"waiting for a worker at {stats.endpoint}"

    def count() -> tuple[int, int]:
        stats = pusher.stats()
        done = stats.done + _dead(stats)
        return done, done + stats.in_flight

    is_typed = kinds.is_terminal(sys.stdin)  # and nothing is drawn over that
    waiting = Waiting("push", describe, quiet=quiet)
    with drawn("jobs", count, quiet=quiet or is_typed), checking(waiting):
        yield


@command(
    "pull",
    option("endpoints", "the pushers' endpoints", "ENDPOINT[,ENDPOINT…]", kinds.stream_endpoints),
    _MODE,
    option("--prefetch", "how many jobs to have received in advance (default 16, or what is done "
           "in 20 ms)", "N", kinds.count(1, 65_536)),
    option("--count", "end after so many jobs (default: never)", "N", kinds.count(1)),
    option("--timeout", "end when no job came for so many seconds; with status 1 where nobody "
           "answers (default: never)", "S",
           kinds.seconds),
    option("--job-timeout", "kill the command after so many seconds, and have the job tried again",
           "S", kinds.seconds),
    option("--name", "the worker's name (default: host and process id)"),
    *SECURITY,
    kinds.QUIET,
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

    What it waits for is said on standard error: an endpoint where nobody
    answers, or a first job.

    With --mode pipeline, from `p2pmsg push --mode pipeline`: a job is done when its command has
    ended. One that failed, or was killed, is named on standard error and not tried again; the
    exit status is 1 then. Of the environment above there is P2PMSG_SEQUENCE.

    For example:
      p2pmsg pull tcp://127.0.0.1:5557 -- sh -c 'read n; echo $((n * n))'
      p2pmsg pull tcp://a:5557,tcp://b:5557 --prefetch 1 -- ./resize-picture
    """
    check_program(arguments.rest)
    is_done = True
    if arguments.mode == "pipeline":
        _refuse(arguments, _PULL_ONLY)
        with PipelinePuller(
            arguments.endpoints, name=arguments.name, security=security_of(arguments)
        ) as workers:
            for each in _jobs(workers, arguments):
                is_done &= _do_of_pipeline(each, arguments)
            workers.commit()
        return 0 if is_done else 1
    with Puller(
        arguments.endpoints, prefetch=arguments.prefetch, name=arguments.name,
        security=security_of(arguments),
    ) as puller:  # fmt: skip
        for job in _jobs(puller, arguments):
            _do(job, arguments)
    return 0


@overload
def _jobs(puller: Puller, arguments: argparse.Namespace) -> Iterator[Job]: ...


@overload
def _jobs(puller: PipelinePuller, arguments: argparse.Namespace) -> Iterator[PipelineJob]: ...


def _jobs(
    puller: Puller | PipelinePuller, arguments: argparse.Namespace
) -> Iterator[Job] | Iterator[PipelineJob]:
    """Yield as many jobs as are wanted and come in time; `TimeoutError` where nobody is there."""
    answers = Answers("no job")

    def describe() -> str:
        endpoints = puller.stats().answering
        return answers.describe(endpoints, [one for one, is_there in endpoints.items() if is_there])

    waiting = Waiting("pull", describe, quiet=arguments.quiet)
    timeout, taken, began_s = arguments.timeout, 0, time.monotonic()
    while arguments.count is None or taken < arguments.count:
        left_s = math.inf if timeout is None else began_s + timeout - time.monotonic()
        try:
            job = puller.receive(timeout=max(0.0, min(_SLICE_S, left_s)))
        except SecurityError:
            continue  # it was logged; it is tried again, and others may answer
        except TimeoutError:
            waiting.check()
            if left_s > _SLICE_S:
                continue
            if not taken and not any(puller.stats().answering.values()):
                where = several(arguments.endpoints)
                raise TimeoutError(f"no job for {timeout:g} s: nobody answers at {where}") from None
            return
        answers.came = True
        taken += 1
        yield job
        began_s = time.monotonic()


def _print(value: Any) -> None:
    print(value_text(value, to_terminal=kinds.is_terminal(sys.stdout)), flush=True)


def _do_of_pipeline(job: PipelineJob, arguments: argparse.Namespace) -> bool:
    """Do a job of a pipeline; return whether that went well."""
    if not arguments.rest:
        _print(job.value)
        return True
    own = {**os.environ, "P2PMSG_SEQUENCE": str(job.sequence)}
    wrong, _, _ = run_program(
        arguments.rest, job.value, timeout=arguments.job_timeout, environment=own
    )
    if wrong:
        note("pull", f"job {job.sequence} failed: {wrong}")
    return not wrong


def _do(job: Job, arguments: argparse.Namespace) -> None:
    """Print a job's value, or run the command, and settle the job by its exit status."""
    if not arguments.rest:
        with job:
            _print(job.value)
        if job.state == "gone":
            _say_gone(job)
        return
    extend = partial(job.extend, _EXTEND_S)
    extend()
    wrong, status, _ = run_program(
        arguments.rest, job.value, timeout=arguments.job_timeout, environment=_environment(job),
        meanwhile=extend,
    )  # fmt: skip
    if wrong:
        _settle(job, wrong, status == DISCARD_STATUS)
    elif not job.ack():
        _say_gone(job)


def _say_gone(job: Job) -> None:
    """Say that what was done for a job does not count."""
    note(
        "pull",
        f"job {job.sequence} was done, but its result does not count: it is not this worker's any "
        "more, since its pusher could not be reached for ack_timeout, has gone, or waited for "
        "longer than job_timeout; if it is still there, it has the job tried again",
    )


def _settle(job: Job, reason: str, discard: bool) -> None:
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


@command(
    "dead-letters",
    option("action", "what to do", "ls|show|retry|purge", choices=("ls", "show", "retry", "purge")),
    option("where", "a pusher's endpoint, or a log's directory", "WHERE"),
    option("sequences", "which of them", "SEQUENCE", kinds.count(0, 2**63 - 1), nargs="*",
           default=[]),
    flag("--all", "all of them"),
    flag("--json", "a JSON object a line"),
    option("--timeout", "how long to wait for the pusher, in seconds (default 5)", "S",
           kinds.seconds, default=5.0),
    *SECURITY,
)  # fmt: skip
def dead_letters(arguments: argparse.Namespace) -> int:
    """List, show, retry or purge dead letters.

    WHERE is the endpoint of a pusher that runs, or the directory of a log. A log can be listed
    and shown at any time, and changed while its pusher does not run. A pusher that is bound to
    more than loopback or a Unix socket refuses, unless it allows it (PusherConfig.admin, push
    --admin).

    For example:
      p2pmsg dead-letters ls tcp://127.0.0.1:5557
      p2pmsg dead-letters show jobs.log 17
      p2pmsg dead-letters retry tcp://127.0.0.1:5557 17 18
      p2pmsg dead-letters purge jobs.log --all

    Exit status 1: a sequence that was named is no dead letter.

    """
    action, chosen = arguments.action, arguments.sequences
    if chosen and arguments.all:
        raise UsageError("sequences and --all exclude one another")
    if action != "ls" and not (chosen or arguments.all):
        raise UsageError(f"{action} needs sequences, or --all")
    box: LiveBox | LogBox
    if "://" in arguments.where:
        box = LiveBox(arguments.where, arguments.timeout, security_of(arguments))
    else:
        box = LogBox(arguments.where)
    try:
        if action in ("retry", "purge"):
            done_count = box.act(action, chosen, arguments.all)
            print(f"{done_count} {'made jobs again' if action == 'retry' else 'thrown away'}")
            return _report_missing(len(set(chosen)) - done_count)
        letters = [each for each in box.list() if not chosen or each.sequence in chosen]
    finally:
        box.close()
    if letters:
        _print_letters(letters, action, arguments.json)
    return _report_missing(len(set(chosen)) - len(letters))


def _report_missing(missing: int) -> int:
    """Report how many of the named sequences are no dead letters; return the exit status."""
    if missing <= 0:
        return 0
    what = "is no dead letter" if missing == 1 else "are no dead letters"
    note("dead-letters", f"{missing} of these sequences {what}")
    return 1


def _print_letters(letters: list[DeadLetter], action: str, as_json: bool) -> None:
    if as_json:
        for letter in letters:
            print(to_json(_fields(letter)))
    elif action == "show":
        print("\n\n".join(map(_page, letters)))
    else:
        titles = ("dead since", "why", "key", "reason", "sequence", "deliveries")
        rows = [
            (_time(each.dead_ns), each.why, each.key or "-", _short(each.reason), each.sequence,
             each.delivery_count)
            for each in letters
        ]  # fmt: skip
        print(render_columns(titles, rows, 4))


def _page(letter: DeadLetter) -> str:
    page = [f"{name}: {value_text(value)}" for name, value in _fields(letter).items()
            if name != "history" and value is not None]  # fmt: skip
    page += [
        f"  {_time(failure.at_ns)}  {failure.worker}: {value_text(failure.reason)}"
        for failure in letter.history
    ]
    return "\n".join(page)


def _fields(letter: DeadLetter) -> dict[str, Any]:
    return {
        **{name: getattr(letter, name) for name in _FIELDS},
        "pushed": _time(letter.pushed_ns),
        "first_delivered": _time(letter.first_delivered_ns),
        "last_delivered": _time(letter.last_delivered_ns),
        "dead_since": _time(letter.dead_ns),
        "history": [
            {"at": _time(f.at_ns), "worker": f.worker, "reason": f.reason} for f in letter.history
        ],
    }


def _time(ns: int) -> str:
    return time_text(ns, "milliseconds")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_CHARACTERS else f"{line[: _REASON_CHARACTERS - 1]}…"
