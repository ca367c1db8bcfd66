"""Jobs acknowledged by the batch, over real sockets: pullers that are killed, stopped or slow."""

import logging
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

import p2pmsg
from p2pmsg.queue import PusherConfig
from p2pmsg.testing import TcpProxy
from tests.integration.peers import LOOPBACK, ROOT, eventually

VALUE = b"x" * 128
PATIENT_S = 60.0


def pusher(endpoint=LOOPBACK, **options):
    return p2pmsg.Pusher(endpoint, acknowledge="batch", config=PusherConfig(**options))


def puller(endpoint):
    return p2pmsg.Puller(endpoint, acknowledge="batch")


class Child:
    """A puller's process, and what it wrote down."""

    def __init__(self, endpoint, book):
        self.book = book
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.pipeline_children", endpoint, str(book)],
            cwd=ROOT,
        )

    def done(self):
        data = self.book.read_bytes() if self.book.exists() else b""
        return [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8)]

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(PATIENT_S)


@pytest.fixture
def children(tmp_path):
    made = []

    def start(endpoint):
        made.append(Child(endpoint, tmp_path / f"book-{len(made)}"))
        return made[-1]

    yield start
    for each in made:
        each.end()


@pytest.mark.parametrize("scheme", ["tcp", "ipc", "inproc"])
def test_jobs_arrive_once_and_in_order_at_a_single_puller(scheme, tmp_path):
    places = {"tcp": LOOPBACK, "ipc": f"ipc://{tmp_path}/pipe", "inproc": "inproc://pipe"}
    endpoint = places[scheme]
    with pusher(endpoint) as source, puller(source.endpoint) as sink:
        assert source.push("first") == 0
        assert source.push_many([{"n": n} for n in range(2000)]) == [*range(1, 2001)]
        source.push(b"y" * 200_000)
        source.push("last")
        assert sink.receive(PATIENT_S).value == "first"
        jobs = [sink.receive(timeout=PATIENT_S) for _ in range(2002)]
        assert [job.sequence for job in jobs] == [*range(1, 2003)]
        assert jobs[1999].value == {"n": 1999}
        assert jobs[2000].value == b"y" * 200_000
        sink.commit()
        source.join(PATIENT_S)
        stats = source.stats()
        assert stats.pushed == stats.done == 2003
        assert stats.balanced
        assert (stats.taken_back, stats.refused, stats.frames_invalid) == (0, 0, {})


def test_a_job_counts_as_done_when_the_next_is_asked_for():
    with pusher() as source:
        sink = puller(source.endpoint)
        source.push_many(["a", "b"])
        assert sink.receive(PATIENT_S).value == "a"
        assert sink.receive(PATIENT_S).value == "b"
        sink.close()  # and "b" is not done
        eventually(lambda: source.stats().in_flight == 1)
        with puller(source.endpoint) as other:
            assert other.receive(PATIENT_S).value == "b"
            with pytest.raises(TimeoutError):
                other.receive(timeout=0)
            source.join(PATIENT_S)
        with pytest.raises(p2pmsg.errors.ClosedError):
            sink.receive()
        assert list(sink) == []


@pytest.mark.rounds(3, 200)
@pytest.mark.timeout(900)
def test_a_killed_pullers_share_goes_to_others_and_nothing_is_lost(children, rounds):
    with pusher() as source:
        pushed, stop = [], threading.Event()

        def push():
            while not stop.is_set():
                try:
                    pushed.append(source.push(VALUE, timeout=1.0))
                except TimeoutError:
                    continue
                if len(pushed) % 100 == 0:
                    time.sleep(0.01)

        thread = threading.Thread(target=push)
        thread.start()
        everyone = [children(source.endpoint) for _ in range(2)]
        for _ in range(rounds):
            victim = everyone[-1]
            eventually(lambda victim=victim: len(victim.done()) > 300)
            everyone.append(children(source.endpoint))
            victim.process.kill()
            victim.process.wait(PATIENT_S)
        stop.set()
        thread.join(PATIENT_S)
        source.join(PATIENT_S)
        stats = source.stats()
        times = Counter(sequence for each in everyone for sequence in each.done())
        assert set(times) == set(pushed)
        assert len(pushed) == stats.pushed == stats.done
        assert sum(times.values()) - len(times) <= stats.taken_back


def test_a_stopped_pullers_share_goes_to_another_and_it_may_come_back(children):
    with pusher(ack_timeout=2.0) as source:
        stopped = children(source.endpoint)
        eventually(lambda: source.stats().workers)
        source.push(VALUE)
        eventually(lambda: stopped.done())
        stopped.process.send_signal(signal.SIGSTOP)
        source.push_many([VALUE] * 3000)
        other = children(source.endpoint)
        source.join(PATIENT_S)
        assert source.stats().taken_back
        stopped.process.send_signal(signal.SIGCONT)
        # Its late confirmation is refused, and it is a puller again.
        eventually(lambda: source.stats().refused and len(source.stats().workers) == 2)
        source.push_many([VALUE] * 1000)
        source.join(PATIENT_S)
        assert {*stopped.done(), *other.done()} == {*range(4001)}


