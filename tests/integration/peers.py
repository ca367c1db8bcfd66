"""What the tests of whole peers share: waiting, collecting, checking, child processes."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import p2pmsg
from p2pmsg.testing.proxy import TcpProxy

LOOPBACK = "tcp://127.0.0.1:0"
DEADLINE_S = 60.0
TOPIC = "trades"
ROOT = Path(__file__).parents[2]


def eventually(condition, deadline_s=DEADLINE_S):
    """Return the first true value of `condition`; fail if there is none in time."""
    deadline, pause_s = time.monotonic() + deadline_s, 0.0001
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.002)
    return value


def take(subscriber, count, timeout=DEADLINE_S):
    """Receive exactly `count` messages; fail where they do not come."""
    messages = []
    while len(messages) < count:
        messages += subscriber.receive_many(count - len(messages), timeout=timeout)
    return messages


def values_of(subscriber, count):
    return [subscriber.receive(DEADLINE_S).value for _ in range(count)]


def place_of(end):
    """The endpoint in the text of a plain end."""
    return end.partition("+")[2].partition("+")[2].partition("?")[0]


def take_to(subscriber, sequence, messages=(), topic=TOPIC, timeout=DEADLINE_S):
    """Receive up to and with the message of that sequence, after `messages`; return them all."""
    messages = list(messages)
    while not (messages and messages[-1].topic == topic and messages[-1].sequence >= sequence):
        messages.append(subscriber.receive(timeout))
    return messages


def in_threads(*calls):
    """Run calls at the same time; raise what one of them raised."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result(DEADLINE_S)


def work_until(stop, puller, work):
    """Be a worker until the event `stop`: call `work` with each job, and acknowledge it."""
    while not stop.is_set():
        with contextlib.suppress(TimeoutError), puller.receive(timeout=0.1) as job:
            work(job)


def take_all(subscriber, head, timeout=DEADLINE_S):
    """Receive until all up to `head` of the only stream is delivered or lost."""
    messages = []
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(TimeoutError):
            messages += subscriber.receive_many(timeout=0.05)
            continue
        stats = subscriber.stats()
        assert stats.balanced, stats
        if stats.streams and stats.streams[0].head == head and not stats.outstanding:
            return messages
        assert time.monotonic() < deadline, stats


def check_silence(subscriber, timeout=0.05):
    """Check that nothing more comes."""
    with contextlib.suppress(TimeoutError):
        raise AssertionError(f"unexpected: {subscriber.receive(timeout)}")


def check_ledger(subscriber, **expected):
    """Check that the ledger balances, stream by stream and in sum, and return the stats."""
    stats = subscriber.stats()
    for ledger in stats.streams:
        assert ledger.balanced, ledger
    assert stats.published == stats.delivered + stats.outstanding + stats.lost, stats
    for name, value in expected.items():
        assert getattr(stats, name) == value, (name, stats)
    return stats


def check_exact(messages, sequences=None):
    """Check that the values are the sequences, in order and without a hole."""
    sequences = range(len(messages)) if sequences is None else sequences
    assert [message.sequence for message in messages] == list(sequences)
    assert [message.value for message in messages] == list(sequences)


def ranges(losses):
    """Reduce loss reports to what is compared."""
    return [(loss.start, loss.stop, loss.reason.value) for loss in losses]


class Collector:
    """Receives in a thread of its own, and checks the ledger all the while."""

    def __init__(self, subscriber):
        self.subscriber = subscriber
        self.messages = []
        self.errors = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            for message in self.subscriber:
                self.messages.append(message)
        except BaseException as error:
            self.errors.append(error)

    def wait_for(self, count, deadline_s=DEADLINE_S):
        def there():
            check_ledger(self.subscriber)
            assert not self.errors, self.errors
            return len(self.messages) >= count

        try:
            eventually(there, deadline_s)
        except AssertionError as error:
            detail = f"{len(self.messages)} of {count}: {self.subscriber.stats()}"
            raise AssertionError(detail) from error
        return self.messages


class CuttingProxy(TcpProxy):
    """A proxy that ends all its connections where a message comes that `is_last` holds true for.

    `is_last` gets the first 512 bytes of it. The first message may come before the proxy's maker
    has it: so the proxy does this itself.
    """

    def __init__(self, target, is_last, listen="127.0.0.1", port=0):
        self._ends_at = is_last
        super().__init__(target, listen=listen, port=port, drop=self._ends)

    def _ends(self, prefix):
        if not self._ends_at(prefix):
            return False
        self.cut()
        return True


class ExactCounter(Collector):
    """Checks that values are the sequences as they come, and keeps none: there may be millions."""

    def __init__(self, subscriber):
        self.count = 0
        super().__init__(subscriber)

    def _run(self):
        try:
            for message in self.subscriber:
                assert (message.sequence, message.value) == (self.count, self.count)
                self.count += 1
        except BaseException as error:
            self.errors.append(error)

    def wait_for(self, count, deadline_s=DEADLINE_S):
        eventually(lambda: self.errors or self.count >= count, deadline_s)
        assert not self.errors, self.errors
        assert self.count == count
        check_ledger(self.subscriber)


class Child:
    """A child process that runs a role of `tests.integration.children`."""

    def __init__(self, process):
        self.process = process
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with contextlib.suppress(ValueError):  # closed by finish()
            for line in self.process.stdout:
                self.lines.put(line.strip())
        self.lines.put(None)

    def line(self, timeout=DEADLINE_S):
        """Return the next line that it printed."""
        line = self.lines.get(timeout=timeout)
        if line is None:
            self.lines.put(None)  # for `finish`
            raise AssertionError(f"the child ended with {self.process.wait(timeout)}")
        return line

    def order(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def wait(self, timeout=DEADLINE_S):
        return self.process.wait(timeout)

    def finish(self):
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        eventually(lambda: self.lines.queue and self.lines.queue[-1] is None)
        self.process.stdout.close()


def start_child(role, *arguments, module="children"):
    command = [sys.executable, "-W", "error", "-m", f"tests.integration.{module}", role]
    return Child(
        subprocess.Popen(
            [*command, *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )


def small_frames(**options):
    """Return settings with which a frame holds few messages, so that many frames are lost."""
    return p2pmsg.PublisherConfig(frame_bytes=1024, **options)
