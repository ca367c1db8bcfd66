"""Pusher and puller over real sockets: kills, workers that hang or lie, and a disk that fails."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

import p2pmsg
from p2pmsg.queue import QueueLogConfig
from p2pmsg.queue.admin import LiveBox
from p2pmsg.queue.journal.file import read_log
from p2pmsg.testing.proxy import TcpProxy
from tests.integration.inside import core_of
from tests.integration.peers import LOOPBACK, eventually, in_threads, work_until
from tests.queues import segments, with_limits

FAST = p2pmsg.queue.PusherConfig(retry_delay=0.001, ack_timeout=30.0)


def wait_for_workers(pusher, count):
    eventually(lambda: sum(w.connected for w in pusher.stats().workers) >= count)


VALUES = [b"\0bytes", "text", 7, -(2**63), 1.5, None, True, [1, "a"], {"a": {"b": [1]}}]


def test_a_job_arrives_as_it_was_pushed(make_pusher, make_puller):
    pusher = make_pusher()
    puller = make_puller(pusher.endpoint)

    for value in VALUES:
        pusher.push(value)

    assert [take(puller) for _ in VALUES] == VALUES
    pusher.join(timeout=60)
    assert pusher.stats().balanced
    assert pusher.stats().done == len(VALUES)


def take(puller):
    with puller.receive(timeout=60) as job:
        return job.value


def test_jobs_that_a_puller_cannot_take_do_not_hold_up_the_others(make_pusher, make_puller, caplog):
    config = p2pmsg.queue.PusherConfig(message_bytes_max=2**20, retry_delay=0.001, deliveries_max=2)
    pusher = make_pusher(config=config)
    puller = make_puller(pusher.endpoint, frame_bytes_max=64 * 1024)
    assert take_after(pusher, puller, "first") == "first"
    pusher.push(bytes(2**19))
    for number in range(20):
        pusher.push(number)
    assert [take(puller) for _ in range(20)] == [*range(20)]
    pusher.join(timeout=60)
    (dead,) = pusher.dead_letters()
    assert "larger than frame_bytes_max of the worker, 65,536 bytes" in dead.reason
    stats = pusher.stats()
    assert (stats.done, stats.dead, stats.taken_back) == (21, 1, 0)
    eventually(lambda: "cannot take job 1, nor can any other" in caplog.text)


def test_jobs_that_one_puller_cannot_take_go_to_another(make_pusher, make_puller):
    pusher = make_pusher()
    small = make_puller(pusher.endpoint, frame_bytes_max=64 * 1024)
    assert take_after(pusher, small, "first") == "first"
    large = make_puller(pusher.endpoint)
    wait_for_workers(pusher, 2)
    pusher.push(bytes(2**19))
    assert len(take(large)) == 2**19
    pusher.join(timeout=60)
    assert (pusher.stats().done, pusher.stats().failed) == (2, 0)


def test_a_dead_letter_of_any_size_is_listed_over_the_wire(make_pusher, make_puller):
    size = 20 * 2**20
    pusher = make_pusher(config=p2pmsg.queue.PusherConfig(message_bytes_max=2 * size))
    puller = make_puller(pusher.endpoint, frame_bytes_max=2 * size)
    pusher.push(bytes(size))
    puller.receive(timeout=60).discard("no")
    pusher.join(timeout=60)
    box = LiveBox(pusher.endpoint, timeout=60)
    try:
        (letter,) = box.list()
    finally:
        box.close()
    assert len(letter.value) == size


def take_after(pusher, puller, value):
    pusher.push(value)
    return take(puller)


def test_what_comes_with_a_job(make_pusher, make_puller):
    pusher = make_pusher(config=FAST)
    puller = make_puller(pusher.endpoint)
    before = time.time_ns()
    sequence = pusher.push(1, key="k", priority=3, message_id="m", headers={"h": [2]})

    job = puller.receive(timeout=60)
    first_ns = job.last_delivered_ns
    assert (job.sequence, job.key, job.priority, job.message_id) == (sequence, "k", 3, "m")
    assert (job.headers, job.delivery_count, job.last_reason) == ({"h": [2]}, 1, "")
    assert before <= job.pushed_ns <= job.first_delivered_ns == first_ns <= time.time_ns()
    assert job.reject("not today")

    job = puller.receive(timeout=60)
    assert (job.delivery_count, job.last_reason) == (2, "not today")
    assert job.first_delivered_ns == first_ns < job.last_delivered_ns
    assert job.session == pusher.session
    assert job.ack()


def test_a_job_whose_block_raises_is_rejected_with_the_error(make_pusher, make_puller):
    pusher = make_pusher(config=FAST)
    puller = make_puller(pusher.endpoint)
    pusher.push(1)

    with pytest.raises(ZeroDivisionError), puller.receive(timeout=60) as job:
        job.value / 0
    with puller.receive(timeout=60) as job:
        assert job.last_reason == "ZeroDivisionError: division by zero"


def test_a_job_is_settled_once(make_pusher, make_puller):
    pusher = make_pusher()
    puller = make_puller(pusher.endpoint)
    pusher.push(1)
    job = puller.receive(timeout=60)

    assert job.ack()
    assert not job.ack()
    assert not job.reject("no")
    assert not job.discard("no")
    assert not job.extend(1)
    assert job.state == "acked"
    assert puller.stats().refused == 4


def test_dead_letters_have_their_history_and_can_be_retried_and_purged(make_pusher, make_puller):
    pusher = make_pusher(config=FAST, deliveries_max=3)
    puller = make_puller(pusher.endpoint)
    poison = pusher.push("poison", key="k")
    pusher.push("fine", key="k")

    for number in range(3):
        assert puller.receive(timeout=60).reject(f"attempt {number}")
    assert take(puller) == "fine"
    pusher.join(timeout=60)

    (letter,) = pusher.dead_letters()
    assert (letter.sequence, letter.value, letter.key) == (poison, "poison", "k")
    assert (letter.why, letter.delivery_count) == ("deliveries_max", 3)
    assert [failure.reason for failure in letter.history] == [f"attempt {n}" for n in range(3)]
    assert pusher.dead_letters().retry(poison) == 1
    assert puller.receive(timeout=60).discard("never")
    eventually(lambda: len(pusher.dead_letters()) == 1)
    assert pusher.dead_letters()[0].why == "discarded"
    assert pusher.dead_letters().purge() == 1
    assert not pusher.dead_letters()
    assert pusher.stats().balanced


def test_priority_goes_ahead_and_delay_waits(make_pusher, make_puller):
    pusher = make_pusher()
    pusher.push("much later", delay=600.0)
    for number in range(3):
        pusher.push(number)
    pusher.push("urgent", priority=9)
    puller = make_puller(pusher.endpoint, prefetch=1)

    assert [take(puller) for _ in range(4)] == ["urgent", 0, 1, 2]
    pushed = time.monotonic()
    pusher.push("late", delay=0.3)
    assert take(puller) == "late"
    assert time.monotonic() - pushed > 0.29


def test_a_message_id_is_accepted_once(make_pusher):
    pusher = make_pusher()

    first = pusher.push(1, message_id="a")
    assert pusher.push(2, message_id="a") == first
    assert pusher.push(2, message_id="b") != first
    assert (pusher.stats().pushed, pusher.stats().duplicates) == (2, 1)


def test_push_waits_at_in_flight_max(make_pusher, make_puller):
    pusher = make_pusher(in_flight_max=10)
    for number in range(10):
        pusher.push(number)

    with pytest.raises(TimeoutError, match=r"in_flight_max \(10\)"):
        pusher.push(10, timeout=0.05)
    puller = make_puller(pusher.endpoint)
    taker = threading.Thread(target=lambda: [take(puller) for _ in range(11)])
    taker.start()
    pusher.push(10, timeout=60)
    taker.join()
    pusher.join(timeout=60)


BAD = {
    "value": (p2pmsg.MessageError, "value", {"value": object()}),
    "too large": (p2pmsg.errors.MessageTooLargeError, "1048576", {"value": b"x" * 2**20}),
    "key": (p2pmsg.MessageError, "key", {"key": 7}),
    "priority": (p2pmsg.ConfigError, "priority", {"priority": 10}),
    "delay": (p2pmsg.ConfigError, "delay", {"delay": -1}),
    "message_id": (p2pmsg.ConfigError, "message_id", {"message_id": ""}),
    "headers": (p2pmsg.MessageError, "headers", {"headers": {1: 2}}),
    "timeout": (p2pmsg.ConfigError, "timeout", {"timeout": -1}),
}


@pytest.mark.parametrize(("error", "text", "options"), BAD.values(), ids=BAD)
def test_what_cannot_be_pushed_is_refused(make_pusher, error, text, options):
    pusher = make_pusher()

    with pytest.raises(error, match=text):
        pusher.push(**{"value": 1, **options})
    assert pusher.stats().in_flight == 0
    assert pusher.push(1) == 0


def test_no_job_waits_for_a_slow_worker_while_another_is_idle(make_pusher, make_puller):
    pusher = make_pusher()
    with_limits(core_of(pusher).queue, unproven_max=16)
    slow = make_puller(pusher.endpoint, prefetch=16)
    wait_for_workers(pusher, 1)
    for number in range(16):
        pusher.push(number)
    held = slow.receive(timeout=60)
    eventually(lambda: slow.stats().in_hand == 16)
    fast = make_puller(pusher.endpoint, prefetch=16)

    assert {take(fast) for _ in range(15)} == set(range(16)) - {held.value}
    assert slow.stats().given_back == 15


def test_jobs_of_one_key_are_in_one_hand_at_a_time(make_pusher, make_puller):
    pusher = make_pusher()
    pullers = [make_puller(pusher.endpoint) for _ in range(3)]
    wait_for_workers(pusher, 3)
    for number in range(60):
        pusher.push(number, key="same")
    seen, inside = [], []

    def work(puller):
        while len(seen) < 60:
            try:
                job = puller.receive(timeout=0.05)
            except TimeoutError:
                continue
            with job:
                inside.append(job.value)
                assert inside == [job.value]
                seen.append(job.value)
                inside.remove(job.value)

    in_threads(*(partial(work, puller) for puller in pullers))
    assert seen == list(range(60))


def test_a_puller_that_closes_gives_everything_back(make_pusher, make_puller):
    pusher = make_pusher()
    with p2pmsg.Puller(pusher.endpoint) as leaver:
        for number in range(8):
            pusher.push(number)
        leaver.receive(timeout=60)
    puller = make_puller(pusher.endpoint)

    assert sorted(take(puller) for _ in range(8)) == list(range(8))


@pytest.mark.parametrize("key", [None, "k"])
def test_a_job_that_hangs_at_one_worker_is_done_by_another(make_pusher, make_puller, key):
    pusher = make_pusher(config=FAST, job_timeout=1.0)
    hung = make_puller(pusher.endpoint)
    wait_for_workers(pusher, 1)
    pusher.push(1, key=key)
    assert hung.receive(timeout=60).value == 1  # and it asks for no other one
    idle = make_puller(pusher.endpoint)

    with idle.receive(timeout=60) as job:
        assert job.value == 1
    pusher.join(timeout=60)


def test_a_log_keeps_what_was_not_done_for_the_next_pusher(make_puller, tmp_path):
    log = tmp_path / "log"
    with p2pmsg.Pusher(LOOPBACK, log=log) as pusher:
        session = pusher.session
        for number in range(5):
            pusher.push(number, message_id=f"m{number}", headers={"n": number})
        with make_puller(pusher.endpoint, prefetch=1) as puller:
            assert take(puller) == 0
            assert puller.receive(timeout=60).discard("never")
            eventually(lambda: pusher.stats().dead == 1)
        with pytest.raises(p2pmsg.errors.LogInUseError):
            p2pmsg.Pusher(LOOPBACK, log=log)

    with p2pmsg.Pusher(LOOPBACK, log=log) as pusher:
        assert pusher.session == session
        assert pusher.stats().restored == 3
        assert [letter.value for letter in pusher.dead_letters()] == [1]
        assert pusher.push("again", message_id="m0") == 0
        assert pusher.push("new") == 5
        puller = make_puller(pusher.endpoint)
        assert [take(puller) for _ in range(4)] == [2, 3, 4, "new"]
        pusher.join(timeout=60)
        assert pusher.stats().balanced


def test_one_puller_serves_several_pushers(make_pusher, make_puller):
    pushers = [make_pusher() for _ in range(3)]
    puller = make_puller([pusher.endpoint for pusher in pushers])
    for number in range(30):
        pushers[number % 3].push(number)

    assert sorted(take(puller) for _ in range(30)) == list(range(30))
    for pusher in pushers:
        pusher.join(timeout=60)


def test_closed_ones_say_so(make_pusher, make_puller):
    pusher = make_pusher()
    puller = make_puller(pusher.endpoint)
    puller.close()
    pusher.close()

    assert list(puller) == []
    with pytest.raises(p2pmsg.ClosedError):
        puller.receive(timeout=1)
    with pytest.raises(p2pmsg.ClosedError):
        pusher.push(1)
    with pytest.raises(p2pmsg.ClosedError):
        pusher.join()


def test_jobs_lost_at_close_are_said(make_pusher, caplog):
    pusher = make_pusher()
    pusher.push(1)
    pusher.close(timeout=0.05)

    assert "1 jobs were not done at close" in caplog.text


ROUNDS = 8


def kill_rounds(folder, fsync, threads, rounds, seed, timeout):
    command = ["-m", "tests.integration.queue_push_kills", folder, fsync, threads, rounds, seed]
    ended = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, timeout=timeout, text=True
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("fsync", "threads"),
    [pytest.param("interval", 1, marks=pytest.mark.long), ("always", 8), ("never", 4)],
)
def test_a_killed_pusher_loses_nothing_that_push_returned_for(tmp_path, fsync, threads):
    found = kill_rounds(tmp_path / "log", fsync, threads, ROUNDS, 7, 110)

    assert found["returned"] > ROUNDS


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fsync", ["interval", "always", "never"])
@pytest.mark.parametrize("threads", [1, 16])
def test_a_killed_pusher_loses_nothing_over_many_rounds(tmp_path, fsync, threads):
    found = kill_rounds(tmp_path / "log", fsync, threads, 60, 11, 280)

    assert found["returned"] > 600


class Disk:
    """Counts syncs and the threads in `push`, and may fail."""

    def __init__(self, monkeypatch):
        self.syncs = 0
        self.fails = False
        self._sync = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self.sync)

    def sync(self, fd):
        self.syncs += 1
        if self.fails:
            raise OSError(5, "Input/output error")
        self._sync(fd)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def test_threads_that_push_at_once_share_an_fsync(tmp_path, opened, disk):
    log = QueueLogConfig(directory=tmp_path, fsync="always")
    pusher = p2pmsg.Pusher(LOOPBACK, log=log, in_flight_max=10_000)
    opened.callback(pusher.close)
    before, returned = disk.syncs, []

    def push(thread):
        for number in range(20):
            sequence = pusher.push([thread, number])
            assert sequence in read_log(tmp_path).open
            returned.append(sequence)

    in_threads(*(partial(push, n) for n in range(16)))

    assert sorted(returned) == list(range(320))
    assert disk.syncs - before < 320  # how many share one is up to the machine
    assert pusher.stats().pushed == pusher.stats().in_flight == 320


def test_what_waits_for_the_disk_is_handed_out_when_it_is_there(tmp_path, make_puller, opened):
    pusher = p2pmsg.Pusher(LOOPBACK, log=QueueLogConfig(directory=tmp_path, fsync="always"))
    opened.callback(pusher.close)
    puller = make_puller(pusher.endpoint, prefetch=64)
    for number in range(30):
        if number % 2:
            pusher.push(number, key=f"k{number % 3}")
        else:
            sequence = pusher.push(number, message_id=f"m{number}")
            assert pusher.push(number, message_id=f"m{number}") == sequence
    for _ in range(pusher.stats().pushed):
        puller.receive(timeout=60).ack()
    pusher.join(timeout=60)
    assert pusher.stats().balanced
    assert (pusher.stats().done, pusher.stats().duplicates) == (30, 15)


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_a_disk_that_cannot_sync_stops_the_pusher_and_says_so(
    tmp_path, make_puller, disk, caplog, fsync
):
    log = QueueLogConfig(directory=tmp_path, fsync=fsync)
    pusher = p2pmsg.Pusher(LOOPBACK, log=log)
    accepted = [pusher.push(number) for number in range(3)]
    disk.fails = True
    with pytest.raises(p2pmsg.errors.LogFailedError, match="could not be forced to the disk"):
        for _ in range(1000):
            accepted += [pusher.push("more", timeout=60)]
    disk.fails = False
    with pytest.raises(p2pmsg.errors.LogFailedError):
        pusher.push("more")
    with pytest.raises(p2pmsg.errors.LogFailedError):
        pusher.join(timeout=60)
    puller = make_puller(pusher.endpoint)
    with pytest.raises(TimeoutError):
        puller.receive(timeout=0.3)
    with pytest.raises(p2pmsg.errors.LogFailedError):
        pusher.close()
    eventually(lambda: "until the pusher is started again" in caplog.text)
    assert read_log(tmp_path).open.keys() >= set(accepted)


def test_a_shorter_log_is_said_and_counted(tmp_path, make_pusher, caplog):
    with make_pusher(log=tmp_path) as pusher:
        for number in range(10):
            pusher.push(number)
        session = pusher.session
    path = segments(tmp_path)[-1]
    os.truncate(path, path.stat().st_size // 2)

    with make_pusher(log=tmp_path) as pusher:
        stats = pusher.stats()
        assert stats.log_missing == 10 - stats.restored > 0
        assert (pusher.session, pusher.push("next")) == (session, 10)
        assert "jobs of these that were not done are lost" in caplog.text


@pytest.mark.rounds(25, 1000)
@pytest.mark.timeout(900)
def test_no_job_is_forgotten_and_keys_keep_their_order_through_kills(tmp_path, rounds):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.queue_rounds", tmp_path, str(rounds), "7"],
        capture_output=True, timeout=850, text=True,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr[-4000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["done"] + found["dead"] >= found["pushed"] > rounds


CHILD = """
import os, sys, time, p2pmsg
with p2pmsg.Puller(sys.argv[1]) as puller:
    for job in puller:
        if job.value == "fork" and os.fork() == 0:
            sys.stdin.read()  # until the test closes it
            os._exit(0)
        print(job.value, flush=True)
        time.sleep(60)
