"""`p2pmsg pull`: run a command for each job."""

import argparse
import os
import shutil
import subprocess
import sys
from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.text import json_value, to_json, value_text
from p2pmsg.queue.job import Job
from p2pmsg.queue.puller import Puller

DISCARD_STATUS = 65
"""EX_DATAERR of sysexits.h: the input is wrong, so nobody can do it."""
_TERMINATE_S = 5.0
_DESCRIPTION = f"""\
Run a command for each job, with its value on standard input.

Text and bytes come as they are, anything else as JSON. The job is done if the command ends with
status 0, and is tried again otherwise; with status {DISCARD_STATUS} it becomes a dead letter at
once. The environment has P2PMSG_SEQUENCE, P2PMSG_DELIVERY_COUNT, P2PMSG_LAST_REASON and, where they
were given, P2PMSG_KEY, P2PMSG_MESSAGE_ID and P2PMSG_HEADERS (JSON). Without a command, values are
printed, a line each.

examples:
  p2pmsg pull tcp://127.0.0.1:5557 -- sh -c 'read n; echo $((n * n))'
  p2pmsg pull tcp://a:5557,tcp://b:5557 --prefetch 1 -- ./resize-picture
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = kinds.add_command(commands, "pull", _DESCRIPTION, run)
    parser.set_defaults(ends=("count", "timeout"))
    parser.usage = "p2pmsg pull [options] ENDPOINT[,ENDPOINT…] [-- COMMAND …]"
    parser.add_argument(
        "endpoints", metavar="ENDPOINT[,ENDPOINT…]", type=kinds.connect_endpoints,
        help="where pushers are bound",
    )  # fmt: skip
    parser.add_argument(
        "--prefetch", metavar="N", type=kinds.count(1, 65_536), default=16,
        help="how many jobs to have in hand (default 16)",
    )  # fmt: skip
    parser.add_argument(
        "--count", metavar="N", type=kinds.count(1), help="end after so many jobs (default: never)"
    )
    parser.add_argument(
        "--timeout", metavar="S", type=kinds.seconds,
        help="end when no job came for so many seconds (default: never)",
    )  # fmt: skip
    parser.add_argument(
        "--job-timeout", metavar="S", type=kinds.seconds,
        help="kill the command after so many seconds, and have the job tried again",
    )  # fmt: skip
    parser.add_argument("--name", help="the worker's name (default: host and process id)")


def run(arguments: argparse.Namespace) -> int:
    """Pull."""
    command: list[str] = arguments.rest
    if command and shutil.which(command[0]) is None:
        raise kinds.UsageError(f"there is no command {command[0]!r} that can be run")
    taken = 0
    to_terminal = kinds.is_terminal(sys.stdout)
    with Puller(arguments.endpoints, prefetch=arguments.prefetch, name=arguments.name) as puller:
        while arguments.count is None or taken < arguments.count:
            try:
                job = puller.receive(timeout=arguments.timeout)
            except TimeoutError:
                return 0
            taken += 1
            if command:
                _do(job, command, arguments.job_timeout)
            else:
                with job:
                    print(value_text(job.value, to_terminal=to_terminal), flush=True)
    return 0


def _do(job: Job, command: list[str], job_timeout: float | None) -> None:
    """Run the command, and settle the job by its exit status."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=_environment(job))
    try:
        process.communicate(_input(job.value), timeout=job_timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        _settle(job, f"killed after {job_timeout} s", False)
        return
    except BaseException:
        process.terminate()
        try:
            process.wait(_TERMINATE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    status = process.returncode
    if status == 0:
        job.ack()
    else:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        _settle(job, how, status == DISCARD_STATUS)


def _settle(job: Job, reason: str, discard: bool) -> None:
    if discard:
        job.discard(reason)
    else:
        job.reject(reason)
    what = "discarded" if discard else "rejected"
    print(f"p2pmsg pull: job {job.sequence} {what}: {reason}", file=sys.stderr, flush=True)


def _input(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else to_json(value).encode()


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
