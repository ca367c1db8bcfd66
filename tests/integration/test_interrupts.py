"""Ctrl-C, signal handlers that use the peer they interrupt, and signals in large frames."""

import signal
import sys
import threading

import pytest

import p2pmsg
import p2pmsg.queue.rules
import recovery
import transports
from p2pmsg.driver import section, threads
from p2pmsg.peers import publisher, pull_sockets, pulling, pusher, pushing, sending, serving
from p2pmsg.peers import puller as puller_peer
from p2pmsg.peers.threads import puller
from p2pmsg.publisher import batch, core
from p2pmsg.queue import batching, job, puller_core, taking
from recovery import replay_buffer
from tests.integration.peers import TOPIC, check_ledger, take
from tests.strikes import AtLine, Strike, files_of
from transports import zmq_pubsub

pytestmark = pytest.mark.long
PUBLISHER = (
    batch, core, publisher, replay_buffer, section, sending, serving, zmq_pubsub
)  # fmt: skip
PULLER = files_of(
    threads, section, job, puller, puller_peer, pulling, puller_core, pull_sockets, taking
)
OURS = files_of(p2pmsg, recovery, transports)
SKIPPED = {"Subscriber.receive", "Subscriber.receive_many"}


@pytest.mark.parametrize("how", ["iterate", "receive", "receive_many", "parts"])
@pytest.mark.parametrize("waits", [False, True], ids=["there", "awaited"])
def test_an_interrupt_before_any_line_of_receiving_neither_loses_nor_doubles(connect, how, waits):
    publisher, receiver = connect()
    iterator = iter(receiver)
    received, published, in_vain, number = [], 0, 0, 0
    calls = {
        "iterate": lambda: [next(iterator)],
        "receive": lambda: [receiver.receive(60)],
        "receive_many": lambda: receiver.receive_many(timeout=60),
        "parts": lambda: receiver.receive_many(2, timeout=60),
    }

    def receive(strike):
        while len(received) < published:
            with strike:
                taken = calls[how]()
                sys.settrace(None)
                received.extend(range(taken[0].sequence, taken[0].sequence + len(taken)))

    def publish():
        publisher.publish_many(TOPIC, [None] * 3)
        publisher.flush()

    while in_vain < 10:  # then the calls have fewer lines
        number += 1
        published += 3
        timer = threading.Timer(0.002 if waits else 0.0, publish)
        timer.start()
        if not waits:
            timer.join()
        strike = AtLine(OURS, number, SKIPPED, KeyboardInterrupt)
        receive(strike)
        timer.join()
        in_vain = 0 if strike.struck else in_vain + 1
        assert received == list(range(published)), number
    assert number > 80
    check_ledger(receiver, delivered=published, lost=0)


class TimeIsUpError(ValueError):
    """What a program's handler of a signal raises; msgpack's encoder raises a ValueError, too."""


@pytest.mark.parametrize("is_idle", [True, False], ids=["alone", "gathered"])
@pytest.mark.parametrize("is_logged", [True, False], ids=["log", "no log"])
def test_what_a_handler_raises_publishes_nothing_twice(connect, tmp_path, is_idle, is_logged):
    def handle(*_):
        raise TimeIsUpError("of the program")

    options = {"log": p2pmsg.LogConfig(tmp_path)} if is_logged else {}
    config = p2pmsg.PublisherConfig(gather_within=1e-9 if is_idle else 1)
    publisher, receiver = connect(publisher={"config": config, **options})
    former = signal.signal(signal.SIGUSR1, handle)
    # A stream gathers only after some messages that went out one by one.
    accepted = {publisher.publish(TOPIC, f"0.{part}"): f"0.{part}" for part in range(40)}
    raised, end = 0, "the end"
    try:
        for number in range(1, 60):
            strike = Strike(PUBLISHER, number, signal.SIGUSR1)
            try:
                with strike:
                    for part in range(4):
                        sequence = publisher.publish(TOPIC, f"{number}.{part}")
                        accepted[sequence] = f"{number}.{part}"
            except (TimeIsUpError, p2pmsg.MessageError) as error:
                assert "of the program" in str(error)
                raised += 1
    finally:
        signal.signal(signal.SIGUSR1, former)
    publisher.publish(TOPIC, end)
    publisher.flush()
    received = {}
    while end not in received.values():
        message = receiver.receive(60)
        received[message.sequence] = message.value
    assert len(set(received.values())) == len(received)
    assert accepted.items() <= received.items(), receiver.stats().losses
    assert raised > 5
    assert check_ledger(receiver).lost <= raised  # sequences of calls that raised


@pytest.mark.parametrize("acknowledge", ["each", "batch"])
@pytest.mark.parametrize("how", ["iterate", "receive"])
@pytest.mark.rounds(60, 250)
def test_ctrl_c_at_any_line_of_a_puller_forgets_no_job(
    make_pusher, make_puller, how, acknowledge, rounds
):
    pusher = make_pusher(acknowledge=acknowledge)
    worker = make_puller(pusher.endpoint, acknowledge=acknowledge)
    iterator = iter(worker)
    done, mine, strikes = set(), [], 0

    def work(goal):
        while not goal <= done:
            taken = next(iterator) if how == "iterate" else worker.receive(timeout=60)
            mine.append(taken)
            done.add(taken.value)
            taken.ack()

    for number in range(1, rounds + 1):
        goal = {4 * number + part for part in range(4)}
        for value in goal:
            pusher.push(value)
        strike = AtLine(PULLER, number, error=KeyboardInterrupt)
        with strike:
            work(goal)
        if mine and mine[-1].state == "held":
            mine[-1].ack()  # what was interrupted
        work(goal)
        strikes += strike.struck
    worker.commit()
    pusher.join(timeout=60)
    assert strikes > rounds // 2


STRIKES = 60
FILES = files_of(batch, batching, section, sending, publisher, core, pusher, pushing)


class Handler:
    """Runs `act` as a signal handler after the n-th call of a C function in `FILES`."""

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
        except p2pmsg.errors.ReentrantCallError:
            self.refused += 1


@pytest.mark.parametrize("own", ["publish", "publish_many", "mixed"])
@pytest.mark.parametrize("handler", ["publish", "publish_many"])
def test_what_a_handler_publishes_is_accepted_or_refused_and_nothing_else_suffers(
    connect, own, handler
):
    sender, subscriber = connect()

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