"""


@pytest.fixture
def make_worker(opened):
    def make(endpoint):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, endpoint], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        opened.callback(process.stdin.close)
        opened.callback(process.stdout.close)
        opened.callback(process.wait, 10)
        opened.callback(process.kill)
        return process

    return make


def test_a_killed_worker_gives_its_job_back_at_once(make_pusher, make_puller, make_worker):
    pusher = make_pusher()  # with the ack_timeout of 30 s
    worker = make_worker(pusher.endpoint)
    pusher.push("keyed", key="k")
    worker.stdout.readline()
    puller = make_puller(pusher.endpoint)
    worker.kill()

    job = puller.receive(timeout=60)
    assert (job.value, job.delivery_count) == ("keyed", 2)
    assert job.last_reason == "process ended"
    job.ack()


@pytest.mark.long
def test_a_killed_worker_gives_its_job_back_although_a_child_of_it_lives(
    make_pusher, make_puller, make_worker
):
    pusher = make_pusher(ack_timeout=300)
    worker = make_worker(pusher.endpoint)
    pusher.push("fork")
    worker.stdout.readline()
    worker.kill()
    puller = make_puller(pusher.endpoint)
    job = puller.receive(timeout=60)
    assert job.last_reason == "process ended"
    job.ack()


def test_a_silent_worker_gives_its_job_back_after_ack_timeout(
    make_pusher, make_puller, make_worker
):
    pusher = make_pusher(ack_timeout=0.5)
    worker = make_worker(pusher.endpoint)
    pusher.push("job", key="k")
    worker.stdout.readline()
    os.kill(worker.pid, signal.SIGSTOP)
    puller = make_puller(pusher.endpoint)

    job = puller.receive(timeout=60)
    assert job.last_reason == "silent for ack_timeout"
    job.ack()


def test_a_busy_worker_keeps_its_job_beyond_ack_timeout(make_pusher, make_puller):
    pusher = make_pusher(ack_timeout=0.3)
    puller = make_puller(pusher.endpoint)

    def keeps():
        before = pusher.stats().delivered
        pusher.push(1)
        with puller.receive(timeout=60) as job:
            time.sleep(0.7)
        pusher.join(timeout=60)
        return job.state == "acked" and pusher.stats().delivered == before + 1

    # Where this process is held up for so long, it was silent.
    assert any(keeps() for _ in range(20))


def test_cut_connections_lose_nothing(make_pusher, opened):
    pusher = make_pusher(in_flight_max=100)
    proxy = opened.enter_context(TcpProxy(pusher.endpoint))
    done, stop = [], threading.Event()

    def work():
        with p2pmsg.Puller(proxy.endpoint) as puller:
            work_until(stop, puller, lambda job: done.append(job.value))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    proxy.cut_every(0.15)
    for number in range(1500):
        pusher.push(number, key=f"k{number % 7}" if number % 2 else None, timeout=60)
        time.sleep(0.0005)
    proxy.stop_cutting()
    pusher.join(timeout=60)
    stop.set()
    for thread in threads:
        thread.join()

    assert set(done) == set(range(1500))
    assert proxy.cuts
    for key in range(7):
        firsts = list(dict.fromkeys(n for n in done if n % 2 and n % 7 == key))
        assert firsts == sorted(firsts)


def test_a_worker_that_rejects_everything_is_stopped(make_pusher, make_puller, caplog):
    config = p2pmsg.PusherConfig(retry_delay=0.0, deliveries_max=1000)
    pusher = make_pusher(config=config)
    puller = make_puller(pusher.endpoint, prefetch=1)
    pusher.push(1)
    for _ in range(100):
        job = puller.receive(timeout=60)
        rejected = time.monotonic()
        job.reject("no")

    puller.receive(timeout=60).ack()
    assert time.monotonic() - rejected > 0.9
    assert pusher.stats().breaker_trips == 1
    assert "100 jobs in a row failed" in caplog.text
    eventually(lambda: pusher.stats().breaker == "closed")
