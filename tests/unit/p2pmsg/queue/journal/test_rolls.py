"""A new segment where no fsync may be waited for: what a crash may take, and what damage is."""

import contextlib
import errno
import os
from pathlib import Path
from random import Random

import pytest

from p2pmsg.errors import LogFailedError, LogFormatError
from p2pmsg.queue.journal.reading import apply_segment, check_ends, read_log, segments
from p2pmsg.queue.journal.records import JournalState
from p2pmsg.queue.journal.reservations import Reservations
from tests.endpoints import files_open_in
from tests.unit.p2pmsg.queue.journal.crashes import (
    TORN,
    WAYS,
    Disk,
    damaged,
    kept_of,
    opened,
    push,
    sync,
)

SYNCED, IN_FORMER, IN_NEWEST = 5, 13, 4
"""Jobs that were on the disk when a segment was full; all that it has; those in the next one."""


@pytest.fixture
def disk(tmp_path):
    with Disk(tmp_path) as made:
        yield made


def rolled(folder, **options):
    """Return a log that has begun another segment, the former one not being on the disk."""
    journal, _ = opened(folder, **options)
    for sequence in range(SYNCED):
        push(journal, sequence)
    sync(journal)
    for sequence in range(SYNCED, IN_FORMER + IN_NEWEST):
        push(journal, sequence)
    assert len(segments(folder)) == 2
    return journal


def read(parts, boot="boot 2"):
    """Return what segments say that have these bytes, and which of them are unconfirmed."""
    state = JournalState()
    found = [
        apply_segment(state, Path(f"queue-{number:012d}.log"), data)
        for number, data in enumerate(parts, 1)
    ]
    return state, check_ends(state, found, boot)


def ends_of(data):
    """Return where each record ends, and how many jobs are known there."""
    ends, at = {0: 0}, 0
    while at < len(data):
        at += 8 + int.from_bytes(data[at : at + 4], "big")
        ends[at] = len(read([data[:at]])[0].open)
    return ends


def test_a_new_segment_waits_for_no_fsync(tmp_path, disk):
    journal, _ = opened(tmp_path)
    before = list(disk.synced)
    for sequence in range(200):
        push(journal, sequence)
    assert disk.synced == before
    assert journal.is_due  # whatever the interval is
    journal.forget()


def test_the_former_segment_and_the_folder_go_to_the_disk_first(tmp_path, disk):
    journal = rolled(tmp_path)
    disk.synced.clear()
    sync(journal)
    assert disk.synced == ["queue-000000000001.log", ".", "queue-000000000002.log"]
    assert not journal.is_due
    disk.synced.clear()
    sync(journal)
    assert disk.synced == ["queue-000000000002.log"]
    journal.close()


def test_a_sync_that_began_before_is_none_of_the_former_segment(tmp_path, disk):
    journal, _ = opened(tmp_path)
    push(journal, 0)
    pending = journal.begin_sync()
    for sequence in range(1, IN_FORMER + 2):
        push(journal, sequence)
    assert len(segments(tmp_path)) == 2
    pending.wait()
    journal.end_sync(pending)
    assert journal.synced < journal.written
    assert journal.is_due
    sync(journal)
    assert not journal.is_due
    journal.close()


def test_the_next_segment_begins_when_the_former_one_is_on_the_disk(tmp_path):
    journal = rolled(tmp_path)
    for sequence in range(100, 200):
        push(journal, sequence)
    assert len(segments(tmp_path)) == 2
    sync(journal)
    push(journal, 200)
    assert len(segments(tmp_path)) == 3
    journal.close()
    assert len(read_log(tmp_path).open) == IN_FORMER + IN_NEWEST + 101


@pytest.mark.parametrize("way", TORN)
def test_the_former_segment_may_lack_any_part_that_was_not_on_the_disk(tmp_path, way):
    journal = rolled(tmp_path)
    journal.forget()
    former, newest = (path.read_bytes() for path in segments(tmp_path))
    ends = ends_of(former)
    synced = max(at for at, jobs in ends.items() if jobs == SYNCED)
    whole = range(IN_FORMER, IN_FORMER + IN_NEWEST)
    for kept in range(synced, len(former)):
        changed = damaged(former, kept, way)
        if changed == former:
            continue
        state, unconfirmed = read([changed, newest])
        jobs = ends[max(at for at in ends if at <= kept_of(former, changed, kept))]
        assert state.open.keys() == {*range(jobs), *whole}
        assert state.missing == IN_FORMER - jobs
        assert state.next_sequence == whole.stop
        assert [each.number for each in unconfirmed] == [2, 1]
        with pytest.raises(LogFormatError, match=r"0001\.log is damaged"):
            read([changed, newest], "boot 1")  # it was not started again
    assert not read([former, newest])[0].missing


