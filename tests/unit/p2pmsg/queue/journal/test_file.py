"""The queue's log: what is written is known again, whatever was cut off, compacted or refused."""

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from p2pmsg.errors import ConfigError, LogFailedError, LogFormatError, LogInUseError
from p2pmsg.queue.journal.file import SKIPPED, FileJournal, QueueLogConfig, log_settings
from p2pmsg.queue.journal.reading import read_log, segments
from p2pmsg.queue.journal.records import JournalState, change_record, push_record
from p2pmsg.queue.journal.repair import repair
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.queue.rules import (
    DeadJob,
    Died,
    Done,
    Dropped,
    Failed,
    Failure,
    Given,
    QueuedJob,
    Retried,
)
from tests.queues import job_queue
from tests.unit.p2pmsg.queue.journal.crashes import keep_up

MS = 1_000_000


def job(sequence, **fields):
    return QueuedJob(sequence, b"\x01" * 50, 1000 + sequence, **fields)


def opened(folder, boot="boot 1", dedup_window=1e10, fsync_interval=0.1, **settings):
    state = JournalState()
    chosen = QueueLogConfig(directory=folder, **settings)
    times = {"dedup_window": dedup_window, "fsync_interval": fsync_interval}
    return FileJournal(chosen, state, boot=boot, **times), state


def reopened(folder, boot):
    """Return what the next run begins with."""
    journal, state = opened(folder, boot)
    journal.forget()
    return state


def failed(sequence, deliveries, reason="no"):
    return job(
        sequence, deliveries=deliveries, failures=deliveries, history=[Failure(5, "w", reason)]
    )


def test_what_was_written_is_known_again(tmp_path):
    journal, first = opened(tmp_path)
    full = job(3, key="k", priority=7, message_id="m", headers=b"\x80", due_ns=99)
    for each in (job(0), job(1), job(2), full, job(4)):
        journal.append(push_record(each))
    journal.append(change_record(Done(0, 2)))
    journal.append(change_record(Failed(failed(2, 1))))
    journal.append(change_record(Died(DeadJob(failed(4, 5), "deliveries_max", 77))))
    journal.append(change_record(Given(8, [3], 100), ("host", 4, 5)))
    journal.close()

    state = read_log(tmp_path)
    assert state.session == first.session
    assert state.next_sequence == 5
    assert sorted(state.open) == [2, 3]
    assert state.open[2].history == [Failure(5, "w", "no")]
    assert state.open[3] == full or repr(state.open[3]) == repr(full)
    assert (state.dead[4].why, state.dead[4].job.deliveries) == ("deliveries_max", 5)
    assert [holder for _, holder in state.jobs()] == [None, 8]
    assert state.processes[8] == ("host", 4, 5)
    assert state.seen == {"m": (3, 1003)}


def test_a_dead_letter_is_retried_or_dropped(tmp_path):
    journal, _ = opened(tmp_path)
    for sequence in range(2):
        journal.append(push_record(job(sequence)))
        journal.append(change_record(Died(DeadJob(failed(sequence, 5), "discarded", 1))))
    journal.append(change_record(Retried(job(0, deliveries=5))))
    journal.append(change_record(Dropped(1)))
    journal.close()

    state = read_log(tmp_path)
    assert sorted(state.open) == [0]
    assert not state.dead


@pytest.mark.parametrize("damage", ["cut", "garbage", "bit"])
def test_a_torn_tail_is_cut_off(tmp_path, caplog, damage):
    journal, _ = opened(tmp_path)
    for sequence in range(10):
        journal.append(push_record(job(sequence)))
    journal.forget()
    path = segments(tmp_path)[-1]
    data = path.read_bytes()
    torn = {"cut": data[:-7], "garbage": data + b"\0\0\0\x09rubbish", "bit": flip(data, -3)}
    path.write_bytes(torn[damage])

    journal, state = opened(tmp_path)
    assert len(state.open) == (10 if damage == "garbage" else 9)
    assert "cut off" in caplog.text
    journal.append(push_record(job(99)))
    journal.close()
    assert 99 in read_log(tmp_path).open


