"""What `push` returned for is kept: pushers killed at full rate, and a disk that fails."""

import json
import os
import subprocess
import sys
import threading

import pytest

import p2pmsg
from p2pmsg.queue.journal.file import LogSettings
from p2pmsg.queue.journal.reading import read_log, segments
from tests.integration.commands import eventually
from tests.integration.peers import LOOPBACK

ROUNDS = 8


def kill_rounds(folder, fsync, threads, rounds, seed, timeout):
    command = ["-m", "tests.integration.queue_push_kills", folder, fsync, threads, rounds, seed]
    ended = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, timeout=timeout, text=True
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize(("fsync", "threads"), [("interval", 1), ("always", 8), ("never", 4)])
def test_a_killed_pusher_loses_nothing_that_push_returned_for(tmp_path, fsync, threads):
    found = kill_rounds(tmp_path / "log", fsync, threads, ROUNDS, 7, 60)

    assert found["returned"] > 10 * ROUNDS


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
    log = LogSettings(directory=tmp_path, fsync="always")
    pusher = p2pmsg.Pusher(LOOPBACK, log=log, in_flight_max=10_000)
    opened.callback(pusher.close)
    before, returned = disk.syncs, []

    def push(thread):
        for number in range(50):
            sequence = pusher.push([thread, number])
            assert sequence in read_log(tmp_path).open
            returned.append(sequence)

    threads = [threading.Thread(target=push, args=(n,)) for n in range(16)]
    for each in (*threads, *threads):
        each.join() if each.ident else each.start()

    assert sorted(returned) == list(range(800))
    assert disk.syncs - before < 400
    assert pusher.stats().pushed == pusher.stats().in_flight == 800


def test_what_waits_for_the_disk_is_handed_out_when_it_is_there(tmp_path, make_puller, opened):
    pusher = p2pmsg.Pusher(LOOPBACK, log=LogSettings(directory=tmp_path, fsync="always"))
    opened.callback(pusher.close)
    puller = make_puller(pusher.endpoint, prefetch=64)
    for number in range(30):
        if number % 2:
            pusher.push(number, key=f"k{number % 3}")
        else:
            sequence = pusher.push(number, message_id=f"m{number}")
            assert pusher.push(number, message_id=f"m{number}") == sequence
    for _ in range(pusher.stats().pushed):
        puller.receive(timeout=10).ack()
    pusher.drain(timeout=10)
    assert pusher.stats().balanced
    assert (pusher.stats().done, pusher.stats().duplicates) == (30, 15)


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_a_disk_that_cannot_sync_stops_the_pusher_and_says_so(
    tmp_path, make_puller, disk, caplog, fsync
):
    log = LogSettings(directory=tmp_path, fsync=fsync, fsync_interval_ms=1)
    pusher = p2pmsg.Pusher(LOOPBACK, log=log)
    accepted = [pusher.push(number) for number in range(3)]
    disk.fails = True
    with pytest.raises(p2pmsg.LogFailedError, match="could not be forced to the disk"):
        for _ in range(1000):
            accepted += [pusher.push("more", timeout=5)]
    disk.fails = False
    with pytest.raises(p2pmsg.LogFailedError):
        pusher.push("more")
    with pytest.raises(p2pmsg.LogFailedError):
        pusher.drain(timeout=5)
    puller = make_puller(pusher.endpoint)
    with pytest.raises(TimeoutError):
        puller.receive(timeout=0.3)
    with pytest.raises(p2pmsg.LogFailedError):
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
        assert "Those that were not done are lost" in caplog.text