@pytest.mark.parametrize("way", WAYS)
def test_what_was_on_the_disk_by_then_is_damaged_where_it_is_missing(tmp_path, way):
    journal = rolled(tmp_path)
    journal.forget()
    former, newest = (path.read_bytes() for path in segments(tmp_path))
    synced = max(at for at, jobs in ends_of(former).items() if jobs == SYNCED)
    for kept in range(synced - 1):
        with pytest.raises(LogFormatError, match=r"0001\.log is damaged"):
            read([damaged(former, kept, way), newest])


def test_nothing_may_lack_any_more_when_it_is_on_the_disk(tmp_path):
    journal = rolled(tmp_path)
    sync(journal)
    journal.forget()
    former, newest = (path.read_bytes() for path in segments(tmp_path))
    for kept in range(len(former)):
        with pytest.raises(LogFormatError, match=r"0001\.log is damaged"):
            read([former[:kept], newest])


def test_a_threaded_log_has_no_segment_that_may_lack_its_end(tmp_path):
    journal = rolled(tmp_path, defers=False)
    journal.forget()
    former, newest = (path.read_bytes() for path in segments(tmp_path))
    for kept in range(len(former)):  # where a record ends, too
        with pytest.raises(LogFormatError, match=r"0001\.log is damaged"):
            read([former[:kept], newest])


def test_a_segment_without_a_record_was_not_begun(tmp_path):
    """A crash right after the roll: the newest one has a name, and less than its first record."""
    journal = rolled(tmp_path)
    journal.forget()
    former, newest = (path.read_bytes() for path in segments(tmp_path))
    ends, head = ends_of(former), 8 + int.from_bytes(newest[:4], "big")
    rng = Random(1)
    for begun in range(head):
        kept = rng.randint(0, len(former))
        state, unconfirmed = read([former[:kept], newest[:begun]])
        assert state.open.keys() == set(range(ends[max(at for at in ends if at <= kept)]))
        assert [each.number for each in unconfirmed] == [1, 2]
    for begun in (head, head + 1, len(newest) - 1):
        with pytest.raises(LogFormatError):
            read([former[:1], newest[:begun]])


def newest_is(size):
    def change(path):
        os.truncate(path, size)

    return change


NEWEST = {
    "not there": os.unlink,
    "empty": newest_is(0),
    "half of its first record": newest_is(9),
    "no job": newest_is(100),
    "whole": lambda path: None,
}


@pytest.mark.parametrize("change", NEWEST.values(), ids=NEWEST)
@pytest.mark.parametrize("way", TORN)
def test_a_log_is_opened_after_a_crash_and_goes_on(tmp_path, caplog, way, change):
    journal = rolled(tmp_path)
    journal.forget()
    former, newest = segments(tmp_path)
    change(newest)
    data = former.read_bytes()
    former.write_bytes(damaged(data, len(data) - 700, way))

    journal, state = opened(tmp_path, "boot 2")
    assert state.has_crashed
    assert "not written to the end are cut off" in caplog.text
    assert state.open.keys() >= set(range(SYNCED))
    assert state.next_sequence >= IN_FORMER + IN_NEWEST
    assert state.missing
    push(journal, state.next_sequence)
    known = {*state.open, state.next_sequence}
    journal.forget()
    again = [path.read_bytes() for path in segments(tmp_path)]
    assert read(again, "boot 3")[0].open.keys() == known
    for boot in ("boot 2", "boot 3"):  # what was accepted once is damage from now on
        with pytest.raises(LogFormatError):
            read([again[0][:-1], *again[1:]], boot)
    journal, state = opened(tmp_path, "boot 2")
    assert state.open.keys() == known
    assert (state.missing, state.has_crashed) == (0, False)
    journal.close()


