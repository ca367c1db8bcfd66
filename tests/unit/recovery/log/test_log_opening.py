"""Who may write a log, and what opening it finds after a clean end, a kill, and an abandonment."""

import os
import signal

import pytest

from recovery.log import (
    FileStore,
    LogLockedError,
    LogReader,
    LogWriteError,
    LogWriter,
    verify,
)
from tests.unit.recovery.log.logs import (
    OTHER,
    SESSION,
    Log,
    S,
    read_all,
    segments,
    small_log,
)


def log_in(directory, **config):
    return Log(FileStore(directory), directory=directory, **config)


def in_child(work):
    """Run `work` in a forked process that kills itself; return its exit status."""
    process = os.fork()
    if not process:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_a_log_has_one_writer_at_a_time(tmp_path):
    log = log_in(tmp_path / "log")
    log.append()
    with pytest.raises(LogLockedError, match=str(tmp_path)):
        LogWriter(log.config, session=1, now_ns=0)
    log.append()  # the refused one has changed nothing
    reader = LogReader(tmp_path / "log")
    assert read_all(reader) == log.written

    log.close()
    log.open()
    log.close()


def test_who_deletes_the_lock_file_lets_no_second_writer_in(tmp_path):
    log = log_in(tmp_path / "log")
    log.append()
    (tmp_path / "log" / "lock").unlink()
    with pytest.raises(LogLockedError, match=str(tmp_path)):
        LogWriter(log.config, session=1, now_ns=0)
    log.append()
    log.close()


def test_a_forked_child_neither_holds_nor_gives_back_the_lock(tmp_path):
    log = log_in(tmp_path)
    log.append()
    go, gone = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.close(gone)
            os.read(go, 1)
        finally:
            os._exit(0)
    try:
        assert in_child(lambda: None) == -signal.SIGKILL  # a child's end changes nothing
        with pytest.raises(LogLockedError):
            LogWriter(log.config, session=1, now_ns=0)
        log.close()
        log.open()  # although the child lives
        log.append()
        assert read_all(LogReader(tmp_path)) == log.written
    finally:
        os.close(gone)
        os.close(go)
        os.waitpid(process, 0)
    log.close()


@pytest.mark.long
def test_a_child_that_writes_into_its_parents_log_fails(tmp_path):
    log = log_in(tmp_path, segment_bytes=4096, retention_age=5)
    log.append()
    said, report = os.pipe()

    def write():
        for call in (log.append, log.close):
            try:
                call()
            except LogWriteError:
                os.write(report, b"refused ")
        log.writer.abandon()

    log.append(size=5000)  # in a segment of its own
    in_child(write)
    os.close(report)
    assert os.read(said, 100) == b"refused " * 2
    os.close(said)
    log.append()
    reader = LogReader(tmp_path)
    assert read_all(reader) == log.written
    assert reader.session == SESSION
    with pytest.raises(LogLockedError):
        LogWriter(log.config, session=1, now_ns=0)
    log.close()


def test_an_abandoned_log_is_gone_on_with_under_a_new_session():
    log = Log()
    log.append("a", 3)
    log.writer.abandon()
    with pytest.raises(LogWriteError, match="given up"):
        log.append()
    log.writer.sync(log.now_ns + 10**6 * S)
    with pytest.raises(LogWriteError):
        log.append("new")
    log.close()
    after = LogWriter(log.config, session=OTHER, now_ns=log.now_ns, store=log.store)
    assert after.session == OTHER
    assert after.next(OTHER, "a") == 0
    assert after.skips(OTHER, "a") == []
    after.append(OTHER, "a", 0, 1, b"new", timestamp_ns_max=0, now_ns=log.now_ns)
    assert read_all(after.reader())[:-1] == log.written


INDEX_LOST = ["deleted", "empty", "half", "of an earlier time"]


@pytest.mark.parametrize("how", INDEX_LOST)
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_crash_between_a_new_segment_and_the_index_of_the_old_one(how, closed):
    log = small_log(closed=False)
    name = segments(log.store)[1].replace(".log", ".idx")
    index = log.store.read(name)
    if how == "of an earlier time":
        early = Log()
        early.append("a", 3)
        early.close()
        first = "00000000000000000000"
        log.store.write(f"{first}.idx", early.store.read(f"{first}.idx"))
        name = f"{first}.idx"
    elif how == "deleted":
        log.store.remove(name)
    else:
        log.store.write(name, index[: len(index) // 2] if how == "half" else b"")
    if closed:
        log.open()
        log.store.remove(name) if how == "deleted" else None
        log.close()
        log.kill()
    assert read_all(log.reader()) == log.written

    assert log.open().skipped == ()
    for (session, topic), following in log.next.items():
        assert log.writer.next(session, topic) == following
    assert read_all(log.writer.reader()) == read_all(log.reader()) == log.written
    log.close()
    log.kill()
    assert list(verify("log", store=log.store)) == []
