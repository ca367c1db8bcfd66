"""Runs `p2pmsg` as a user does: as a process, whose output is looked at."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from p2pmsg.cli import main

P2PMSG = [sys.executable, "-m", "p2pmsg"]
DEADLINE_S = 60.0
_MARK = "P2PMSG_TEST_MARK"
_IDLE = re.compile(r"p2pmsg .* has answered at .*\n")
"""That nobody answers, which a busy machine may take 5 s for."""


def run(*arguments, stdin=b"", timeout=DEADLINE_S, env=None):
    done = subprocess.run(
        [*P2PMSG, *arguments], input=stdin, capture_output=True, timeout=timeout, env=env
    )
    done.stderr = _IDLE.sub("", done.stderr.decode()).encode()
    return done


def run_here(*arguments, stdin=b""):
    """Run it as `run`, but in this process, where a start of its own would prove nothing more."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    former, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(list(map(str, arguments)))
    finally:
        sys.stdin = former
    said = _IDLE.sub("", err.buffer.getvalue().decode()).encode()
    return subprocess.CompletedProcess(arguments, status, out.buffer.getvalue(), said)


def without_waiting(errors):
    """Leave out that subscribers are waited for, which is said where they take half a second."""
    text = errors.decode() if isinstance(errors, bytes) else errors
    return re.sub(r"p2pmsg [a-z ]+: waiting for \d+ subscribers? at \S+\n", "", text)


class Command:
    """A running command; its output goes to files, so that it never waits for a reader."""

    def __init__(self, folder, *arguments, env=None, stdout=None):
        self.mark = uuid.uuid4().hex
        self.out, self.err = (folder / f"{self.mark}.{name}" for name in ("out", "err"))
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [*P2PMSG, *arguments],
                stdin=subprocess.PIPE,
                stdout=stdout if stdout is not None else out,
                stderr=err,
                env={**(os.environ if env is None else env), _MARK: self.mark},
            )

    def write(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def wait(self, timeout=DEADLINE_S):
        return self.process.wait(timeout)

    def output(self):
        return self.out.read_bytes()

    def errors(self):
        return _IDLE.sub("", self.said())

    def said(self):
        """Return its standard error, with what it waits for."""
        return self.err.read_text()

    def processes(self):
        """Return the ids of all processes that come of this command and still live."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and entry.name != str(os.getpid()):
                with contextlib.suppress(OSError):
                    if self.mark.encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return found

    def finish(self):
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(60)


@contextlib.contextmanager
def command(folder, *arguments, **options):
    """Run a command; it and what it started are killed in the end, if they still run."""
    made = Command(folder, *arguments, **options)
    try:
        yield made
    finally:
        made.finish()
