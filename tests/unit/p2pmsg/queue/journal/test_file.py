"""The queue's log: what is written is known again, whatever was cut off or compacted."""

import errno
import os
import random
from pathlib import Path

import pytest

from p2pmsg.errors import ConfigError, LogCorruptError, LogInUseError
from p2pmsg.queue.journal import file as journal_file
from p2pmsg.queue.journal.file import FileJournal, LogSettings, log_settings
from p2pmsg.queue.journal.reading import read_log, segments
from p2pmsg.queue.journal.records import JournalState, change_record, push_record
from p2pmsg.queue.journal.reservations import RESERVE, Reservations
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


def job(sequence, **fields):
    return QueuedJob(sequence, b"\x01" * 50, 1000 + sequence, **fields)


def opened(folder, boot="boot 1", dedup_window_ms=1e13, **settings):
    state = JournalState()
    chosen = LogSettings(directory=folder, **settings)
    return FileJournal(chosen, state, boot=boot, dedup_window_ms=dedup_window_ms), state


def reopened(folder, boot):
    """Return what the next run begins with."""
    journal, state = opened(folder, boot)
    journal.forget()
    return state


def failed(sequence, deliveries, reason="no"):
    return job(
        sequence, deliveries=deliveries, blamed=deliveries, history=[Failure(5, "w", reason)]
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

    with pytest.raises(LogCorruptError, match=r"queue-0+1\.log is damaged at byte"):
        opened(tmp_path)


def test_one_process_has_it_open(tmp_path):
    journal, _ = opened(tmp_path)
    with pytest.raises(LogInUseError, match="in use"):
        opened(tmp_path)
    journal.close()
    opened(tmp_path)[0].close()


@pytest.mark.parametrize("seed", range(20))
def test_compaction_changes_nothing_that_is_known(tmp_path, seed):
    """Random histories, in small segments, against a state that saw every record once."""
    rng = random.Random(seed)
    journal, state = opened(tmp_path, segment_bytes=4096, fsync="never")
    naive = JournalState()
    sizes = []

    def write(record):
        journal.append(record)
        naive.apply(record)
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


def test_what_is_done_takes_no_room_for_long(tmp_path):
    journal, _ = opened(tmp_path, segment_bytes=4096, fsync="never")
    for sequence in range(5000):
        journal.append(push_record(job(sequence)))
        journal.append(change_record(Done(sequence, sequence + 1)))
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
        journal, state = opened(tmp_path, boot=f"boot {run}", fsync_interval_ms=1e9)
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
    assert f"sequences 3 to {RESERVE - 1} are left out" in caplog.text
    state = read_log(tmp_path)
    assert set(state.open) < used
    assert len(state.open) == 12  # those that were synced


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_marks_are_renewed_before_they_are_used_up(tmp_path, crash, monkeypatch, fsync):
    monkeypatch.setattr(Reservations.__init__, "__defaults__", (10,))
    journal, state = opened(tmp_path, fsync=fsync, fsync_interval_ms=1e9)
    used = push(journal, state, 1234)
    journal.allow_deliveries(5678)
    crash.strike(journal)

    state = reopened(tmp_path, "boot 2")
    assert used.stop <= state.next_sequence <= used.stop + 10
    assert 5678 < state.deliveries <= 5678 + 10


ENDS = {
    "closed": lambda journal: journal.close(),
    "killed": lambda journal: journal.forget(),
}


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
    assert state.next_sequence == (RESERVE if skips else 3)
    assert state.has_crashed == skips
    push(journal, state, 1)
    journal.close()
    assert reopened(tmp_path, "boot 9").next_sequence == (RESERVE if skips else 3) + 1


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


def test_a_full_segment_is_on_the_disk_before_the_next_begins(tmp_path, crash):
    journal, state = opened(tmp_path, segment_bytes=4096, fsync="never")
    push(journal, state, 500)
    assert len(segments(tmp_path)) > 3
    crash.strike(journal)

    state = reopened(tmp_path, "boot 2")
    assert state.open.keys() == set(range(len(state.open)))
    assert len(state.open) > 400


def test_what_is_copied_is_on_the_disk_before_its_segment_is_deleted(tmp_path, crash):
    journal, state = opened(tmp_path, segment_bytes=4096, fsync="never")
    push(journal, state, 3)
    for _ in range(2000):
        (sequence,) = push(journal, state, 1)
        journal.append(change_record(Done(sequence, sequence + 1)))
    assert segments(tmp_path)[0].name != "queue-000000000001.log"
    crash.strike(journal)

    assert {0, 1, 2} <= reopened(tmp_path, "boot 2").open.keys()


def test_a_segment_that_cannot_be_begun_leaves_the_former_one(tmp_path, monkeypatch):
    journal, state = opened(tmp_path, segment_bytes=4096)
    push(journal, state, 60)
    before = segments(tmp_path)
    (tmp_path / f"queue-{len(before) + 1:012d}.log").mkdir()  # its name is taken
    with pytest.raises(IsADirectoryError):
        push(journal, state, 100)
    (tmp_path / f"queue-{len(before) + 1:012d}.log").rmdir()
    known = read_log(tmp_path).open.keys()
    state.next_sequence = max(known) + 1
    push(journal, state, 100)
    journal.close()
    assert read_log(tmp_path).open.keys() == set(range(max(known) + 101))


BAD = {
    "directory": {"directory": ""},
    "fsync": {"fsync": "sometimes"},
    "interval": {"fsync_interval_ms": -1},
    "segment": {"segment_bytes": 1},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_settings_have_limits(change):
    with pytest.raises(ConfigError):
        LogSettings(**{"directory": "x", **change})


def test_what_log_may_be():
    class Other:
        directory = "d"
        fsync = "always"

    assert log_settings(None) is None
    assert log_settings("d") == LogSettings(directory="d")
    assert log_settings(Other()) == LogSettings(directory="d", fsync="always")
    with pytest.raises(ConfigError, match="log"):
        log_settings(7)


def test_no_descriptor_left_at_the_end_of_a_compaction_stops_it_once_and_not_for_good(
    tmp_path, monkeypatch
):
    journal, _ = opened(tmp_path, segment_bytes=4096)
    unlink, sync_path = Path.unlink, journal_file.sync_path
    struck = []

    def unlink_and_run_out(path, missing_ok=False):
        unlink(path, missing_ok=missing_ok)
        struck.append(path)

    def sync(path):
        if len(struck) == 1:
            struck.append(path)
            raise OSError(errno.EMFILE, "Too many open files")
        sync_path(path)

    monkeypatch.setattr(Path, "unlink", unlink_and_run_out)
    monkeypatch.setattr(journal_file, "sync_path", sync)
    failures = 0
    for sequence in range(2000):
        for record in (push_record(job(sequence)), change_record(Done(sequence, sequence + 1))):
            try:
                journal.append(record)
            except OSError:
                failures += 1
                journal.append(record)
    assert failures == 1
    assert journal.size < 10 * 4096
    journal.close()
    assert read_log(tmp_path).next_sequence == 2000