def flip(data, at):
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def test_damage_in_the_midst_is_refused(tmp_path):
    for _ in range(2):
        journal, _ = opened(tmp_path)
        journal.append(push_record(job(1)))
        journal.close()
    path = segments(tmp_path)[0]
    path.write_bytes(flip(path.read_bytes(), -3))

    with pytest.raises(LogFormatError, match=r"queue-0+1\.log is damaged at byte"):
        opened(tmp_path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_damage_with_intact_records_after_it_is_refused_and_repair_keeps_these(tmp_path, share):
    journal, _ = opened(tmp_path)
    for sequence in range(600):
        journal.append(push_record(job(sequence)))
    journal.forget()
    path = segments(tmp_path)[-1]
    data = path.read_bytes()
    at = data.index(push_record(job(int(600 * share))))
    path.write_bytes(flip(data, at + 20))

    for read in (read_log, opened):
        with pytest.raises(LogFormatError, match=f"byte {at - 8}: .*`p2pmsg log repair") as caught:
            read(tmp_path)
        assert (caught.value.path, caught.value.offset) == (str(path), at - 8)
    assert path.stat().st_size == len(data)

    size = 8 + len(push_record(job(int(600 * share))))
    unkept = repair(tmp_path)
    assert unkept.places == [(str(path), at - 8, size)]
    assert list(unkept.jobs) == [(int(600 * share), int(600 * share) + 1)]
    assert repair(tmp_path).places == []
    journal, state = opened(tmp_path)
    assert state.open.keys() == {*range(600)} - {int(600 * share)}
    assert state.is_short
    assert state.next_sequence == 600
    with pytest.raises(LogInUseError):
        repair(tmp_path)
    journal.close()


def test_repair_of_damage_in_several_segments(tmp_path):
    for begin in range(0, 30, 10):
        journal, state = opened(tmp_path)
        for sequence in range(begin, begin + 10):
            journal.append(push_record(job(sequence)))
        journal.append(change_record(Done(begin, begin + 4)))
        journal.close()
    first, second, third = segments(tmp_path)
    for path, sequence in ((first, 2), (first, 9), (second, 15)):
        data = path.read_bytes()
        path.write_bytes(flip(data, data.index(push_record(job(sequence))) + 20))
    os.truncate(third, third.stat().st_size - 5)

    unkept = repair(tmp_path)
    paths = [path for path, _, _ in unkept.places]
    assert paths == [str(first), str(first), str(second), str(third)]
    assert list(unkept.jobs) == [(9, 10), (15, 16)]  # the other one was done
    assert repair(tmp_path).places == []
    journal, state = opened(tmp_path)
    expected = {*range(4, 10), *range(14, 20), *range(24, 30)} - {9, 15}
    assert state.open.keys() == expected
    assert state.is_short
    assert state.next_sequence == 30
    journal.close()
    assert read_log(tmp_path).open.keys() == expected


def test_one_process_has_it_open(tmp_path):
    journal, _ = opened(tmp_path)
    with pytest.raises(LogInUseError, match="in use"):
        opened(tmp_path)
    journal.close()
    opened(tmp_path)[0].close()


@pytest.mark.parametrize("seed", range(5))
def test_compaction_changes_nothing_that_is_known(tmp_path, seed):
    """Random histories, in small segments, against a state that saw every record once."""
    rng = random.Random(seed)
    journal, state = opened(tmp_path, segment_bytes=4096, fsync="never")
    naive = JournalState()
    sizes = []

    def write(record):
        journal.append(record)
        naive.apply(record)
        keep_up(journal)
        sizes.append(journal.size)

    number = 0
    for _ in range(1500):
        roll = rng.random()
        known = sorted(naive.open)
        if roll < 0.45 or not known:
            key = rng.choice((None, "k"))
            message_id = f"m{number}" if rng.random() < 0.05 else None
            write(push_record(job(number, key=key, message_id=message_id)))
            number += 1
            continue
        sequence = rng.choice(known[:8])
        found = naive.open[sequence]
        if roll < 0.8:
            write(change_record(Done(sequence, sequence + 1)))
        elif roll < 0.88:
            write(change_record(Failed(failed(sequence, found.deliveries + 1, f"{roll}"))))
        elif roll < 0.94:
            write(change_record(Died(DeadJob(failed(sequence, found.deliveries + 1), "x", 1))))
            if rng.random() < 0.7:
                write(change_record(Dropped(sequence)))
            elif rng.random() < 0.5:
                write(change_record(Retried(naive.dead[sequence].job)))
        else:
            write(change_record(Given(rng.randrange(3), [sequence], number), ("h", 1, 2)))
        if rng.random() < 0.005:
            journal.close()
            journal, state = opened(tmp_path, segment_bytes=4096, fsync="never")
    journal.close()

    state = read_log(tmp_path)
    assert {s: repr(j) for s, j in state.open.items()} == {
        s: repr(j) for s, j in naive.open.items()
    }
    assert {s: repr(d) for s, d in state.dead.items()} == {
        s: repr(d) for s, d in naive.dead.items()
    }
    assert state.seen == naive.seen
    assert {s: h for s, h in state.holders.items() if s in state.open} == {
        s: h for s, h in naive.holders.items() if s in naive.open
    }
    assert len(segments(tmp_path)) < 100


def test_what_is_done_takes_no_space_for_long(tmp_path):
    journal, _ = opened(tmp_path, segment_bytes=4096, fsync="never")
    for sequence in range(5000):
        journal.append(push_record(job(sequence)))
        journal.append(change_record(Done(sequence, sequence + 1)))
        keep_up(journal)
        assert journal.size < 20_000
    journal.close()


class SystemCrash:
    """Keeps what is on the disk: of each file what was there when it was synced."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.synced = {}
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._synced(getattr(os, name)))

    def _synced(self, sync):
        def synced(fd):
            sync(fd)
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if path.is_file():
                self.synced[path] = path.read_bytes()

        return synced

    def strike(self, journal):
        """End the process without its leave, and lose what was not synced."""
        journal.forget()
        for path in segments(self.folder):
            path.write_bytes(self.synced.get(path, b""))


@pytest.fixture
def crash(tmp_path, monkeypatch):
    return SystemCrash(tmp_path, monkeypatch)


ENDS = {"closed": FileJournal.close, "killed": FileJournal.forget}


def push(journal, state, count, **fields):
    """Push as a pusher does; return the sequences."""
    sequences = range(state.next_sequence, state.next_sequence + count)
    for sequence in sequences:
        journal.append(push_record(job(sequence, **fields)))
    state.next_sequence = sequences.stop
    return sequences


def test_no_number_is_used_again_after_a_crash_of_the_system(tmp_path, crash, caplog):
    used, given = set(), set()
    for run in range(4):
        journal, state = opened(tmp_path, boot=f"boot {run}", fsync_interval=1000000.0)
        assert state.has_crashed == (run > 0)
        kept = push(journal, state, 3)
        journal.sync()
        lost = push(journal, state, 3)
        assert not used & {*kept, *lost}
        used |= {*kept, *lost}
        delivery = state.deliveries
        assert delivery not in given
        journal.allow_deliveries(delivery + 1)
        journal.append(change_record(Given(1, [lost[0]], delivery), ("h", 1, 2)))
        given.add(delivery)
        crash.strike(journal)

    assert caplog.text.count("the operating system crashed") == 3
    assert f"sequences 3 to {SKIPPED + 2} are left out" in caplog.text
    state = read_log(tmp_path)
    assert set(state.open) < used
    assert len(state.open) == 12  # those that were synced


@pytest.mark.parametrize(
    ("end", "boot", "fsync", "skips"),
    [
        ("closed", "boot 2", "interval", False),
        ("killed", "boot 1", "interval", False),
        ("killed", "boot 2", "interval", True),
        ("killed", "", "interval", True),
        ("killed", "boot 2", "always", False),
        ("killed", "boot 2", "never", True),
    ],
)
def test_sequences_are_skipped_only_where_some_may_be_lost(tmp_path, end, boot, fsync, skips):
    journal, state = opened(tmp_path, fsync=fsync)
    push(journal, state, 3)
    ENDS[end](journal)

    journal, state = opened(tmp_path, boot=boot)
    assert state.next_sequence == (SKIPPED + 3 if skips else 3)
    assert state.has_crashed == skips
    assert state.is_short is state.is_copy is False
    push(journal, state, 1)
    journal.close()
    assert reopened(tmp_path, "boot 9").next_sequence == (SKIPPED + 3 if skips else 3) + 1


def test_a_tail_that_was_cut_off_stays_cut_off(tmp_path, crash):
    """The next run's segment is behind it: what came again there would be damage in the midst."""
    journal, state = opened(tmp_path)
    push(journal, state, 3)
    journal.forget()
    path = segments(tmp_path)[-1]
    path.write_bytes(path.read_bytes()[:-7])
    crash.synced[path] = path.read_bytes()

    journal, _ = opened(tmp_path)
    crash.strike(journal)
    assert reopened(tmp_path, "boot 2").open.keys() == {0, 1}


BAD = {
    "directory": {"directory": ""},
    "fsync": {"fsync": "sometimes"},
    "segment": {"segment_bytes": 1},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_settings_have_limits(change):
    with pytest.raises(ConfigError):
        QueueLogConfig(**{"directory": "x", **change})


def test_what_log_may_be():
    assert log_settings(None) is None
    assert log_settings("d") == QueueLogConfig(directory="d")
    with pytest.raises(ConfigError, match="log"):
        log_settings(7)


def cut(folder):
    path = segments(folder)[-1]
    os.truncate(path, path.stat().st_size - 300)


def cut_to_nothing(folder):
    os.truncate(segments(folder)[-1], 0)


def without_the_newest(folder):
    segments(folder)[-1].unlink()


SHORTER = {"cut": cut, "empty": cut_to_nothing, "without": without_the_newest}


@pytest.mark.parametrize("shorten", SHORTER.values(), ids=SHORTER)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_no_sequence_is_used_again_where_the_end_is_missing(tmp_path, caplog, shorten, end):
    journal, state = opened(tmp_path)
    used = {*push(journal, state, 20)}
    journal.close()
    journal, state = opened(tmp_path)
    session = state.session
    used |= {*push(journal, state, 20)}
    end(journal)
    shorten(tmp_path)
    left = read_log(tmp_path)

    journal, state = opened(tmp_path)
    again = {*push(journal, state, 20)}
    journal.close()
    assert not used & again
    assert state.session == session
    assert state.is_incomplete
    assert state.missing == len(used) - left.next_sequence
    assert state.open.keys() == left.open.keys()
    assert f"sequences {left.next_sequence} to {max(used)} are left out" in caplog.text
    journal, state = opened(tmp_path)
    journal.close()
    assert not state.is_incomplete
    assert (state.missing, state.next_sequence) == (0, max(again) + 1)


def copied(folder, copy):
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)  # which keeps the times, as `cp -a` does


def copied_over(folder, copy):
    for path in folder.iterdir():
        if not (copy / path.name).exists():
            path.unlink()
    shutil.copytree(copy, folder, dirs_exist_ok=True)


def synchronised(folder, copy):
    """What `rsync --delete` does: files that differ are replaced, the others left alone."""
    for path in folder.iterdir():
        if not (copy / path.name).exists():
            path.unlink()
        elif path.read_bytes() != (copy / path.name).read_bytes():
            made = folder / ".new"
            shutil.copy2(copy / path.name, made)
            made.rename(path)


def segments_only(folder, copy):
    for path in folder.glob("queue*"):
        path.unlink()
    for path in segments(copy):
        shutil.copy2(path, folder)


RESTORES = {
    "copy": copied,
    "over": copied_over,
    "rsync": synchronised,
    "segments": segments_only,
}


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
    journal.close()
    assert (state.session, state.is_incomplete) == (known, False)


def test_keys_wait_where_it_is_not_known_who_has_them(tmp_path):
    """The record that a worker was given the job is what is missing."""
    journal, state = opened(tmp_path)
    push(journal, state, 1, key="k")
    size = segments(tmp_path)[-1].stat().st_size
    journal.append(change_record(Given(8, [0], 100), ("host", 4, 5)))
    journal.forget()
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


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_an_fsync_that_failed_is_final(tmp_path, monkeypatch, fsync):
    journal, state = opened(tmp_path, fsync=fsync, fsync_interval=0.0)
    push(journal, state, 1)

    def refuse(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(LogFailedError, match="could not be forced to the disk"):
        journal.sync()
    monkeypatch.undo()
    for call in (journal.sync, journal.begin_sync, lambda: push(journal, state, 1)):
        with pytest.raises(LogFailedError):
            call()
    journal.close()
    assert not read_log(tmp_path).is_closed


NAMES = ["EMFILE", "ENOSPC", "EDQUOT", "ENOMEM", "ENOENT"]


def failing(name, when=lambda *_: True, call=None):
    """Return what raises an error instead of `call`, where `when` says so."""
    number = getattr(errno, name)

    def fail(*arguments, **options):
        if when(*arguments):
            raise OSError(number, os.strerror(number))
        return call(*arguments, **options)

    return fail


def fill_segment(journal):
    """Push until the segment is full; return the next sequence."""
    sequence = 0
    while journal.size < 4096:
        journal.append(push_record(job(sequence)))
        sequence += 1
    return sequence


def test_a_full_disk_at_the_end_is_named_and_the_log_is_let_go_of(tmp_path, monkeypatch):
    journal, state = opened(tmp_path)
    push(journal, state, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing("ENOSPC"))
        with pytest.raises(LogFailedError, match=f"{tmp_path} cannot be written: No space left"):
            journal.close()
    assert sorted(reopened(tmp_path, "boot 1").open) == [0]


@pytest.mark.parametrize("is_cut_later", [False, True])
def test_half_a_record_that_could_not_be_cut_is_cut_before_the_next_one(
    tmp_path, monkeypatch, is_cut_later
):
    journal, _ = opened(tmp_path)
    journal.append(push_record(job(0)))
    write = os.write

    def half(fd, data):
        write(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        patch.setattr(os, "ftruncate", failing("EIO"))
        with pytest.raises(OSError, match="No space left"):
            journal.append(push_record(job(1)))
    if not is_cut_later:
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", failing("EIO"))
            with pytest.raises(OSError, match="Input/output"):
                journal.append(push_record(job(1)))
    journal.append(push_record(job(1)))
    journal.append(push_record(job(2)))
    journal.forget()
    state = reopened(tmp_path, "boot 1")
    assert sorted(state.open) == [0, 1, 2]
    assert not state.is_short
