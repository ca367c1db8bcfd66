"""A signal handler that uses the publisher, or the pusher, which it struck in: behind each call."""

import collections
import signal
import sys
from functools import partial

import pytest

import p2pmsg
from p2pmsg.publisher import batch, core, kept_batch
from p2pmsg.queue import batching, pusher
from p2pmsg.sync import acknowledge, lock, publisher, sending
from tests.integration.peers import LOOPBACK, TOPIC, check_ledger, take

STRIKES = 60
FILES = {
    module.__file__
    for module in (
        acknowledge, batch, lock, batching, kept_batch, sending, publisher, core, pusher,
    )
}  # fmt: skip


class Handler:
    """Runs `act` as a signal handler behind the n-th call of a C function in `FILES`."""

    def __init__(self, act, number=signal.SIGUSR1):
        self.act = act
        self.number = number
        self.left = 0
        self.results, self.refused = [], 0

    def __enter__(self):
        self.before = signal.signal(self.number, self._handle)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        signal.signal(self.number, self.before)

    def strike_in(self, number, work):
        """Do the work; return its result."""
        self.left = number
        sys.setprofile(self._profile)
        try:
            return work()
        finally:
            sys.setprofile(None)

    def _profile(self, frame, event, _):
        if event == "c_return" and frame.f_code.co_filename in FILES:
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                signal.raise_signal(self.number)

    def _handle(self, *_):
        try:
            self.results.append(self.act())
        except p2pmsg.ReentrantCallError:
            self.refused += 1


class LineHandler(Handler):
    """The same before the n-th line in `FILES`."""

    def strike_in(self, number, work):
        self.left = number
        sys.settrace(self._trace)
        try:
            return work()
        finally:
            sys.settrace(None)

    def _trace(self, frame, event, _):
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                signal.raise_signal(self.number)
        return self._trace


@pytest.mark.parametrize("own", ["publish", "publish_many", "mixed"])
@pytest.mark.parametrize("handler", ["publish", "publish_many"])
def test_what_a_handler_publishes_is_accepted_or_refused_and_nothing_else_suffers(
    make_publisher, make_subscriber, own, handler
):
    sender = make_publisher()
    subscriber = make_subscriber(sender.endpoint, joins=sender)

    def from_handler():
        if handler == "publish":
            return sender.publish(TOPIC, "handler"), 1
        return sender.publish_many(TOPIC, ["handler"] * 3)[0], 3

    expected = {}

    def note(start, count, value):
        for sequence in range(start, start + count):
            assert expected.setdefault(sequence, value) == value

    values = ["own"] * 700
    with Handler(from_handler) as struck:
        for number in range(1, STRIKES):
            if own == "publish" or (own == "mixed" and number % 2):
                for _ in range(3):  # alone, then gathered
                    sequence = struck.strike_in(number, lambda: sender.publish(TOPIC, "own"))
                    note(sequence, 1, "own")
            else:
                first, _ = struck.strike_in(number, lambda: sender.publish_many(TOPIC, values))
                note(first, 700, "own")
    for start, count in struck.results:
        note(start, count, "handler")
    sender.flush()
    messages = take(subscriber, len(expected))
    assert {m.sequence: m.value for m in messages} == expected
    assert struck.refused
    check_ledger(subscriber, delivered=len(expected))


def test_a_handler_may_always_ask_for_the_counters(make_publisher):
    sender = make_publisher()
    with Handler(lambda: sender.stats().published) as struck:
        for number in range(1, STRIKES):
            struck.strike_in(number, lambda: sender.publish(TOPIC, b"v"))
    assert not struck.refused
    assert len(struck.results) > 10
    assert struck.results == sorted(struck.results)


@pytest.mark.parametrize("acknowledge", [None, "written", "synced"])
@pytest.mark.parametrize("own", ["publish", "publish_many"])
def test_a_handler_that_closes_never_waits_for_what_it_struck_in(
    tmp_path, opened, own, acknowledge
):
    """It closes, or is refused at once: the thread that it waits for needs no lock of its frame."""
    ends = collections.Counter()
    values = ["own"] * 700
    at = 0
    while at < 400:
        at += 1 if at < 60 else at // 10
        log = None if acknowledge is None else p2pmsg.LogConfig(
            tmp_path / str(at), acknowledge=acknowledge
        )  # fmt: skip
        sender = p2pmsg.Publisher(LOOPBACK, log=log)
        opened.callback(sender.close, 0.0)

        def work(sender=sender):
            for _ in range(3):
                if own == "publish":
                    sender.publish(TOPIC, "own")
                else:
                    sender.publish_many(TOPIC, values)

        driver = sender._driver
        with LineHandler(partial(sender.close, timeout=30.0)) as struck:
            try:
                struck.strike_in(at, work)
            except (p2pmsg.ClosedError, p2pmsg.LogFailedError):  # without a last fsync
                assert struck.results
        ends["closed"] += len(struck.results)
        ends["refused"] += struck.refused
        if struck.results:
            assert not driver.thread.is_alive()  # else it was given up after 5 s
        sender.close(timeout=0.0)
    assert ends["closed"]
    assert ends["refused"]


@pytest.mark.parametrize("what", ["flush", "close"])
def test_a_handler_that_flushes_or_closes_does_so_or_is_refused(
    make_publisher, make_subscriber, what
):
    closed = 0
    for number in range(1, 20):
        sender = make_publisher()
        subscriber = make_subscriber(sender.endpoint, joins=sender)
        accepted = []

        def work(sender=sender, accepted=accepted):
            for value in range(5):
                accepted.append(sender.publish(TOPIC, value))

        # Where the message was about to be sent, nobody gets it, and the close waits for that.
        ends = sender.flush if what == "flush" else partial(sender.close, timeout=0.5)
        with Handler(ends) as struck:
            try:
                struck.strike_in(number, work)
            except p2pmsg.ClosedError:
                assert what == "close"
                closed += 1
        sender.close()
        assert [m.sequence for m in take(subscriber, len(accepted))] == accepted
        subscriber.close()
    assert what == "flush" or closed or struck.refused


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGWINCH])
def test_what_a_handler_pushes_is_accepted_or_refused(make_pusher, make_puller, number):
    sender = make_pusher()
    with Handler(lambda: sender.push("handler"), number) as struck:
        accepted = [
            struck.strike_in(number, lambda: sender.push("own")) for number in range(1, STRIKES)
        ]
    accepted += struck.results
    puller = make_puller(sender.endpoint)
    done = []
    while len(done) < len(accepted):
        job = puller.receive(10)
        done.append(job.sequence)
        job.ack()
    assert sorted(done) == sorted(accepted)
    if number == signal.SIGWINCH:
        assert struck.refused
    else:  # it is held back from most of the call, and runs behind
        assert len(struck.results) > struck.refused
