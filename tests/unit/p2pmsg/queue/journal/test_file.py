"""The queue's log: what is written is known again, whatever was cut off or written again."""

import os
import random
import shutil

import pytest

from p2pmsg import LogConfig, Publisher, log
from p2pmsg.errors import LogFormatError
from p2pmsg.queue import PusherConfig, QueueLogConfig
from p2pmsg.queue.jobs import QueueIdentity, QueueJobs
from p2pmsg.queue.journal.file import Journal, read_log
from p2pmsg.queue.journal.records import JournalState
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.queue.rules import (
    DeadJob,
    Died,
    Done,
    Failed,
    Failure,
    Given,
    QueuedJob,
)
from tests.queues import job_queue, segments

MS = 1_000_000


def job(sequence, **fields):
    return QueuedJob(sequence, b"\x01" * 50, 1000 + sequence, **fields)


def opened(folder, segment_bytes=2**24, **settings):
    state = JournalState()
    journal = Journal(QueueLogConfig(folder, **settings), state, segment_bytes=segment_bytes)
    journal.begin_run(state.deliveries)
    return journal, state


def failed(sequence, deliveries, reason="no"):
    return job(
        sequence, deliveries=deliveries, failures=deliveries, history=[Failure(5, "w", reason)]
    )


def push(journal, state, count, **fields):
    """Push as a pusher does; return the sequences."""
    sequences = range(state.next_sequence, state.next_sequence + count)
    for sequence in sequences:
        journal.push(job(sequence, **fields))
    return sequences


def test_what_was_written_is_known_again(tmp_path):
    journal, first = opened(tmp_path)
    full = job(3, key="k", priority=7, message_id="m", headers=b"\x80", due_ns=99)
    for each in (job(0), job(1), job(2), full, job(4)):
        journal.push(each)
    journal.change(Done(0, 2))
    journal.change(Failed(failed(2, 1)))
    journal.change(Died(DeadJob(failed(4, 5), "deliveries_max", 77)))
    journal.change(Given(8, [3], 100), ("host", 4, 5))
    journal.close()

    state = read_log(tmp_path)
    assert state.session == first.session
    assert state.next_sequence == 5
    assert sorted(state.open) == [2, 3]
    assert state.open[2].history == [Failure(5, "w", "no")]
    assert repr(state.open[3]) == repr(full)
    assert (state.dead[4].why, state.dead[4].job.deliveries) == ("deliveries_max", 5)
    assert [holder for _, holder in state.jobs()] == [None, 8]
    assert state.processes[8] == ("host", 4, 5)
    assert state.seen == {"m": (3, 1003)}


def known(folder):
    """Return what is known of a queue after a restart, and who may have which jobs."""
    state = read_log(folder)
    found = {each.sequence: each for each in state.open.values()}
    found |= {sequence: dead.job for sequence, dead in state.dead.items()}
    kept = {
        sequence: (each.payload, each.key, each.failures, each.history, sequence in state.dead)
        for sequence, each in found.items()
    }
    return (kept, state.seen), {each.sequence: holder for each, holder in state.jobs()}


