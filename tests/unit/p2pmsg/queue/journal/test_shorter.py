"""A queue's log that comes back shorter: cut, without its newest segment, or out of a copy."""

import os
import shutil

import pytest

from p2pmsg.errors import LogFailedError
from p2pmsg.queue.journal.file import FileJournal, LogSettings
from p2pmsg.queue.journal.reading import read_log, segments
from p2pmsg.queue.journal.records import JournalState, change_record, push_record
from p2pmsg.queue.journal.reservations import RESERVE, Reservations
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.queue.rules import Given, JobQueue, QueueConfig, QueuedJob

MS = 1_000_000


def opened(folder, boot="boot 1", **settings):
    state = JournalState()
    chosen = LogSettings(directory=folder, **settings)
    return FileJournal(chosen, state, boot=boot, dedup_window_ms=1e13), state


def push(journal, state, count, **fields):
    """Push as a pusher does; return the sequences."""
    sequences = range(state.next_sequence, state.next_sequence + count)
    for sequence in sequences:
        job = QueuedJob(sequence, b"\x01" * 50, 1000 + sequence, **fields)
        journal.append(push_record(job))
    state.next_sequence = sequences.stop
    return sequences


def cut(folder):
    path = segments(folder)[-1]
    os.truncate(path, path.stat().st_size - 300)


def cut_to_nothing(folder):
    os.truncate(segments(folder)[-1], 0)


def without_the_newest(folder):
    segments(folder)[-1].unlink()


SHORTER = {"cut": cut, "empty": cut_to_nothing, "without": without_the_newest}
ENDS = {"closed": FileJournal.close, "killed": FileJournal.forget}


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


def test_more_is_missing_than_was_reserved(tmp_path, monkeypatch):
    monkeypatch.setattr(Reservations.__init__, "__defaults__", (10,))
    journal, state = opened(tmp_path, segment_bytes=4096)
    used = push(journal, state, 500)
    journal.allow_deliveries(7000)
    journal.forget()
    for path in segments(tmp_path)[2:]:
        path.unlink()

    journal, state = opened(tmp_path)
    journal.close()
    assert state.next_sequence == used.stop
    assert state.deliveries >= 7000


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
    "copy": copied, "over": copied_over, "rsync": synchronised, "segments": segments_only,
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


@pytest.mark.parametrize("boot", ["boot 1", "boot 2"])
def test_a_log_that_was_killed_and_left_alone_is_whole(tmp_path, boot):
    journal, state = opened(tmp_path)
    used = push(journal, state, 3)
    journal.forget()

    journal, state = opened(tmp_path, boot)
    journal.close()
    assert state.is_short is state.is_copy is False
    assert state.next_sequence == (used.stop if boot == "boot 1" else RESERVE)


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
    queue = JobQueue(QueueConfig(ack_timeout_ms=1000, grace_ms=10), first_delivery=200)
    core = PusherCore(queue, name="", session=1, incarnation=200)
    core.restore(state, now_ns=0)
    queue.join(9, "other", 4, now_ns=0)
    for ms in (20, 999):
        queue.handle_timer(now_ns=ms * MS)
        assert queue.take(now_ns=ms * MS) is None
        queue.workers[9].heard_ns = ms * MS
    queue.handle_timer(now_ns=1000 * MS)
    assert queue.take(now_ns=1000 * MS) is not None


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_an_fsync_that_failed_is_final(tmp_path, monkeypatch, fsync):
    journal, state = opened(tmp_path, fsync=fsync, fsync_interval_ms=0)
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


def test_a_sync_may_outlast_its_segment(tmp_path):
    journal, state = opened(tmp_path, fsync="always", segment_bytes=4096)
    push(journal, state, 1)
    pending = journal.begin_sync()
    push(journal, state, 200)
    pending.wait()
    journal.end_sync(pending)
    assert journal.synced < journal.written
    journal.sync()
    assert journal.synced == journal.written
    journal.close()
