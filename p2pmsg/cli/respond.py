"""`p2pmsg respond`: answer requests."""

import argparse
import subprocess
import threading
from typing import Any

from p2pmsg import Responder, codec
from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import UsageError, command, flag, note, option
from p2pmsg.cli.program import Running, check_program, run_program, wait_for
from p2pmsg.cli.secured import SECURITY, security_of


@command(
    "respond",
    kinds.BIND_STREAM,
    option("topic", "the topic of the requests", "TOPIC", kinds.topic),
    flag("--echo", "answer each request with its own value"),
    flag("--json", "the command's output is JSON (default: text; bytes if it is not UTF-8)"),
    option("--count", "end after N requests (default: never)", "N", kinds.count(1)),
    *SECURITY,
    ended_by=("count",),
    usage="p2pmsg respond [-h] [options] ENDPOINT TOPIC (--echo | -- COMMAND …)",
)  # fmt: skip
def respond(arguments: argparse.Namespace) -> int:
    """Answer requests by running a command, with the value on its standard input.

    Text and bytes come as they are, anything else as JSON. What the command prints, without its
    last line break, is the answer. If it ends with another status than 0, the requester gets an
    error that says so.

    For example:
      p2pmsg respond tcp://127.0.0.1:5560 square --json -- sh -c 'read n; echo $((n * n))'
      p2pmsg respond 'tcp://*:5560' ping --echo
    """
    if arguments.echo == bool(arguments.rest):
        raise UsageError("give --echo, or -- and a command")
    check_program(arguments.rest)
    answers = _Answers(arguments)
    handlers = {arguments.topic: answers.answer}
    responder = Responder(arguments.endpoint, handlers, security=security_of(arguments))
    try:
        try:
            responder.start()
            note("respond", f"listening at {responder.endpoint}")
            wait_for(answers.enough)
        except BaseException:
            answers.stop()
            raise
    finally:
        responder.close()
    return 0


class _Answers:
    """Answers requests, in the responder's threads."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._running = Running()
        self._count = 0
        self._lock = threading.Lock()
        self.enough = threading.Event()
        """Set when as many requests came as were wanted."""

    def answer(self, value: Any) -> Any:
        try:
            return value if self._arguments.echo else self._run(value)
        finally:
            with self._lock:
                self._count += 1
                if self._count == self._arguments.count:
                    self.enough.set()

    def _run(self, value: Any) -> Any:
        if self._running.stopping:
            raise ChildProcessError("the responder is being stopped")
        wrong, _, output = run_program(
            self._arguments.rest, value, timeout=None, output=subprocess.PIPE,
            running=self._running,
        )  # fmt: skip
        if not wrong and self._arguments.json:
            try:
                return codec.json_decode(output)
            except (codec.CodecError, UnicodeDecodeError) as error:
                wrong = f"the output is not JSON: {error}"
        if wrong:
            note("respond", f"a request failed: {wrong}")
            raise ChildProcessError(wrong)
        output = output.removesuffix(b"\n")
        try:
            return output.decode()
        except UnicodeDecodeError:
            return output

    def stop(self) -> None:
        """Stop the commands that run, and begin no others."""
        self._running.stop()