@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_again_is_what_was_there(tmp_path, seed):
    """Random histories in small segments, which are shortened now and then."""
    rng, now_ns = random.Random(seed), 10**15
    config = PusherConfig(deliveries_max=2, retry_delay=0, in_flight_max=10_000)
    journal, state = opened(tmp_path, segment_bytes=4096, fsync="never")
    identity = QueueIdentity(
        name="q", session=1, by_batch=False, is_gone=lambda *_: False, admin_refusal=None,
        access_rules=None,
    )  # fmt: skip
    jobs = QueueJobs(config, identity, state, journal, now_ns=now_ns, wall_ns=now_ns)
    queue, store = jobs.core.queue, jobs.core.queue.store
    worker = queue.join(5, "w", 300, now_ns=now_ns)

    def do_something():
        deliveries = [one for part in worker.assigned.open_ranges() for one in range(*part)]
        roll = rng.random()
        if roll < 0.5 or not deliveries:
            key = rng.choice((None, f"k{rng.randrange(50)}"))
            name = f"m{rng.randrange(10**9)}" if rng.random() < 0.1 else None
            pushed = jobs.job(rng.random(), key, 0, 0.0, name, None, now_ns=now_ns)
            assert jobs.try_push(pushed, now_ns=now_ns) is not None
        elif roll < 0.85:
            at = rng.choice(deliveries)
            queue.ack(worker, at, at + 1, now_ns=now_ns)
        elif roll < 0.95:
            queue.reject(worker, rng.choice(deliveries), "no", 0, now_ns=now_ns)
        elif store.dead.list():
            action = rng.choice(("retry", "purge"))
            store.act_on_dead(action, [store.dead.list()[0].job.sequence], now_ns=now_ns)

    passes = 0
    for _ in range(1500):
        do_something()
        while queue.take(now_ns=now_ns) is not None:
            pass
        assert jobs.record()
        if not journal.has_to_shorten:
            continue
        before, held = known(tmp_path)
        again = journal.begin_shorten()
        passes += bool(again)
        while again:
            del again[: jobs.write_again(again)]
        journal.keep_from(*journal.first_of_use())
        journal.sync()
        after, still_held = known(tmp_path)
        assert after == before
        for sequence, holder in still_held.items():
            assert holder == held[sequence] or not store.find(sequence).holder
    assert passes
    kept = sum(map(len, map(str, before)))
    assert sum(path.stat().st_size for path in segments(tmp_path)) < 4 * kept + 5 * 4096
    journal.close()


def test_no_delivery_number_is_used_again_where_the_clock_was_set_back(tmp_path):
    used = 0
    for end in (Journal.close, Journal.release, Journal.close):
        journal, state = opened(tmp_path)
        assert state.deliveries >= used
        used = state.deliveries + 2**40
        journal.allow_deliveries(used)
        end(journal)


def cut(folder):
    path = segments(folder)[-1]
    os.truncate(path, path.stat().st_size - 300)


def cut_to_nothing(folder):
    os.truncate(segments(folder)[-1], 0)


def without_the_newest(folder):
    segments(folder)[-1].unlink()


SHORTER = {"cut": cut, "empty": cut_to_nothing, "without": without_the_newest}
ENDS = {"closed": Journal.close, "killed": Journal.release}


@pytest.mark.parametrize("shorten", SHORTER.values(), ids=SHORTER)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_no_sequence_is_used_again_where_the_end_is_missing(tmp_path, caplog, shorten, end):
    journal, state = opened(tmp_path, segment_bytes=4096)
    session, used = state.session, {*push(journal, state, 60)}
    end(journal)
    shorten(tmp_path)
    left = read_log(tmp_path)

    journal, state = opened(tmp_path)
    again = {*push(journal, state, 20)}
    journal.close()
    assert not used & again
    assert state.session == session
    assert state.is_incomplete
    assert state.missing >= len(used) - left.next_sequence > 0
    assert state.open.keys() == left.open.keys()
    assert f"sequences {left.next_sequence} to {min(again) - 1} are left out" in caplog.text
    journal, state = opened(tmp_path)
    journal.close()
    assert not state.is_incomplete
    assert (state.missing, state.next_sequence) == (0, max(again) + 1)


def copied(folder, copy):
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)  # which keeps the times, as `cp -a` does


def synchronised(folder, copy):
    """What `rsync --delete` does: files that differ are replaced, the others left alone."""
    for path in folder.iterdir():
        if not (copy / path.name).exists():
            path.unlink()
        elif path.read_bytes() != (copy / path.name).read_bytes():
            made = folder / ".new"
            shutil.copy2(copy / path.name, made)
            made.rename(path)


RESTORES = {"copy": copied, "rsync": synchronised}


@pytest.mark.parametrize("restored", RESTORES.values(), ids=RESTORES)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_log_out_of_a_copy_goes_on_as_another_session(tmp_path, caplog, restored, end):
    folder, copy = tmp_path / "log", tmp_path / "copy"
    journal, state = opened(folder)
    session = state.session
    push(journal, state, 3)
    end(journal)
    shutil.copytree(folder, copy)
    journal, state = opened(folder)
    assert state.session == session
    push(journal, state, 3)
    journal.close()

    restored(folder, copy)
    journal, state = opened(folder)
    journal.close()
    assert state.session != session
    assert state.is_incomplete
    assert state.open.keys() == {0, 1, 2}
    assert "restored from a copy" in caplog.text
    known = state.session
    journal, state = opened(folder)
    assert (state.session, state.is_incomplete) == (known, False)
    assert state.open.keys() == {0, 1, 2}
    push(journal, state, 1)
    journal.begin_shorten()
    journal.keep_from(*journal.first_of_use())
    journal.sync()
    journal.close()
    assert read_log(folder).open.keys() == {0, 1, 2, 3}