def test_where_the_process_died_alone_the_next_one_brings_all_to_the_disk(tmp_path, disk):
    rolled(tmp_path).forget()
    disk.synced.clear()
    journal, state = opened(tmp_path)
    assert len(state.open) == IN_FORMER + IN_NEWEST
    assert not state.is_incomplete
    assert {"queue-000000000001.log", "queue-000000000002.log", "."} <= {*disk.synced}
    journal.forget()
    data = [path.read_bytes() for path in segments(tmp_path)]
    with pytest.raises(LogFormatError):
        read([data[0][:-1], *data[1:]], "boot 2")


def test_a_log_is_closed_when_the_former_segment_is_on_the_disk(tmp_path, disk):
    journal = rolled(tmp_path, fsync="never")
    disk.synced.clear()
    journal.close()
    assert disk.synced[:2] == ["queue-000000000001.log", "."]
    disk.crash(lambda low, high: low, lambda ways: ways[0])
    assert read_log(tmp_path).open.keys() == set(range(IN_FORMER + IN_NEWEST))


def test_a_failed_fsync_of_the_former_segment_is_final(tmp_path, disk):
    journal = rolled(tmp_path)
    synced = journal.synced
    disk.is_failing = True
    first, second = journal.begin_sync(), journal.begin_sync()
    first.wait()
    disk.is_failing = False  # the system reports it once, to the first one
    second.wait()
    for pending in (second, first):
        with pytest.raises(LogFailedError, match="could not be forced to the disk"):
            journal.end_sync(pending)
    assert journal.synced == synced
    with pytest.raises(LogFailedError):
        push(journal, 99)
    journal.close()


def test_no_descriptor_is_left_open(tmp_path):
    for end in ("close", "forget"):
        journal = rolled(tmp_path / end)
        pending = journal.begin_sync()
        pending.wait()
        getattr(journal, end)()
        journal = rolled(tmp_path / f"{end} at once")
        getattr(journal, end)()
        with contextlib.suppress(OSError):
            journal.end_sync(pending)
    assert files_open_in(tmp_path) == []


@pytest.mark.parametrize("call", ["dup", "open"])
def test_where_no_descriptor_is_left_it_goes_on(tmp_path, monkeypatch, call):
    def fail(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    journal, _ = opened(tmp_path)
    sequence = 0
    while journal.size < 4096:
        push(journal, sequence)
        sequence += 1
    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        if call == "open":
            with pytest.raises(OSError, match="Too many"):
                push(journal, sequence)
            assert len(segments(tmp_path)) == 1
        push_all = range(sequence, sequence + (call == "dup"))
        for number in push_all:
            push(journal, number)
        sync(journal)
    assert journal.synced <= journal.written
    push(journal, push_all.stop)
    sync(journal)
    journal.close()
    assert read_log(tmp_path).open.keys() == set(range(push_all.stop + 1))


def test_numbers_reserved_in_a_former_segment_are_not_relied_upon(tmp_path, monkeypatch):
    """That segment may be deleted before the next one, which says what held when it began."""
    monkeypatch.setattr(Reservations.__init__, "__defaults__", (10,))
    journal, _ = opened(tmp_path, fsync="never")
    for sequence in range(6):
        push(journal, sequence, 500)
    pending = journal.begin_sync(reserves=True)
    for sequence in range(6, 9):
        push(journal, sequence, 700)
    assert len(segments(tmp_path)) == 2
    pending.wait()
    journal.end_sync(pending)
    sync(journal)
    assert not journal.is_due  # this one has reserved them again
    journal.forget()
    state, newest = JournalState(), segments(tmp_path)[1]
    apply_segment(state, newest, newest.read_bytes())
    assert state.mark == 19


def test_numbers_are_reserved_before_an_append_has_to_wait_for_it(tmp_path, monkeypatch, disk):
    monkeypatch.setattr(Reservations.__init__, "__defaults__", (10,))
    journal, _ = opened(tmp_path, fsync="never")
    for sequence in range(5):
        push(journal, sequence, 10)
        assert not journal.is_due
    push(journal, 5, 10)
    assert journal.is_due
    sync(journal)
    disk.synced.clear()
    for sequence in range(6, 11):
        push(journal, sequence, 10)
    assert not disk.synced
    journal.close()
