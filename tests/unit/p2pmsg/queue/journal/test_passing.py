"""Errors that pass: only a failed fsync is final for a queue's log."""

import errno
import os

import pytest

from p2pmsg.errors import LogFailedError
from p2pmsg.queue.journal.file import FileJournal, LogSettings
from p2pmsg.queue.journal.records import JournalState, push_record
from p2pmsg.queue.rules import QueuedJob

NAMES = ["EMFILE", "ENOSPC", "EDQUOT", "ENOMEM", "ENOENT"]


def failing(name, when=lambda *_: True, call=None):
    """Return what raises an error instead of `call`, where `when` says so."""
    number = getattr(errno, name)

    def fail(*arguments, **options):
        if when(*arguments):
            raise OSError(number, os.strerror(number))
        return call(*arguments, **options)

    return fail


def open_journal(folder, state=None, **options):
    settings = LogSettings(directory=folder, **options)
    state = JournalState() if state is None else state
    return FileJournal(settings, state, boot="boot", dedup_window_ms=1000)


def push(journal, sequence, size=100):
    journal.append(push_record(QueuedJob(sequence, bytes(size), 1)))


def reopened(folder):
    state = JournalState()
    open_journal(folder, state).forget()
    return state


@pytest.mark.parametrize("is_cut_later", [False, True])
def test_half_a_record_that_could_not_be_cut_is_cut_before_the_next_one(
    tmp_path, monkeypatch, is_cut_later
):
    journal = open_journal(tmp_path)
    push(journal, 0)
    write = os.write

    def half(fd, data):
        write(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        patch.setattr(os, "ftruncate", failing("EIO"))
        with pytest.raises(OSError, match="No space left"):
            push(journal, 1)
    if not is_cut_later:
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", failing("EIO"))
            with pytest.raises(OSError, match="Input/output"):
                push(journal, 1)
    push(journal, 1)
    push(journal, 2)
    journal.forget()
    state = reopened(tmp_path)
    assert sorted(state.open) == [0, 1, 2]
    assert not state.is_short


@pytest.mark.parametrize("name", NAMES)
def test_a_segment_that_cannot_be_begun_is_begun_later(tmp_path, monkeypatch, name):
    journal = open_journal(tmp_path, segment_bytes=4096)
    sequence = 0
    while journal.size < 4096:
        push(journal, sequence)
        sequence += 1
    is_new = lambda path, flags, *_: bool(flags & os.O_CREAT)  # noqa: E731
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", failing(name, is_new, os.open))
            with pytest.raises(OSError, match=os.strerror(getattr(errno, name))):
                push(journal, sequence)
        journal.allow_deliveries(5)
    journal.forget()  # the process dies meanwhile
    state = reopened(tmp_path)
    assert sorted(state.open) == list(range(sequence))
    assert not state.is_short  # nothing is missing
    assert (state.missing, state.next_sequence) == (0, sequence)


@pytest.mark.parametrize("name", NAMES)
def test_a_segment_that_could_not_be_begun_nor_deleted_is_taken_again(
    tmp_path, monkeypatch, name
):
    journal = open_journal(tmp_path, segment_bytes=4096)
    sequence = 0
    while journal.size < 4096:
        push(journal, sequence)
        sequence += 1
    with monkeypatch.context() as patch:
        patch.setattr("p2pmsg.queue.journal.file.sync_path", failing(name))
        patch.setattr("pathlib.Path.unlink", failing(name))
        with pytest.raises(OSError, match=os.strerror(getattr(errno, name))):
            push(journal, sequence)
    push(journal, sequence)
    journal.forget()
    assert sorted(reopened(tmp_path).open) == list(range(sequence + 1))


@pytest.mark.parametrize("name", ["EMFILE", "ENFILE"])
def test_a_sync_beside_others_needs_no_descriptor(tmp_path, monkeypatch, name):
    journal = open_journal(tmp_path, fsync="always")
    push(journal, 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", failing(name))
        pending = journal.begin_sync()
        pending.wait()
        journal.end_sync(pending)
    assert journal.synced == journal.written
    assert journal.broken is None
    journal.close()


def test_a_failed_fsync_is_final_also_where_no_descriptor_was_left(tmp_path, monkeypatch):
    journal = open_journal(tmp_path, fsync="always")
    push(journal, 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", failing("EMFILE"))
        patch.setattr(os, "fdatasync", failing("ENOSPC"))
        pending = journal.begin_sync()
        pending.wait()
        with pytest.raises(LogFailedError, match="No space left"):
            journal.end_sync(pending)
    with pytest.raises(LogFailedError):
        push(journal, 1)
    journal.close()