def test_a_copy_whose_only_segment_is_empty_is_known_as_one(tmp_path, caplog):
    journal, first = opened(tmp_path / "log")
    journal.close()
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    for path in segments(tmp_path / "copy"):
        os.truncate(path, 0)
    journal, state = opened(tmp_path / "copy")
    journal.close()
    assert state.session != first.session
    assert "restored from a copy" in caplog.text


def test_keys_wait_where_it_is_not_known_who_has_them(tmp_path):
    """The record that a worker was given the job is what is missing."""
    journal, state = opened(tmp_path)
    push(journal, state, 1, key="k")
    size = segments(tmp_path)[-1].stat().st_size
    journal.change(Given(8, [0], 100), ("host", 4, 5))
    journal.release()
    os.truncate(segments(tmp_path)[-1], size)

    journal, state = opened(tmp_path)
    journal.close()
    queue = job_queue(ack_timeout=1.0, grace=0.01, first_delivery=200)
    core = PusherCore(queue, name="", session=1, incarnation=200)
    core.restore(state, now_ns=0)
    queue.join(9, "other", 4, now_ns=0)
    for ms in (20, 999):
        queue.handle_timer(now_ns=ms * MS)
        assert queue.take(now_ns=ms * MS) is None
        queue.workers[9].last_heard_ns = ms * MS
    queue.handle_timer(now_ns=1000 * MS)
    assert queue.take(now_ns=1000 * MS) is not None


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_repair_keeps_records_whose_streams_name_is_damaged_and_says_that_some_are_gone(tmp_path):
    journal, state = opened(tmp_path)
    push(journal, state, 10)
    journal.close()
    (path,) = segments(tmp_path)
    flip(path, path.read_bytes().index(b"\0jobs"))
    with pytest.raises(LogFormatError, match="is damaged at byte"):
        opened(tmp_path)
    log.repair(tmp_path)
    journal, state = opened(tmp_path)
    journal.close()
    assert (state.open.keys(), state.next_sequence) == ({*range(10)}, 10)

    (path,) = segments(tmp_path)
    flip(path, path.read_bytes().index(b"\x01" * 50))  # of job 0
    assert [(start, stop) for _, _, start, stop in log.repair(tmp_path).messages] == [(0, 1)]
    for is_incomplete in (True, False):
        journal, state = opened(tmp_path)
        journal.close()
        assert (state.open.keys(), state.is_incomplete) == ({*range(1, 10)}, is_incomplete)


def test_a_publisher_and_a_queue_refuse_each_others_logs(tmp_path):
    opened(tmp_path / "queue")[0].close()
    with pytest.raises(LogFormatError, match="is the log of a queue"):
        Publisher("inproc://refused", log=LogConfig(tmp_path / "queue"))
    with pytest.raises(LogFormatError, match="is the log of a queue"):
        log.truncate(tmp_path / "queue", bytes_max=0)
    with Publisher("inproc://refused", log=LogConfig(tmp_path / "log")) as publisher:
        publisher.publish("t", 1)
    with pytest.raises(LogFormatError, match="is the log of a publisher"):
        opened(tmp_path / "log")


def test_a_sync_that_two_have_ended_says_nothing_of_the_next_one(tmp_path):
    journal, state = opened(tmp_path)
    push(journal, state, 1)
    former = journal.begin_sync()
    assert journal.begin_sync() is former
    former.wait()
    journal.end_sync(former)
    journal.push(job(1))
    following = journal.begin_sync()
    journal.end_sync(former)
    assert journal.synced < journal.written
    following.wait()
    journal.end_sync(following)
    assert journal.synced == journal.written
    journal.close()