def test_a_slow_puller_does_not_hold_up_the_others():
    with pusher(in_flight_bytes_max=256 * 1024) as source, puller(source.endpoint) as slow:
        source.push("slow")
        assert slow.receive(PATIENT_S).value == "slow"
        with puller(source.endpoint) as fast:
            eventually(lambda: len(source.stats().workers) == 2)
            done, stop = set(), threading.Event()

            def work():
                while not stop.is_set():
                    try:
                        done.add(fast.receive(timeout=0.1).sequence)
                    except TimeoutError:
                        pass

            thread = threading.Thread(target=work)
            thread.start()
            source.push_many([VALUE] * 10_000)  # many times the buffer, and `slow` takes nothing
            held = eventually(lambda: 10_001 - len(done) == source.stats().workers[0].in_hand)
            assert held
            slow.close()
            source.join(PATIENT_S)
            stop.set()
            thread.join(PATIENT_S)
        assert done == {*range(10_001)}  # "slow", too, which was not committed


def test_push_waits_at_its_bound():
    with pusher(in_flight_bytes_max=64 * 1024) as source:
        with pytest.raises(TimeoutError, match="in_flight_bytes_max"):
            for _ in range(10_000):
                source.push(VALUE, timeout=0.05)
        stats = source.stats()
        assert stats.in_flight == stats.pushed < 64 * 1024 // len(VALUE)
        with pytest.raises(TimeoutError, match="in_flight_bytes_max"):
            source.drain(timeout=0.05)
        with puller(source.endpoint) as sink:
            for _ in range(stats.pushed):
                sink.receive(timeout=PATIENT_S)
            source.drain(PATIENT_S)
            sink.commit()
            source.join(PATIENT_S)


def test_a_puller_goes_on_with_the_next_pusher_and_keeps_what_it_had(tmp_path):
    at = f"ipc://{tmp_path}/pipe"
    source = pusher(at)
    with puller(at) as sink:
        eventually(lambda: source.stats().workers)
        source.push_many(["a", "b"])
        eventually(lambda: sink.stats().ready)
        source.close(timeout=0.2)
        with pusher(at) as other:
            other.push("c")
            assert [sink.receive(PATIENT_S).value for _ in range(3)] == ["a", "b", "c"]
            sink.commit()
            other.join(PATIENT_S)
        assert sink.stats().lost == 0


def test_what_is_not_there_by_the_batch_is_refused_by_name(tmp_path, caplog):
    error = p2pmsg.errors.ConfigError
    with pytest.raises(error, match="log"):
        p2pmsg.Pusher(LOOPBACK, acknowledge="batch", log=tmp_path)
    with pytest.raises(error, match="prefetch"):
        p2pmsg.Puller("tcp://127.0.0.1:5555", acknowledge="batch", prefetch=3)
    with pytest.raises(error, match="acknowledge"):
        p2pmsg.Pusher(LOOPBACK, acknowledge="all")
    with pytest.raises(error, match="message_bytes_max"):
        pusher(message_bytes_max=16 * 2**20)
    with p2pmsg.Puller("tcp://127.0.0.1:5555", acknowledge="batch") as sink:
        with pytest.raises(error, match="acknowledge"):
            sink.run(print)
    with pusher() as source:
        with pytest.raises(error, match="acknowledge"):
            source.push("job", key="k")
        with pytest.raises(p2pmsg.errors.MessageError, match="value"):
            source.push(object())
        with pytest.raises(p2pmsg.errors.MessageTooLargeError):
            source.push(b"x" * (2**20 + 1))
        assert source.stats().pushed == 0
        with caplog.at_level(logging.WARNING, "p2pmsg"), p2pmsg.Puller(source.endpoint):
            eventually(lambda: "acknowledge" in caplog.text)
    with pytest.raises(p2pmsg.errors.ClosedError):
        source.push("late")


def test_a_job_by_the_batch_cannot_be_rejected_and_says_so():
    with pusher() as source, puller(source.endpoint) as sink:
        source.push_many(["a", "b"])
        job = sink.receive(PATIENT_S)
        for refused in (job.reject, job.discard, lambda: job.extend(1.0)):
            with pytest.raises(p2pmsg.errors.ConfigError, match='acknowledge must be "each"'):
                refused()
        with pytest.raises(ZeroDivisionError), job:
            raise ZeroDivisionError
        assert job.ack()
        assert sink.receive(PATIENT_S).value == "b"
        sink.commit()
        source.join(PATIENT_S)
        assert source.stats().done == 2


def test_a_puller_that_was_cut_off_is_no_worker_until_it_is_back():
    with (
        pusher(ack_timeout=0.5) as source,
        TcpProxy(source.endpoint) as proxy,
        puller(proxy.endpoint) as sink,
    ):
        eventually(lambda: sink.connected)
        proxy.stall()
        eventually(lambda: not source.stats().workers)
        proxy.resume()
        source.push("next")
        assert sink.receive(PATIENT_S).value == "next"
        sink.commit()
        source.join(PATIENT_S)
        assert not sink.stats().frames_invalid
