"""A disk that fails: the error is said, what was written stays good, and the log goes on."""

import errno
import shutil

import pytest

from recovery.log import FileStore, LogWriteError, verify
from tests.unit.recovery.log.logs import OTHER, SESSION, Log, S, read_all

FULL = OSError(errno.ENOSPC, "No space left on device")
BROKEN = OSError(errno.EIO, "Input/output error")
OPERATIONS = ["write", "sync", "open", "replace", "remove", "truncate"]


def steps(log):
    """Everything that a writer does, each step with what makes it happen."""

    def roll():
        log.append("a", size=3800)

    def age():
        log.now_ns += 100 * S
        log.writer.sync(log.now_ns)

    return {
        "append": lambda: log.append("a"),
        "a new stream": lambda: log.append("new"),
        "another's stream": lambda: log.append("a", session=OTHER),
        "a frame above the mark": lambda: log.append("a", 60),
        "a new segment": roll,
        "a segment larger than all": lambda: log.append("a", size=9000),
        "sync": log.writer.sync,
        "expire": age,
    }


STEPS = [
    "append", "a new stream", "another's stream", "a frame above the mark", "a new segment",
    "a segment larger than all", "sync", "expire",
]  # fmt: skip


ENDINGS = ["goes on", "killed", "closed", "crashed"]


def full_log(retention_bytes=2**40):
    log = Log(segment_bytes=4096, retention_bytes=retention_bytes, retention_age=500, reserve=50)
    log.append("rare")
    log.append_each(60, "a")
    return log


def check(log):
    """All that was taken is served, as far as retention keeps it, and nothing else."""
    kept = read_all(log.writer.reader())
    if log.config.retention_bytes > 2**20:
        assert kept == log.written
    else:
        assert kept == log.written[len(log.written) - len(kept) :]
    assert kept == read_all(log.reader())
    for (session, topic), following in log.next.items():
        if session == SESSION:
            assert log.writer.next(session, topic) == following


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("step", STEPS)
def test_a_failing_disk(step, operation):
    at = STEPS.index(step) + OPERATIONS.index(operation)
    ending, error = ENDINGS[at % 4], (FULL, BROKEN)[at // 4 % 2]
    log = full_log(5000 if step == "expire" else 2**40)
    log.store.failing = {operation: error}
    if operation == "truncate":
        log.store.failing["write"] = error  # only then is it called
    for _ in range(2):
        try:
            steps(log)[step]()
        except LogWriteError as said:
            assert said.errno == error.errno
            assert error.strerror in str(said)
            assert "log" in str(said)
    if operation != "open":
        check(log)
    log.store.failing = {}

    if ending == "killed" or log.writer.has_failed:  # a failed sync is final
        log.reopen()
        check(log)
    elif ending == "closed":
        log.close()
        log.reopen()
        check(log)
    elif ending == "crashed":
        taken = dict(log.next)
        log.crash()
        for (session, topic), following in taken.items():
            if session == SESSION:
                assert log.writer.next(session, topic) >= following
        kept = read_all(log.reader())
        assert all(record in log.written for record in kept)
        return
    for name in STEPS:
        steps(log)[name]()
    check(log)
    assert log.reopen().findings == ()
    check(log)
    log.close()
    assert list(verify("log", store=log.store)) == []


def test_after_a_failed_sync_nothing_of_it_is_said_to_be_on_the_disk():
    log = full_log()
    failed_bytes = log.writer.unsynced_bytes
    said = pytest.raises(LogWriteError, match="cannot be forced to the disk")
    with log.failing({"sync": BROKEN}), said:
        log.writer.sync()
    log.append("a")
    assert log.writer.unsynced_bytes > failed_bytes
    with said:
        log.writer.sync()
    log.close()
    log.store.crash()
    assert not log.open().clean
    kept = read_all(log.reader())
    assert kept == log.written[: len(kept)]


def test_a_failed_mark_is_not_relied_upon():
    log = Log(segment_bytes=4096, reserve=10)
    log.append("a", 9)
    with log.failing({"write": FULL}), pytest.raises(LogWriteError):
        log.append("a", 5)
    log.append_each(4, "a", 1, size=2000)  # a new segment takes the mark from the state
    log.crash()

    assert log.writer.next(SESSION, "a") >= 13


def test_a_directory_that_vanishes_is_reported(tmp_path):
    log = Log(FileStore(tmp_path / "log"), directory=tmp_path / "log", segment_bytes=4096)
    log.append()
    shutil.rmtree(tmp_path / "log")
    for call in (log.writer.sync, lambda: log.append("a", size=4000), log.writer.sync):
        with pytest.raises(LogWriteError, match=r"No such file|was deleted"):
            call()
    log.close()
    assert not (tmp_path / "log").exists()
    again = Log(FileStore(tmp_path / "log"), directory=tmp_path / "log")
    again.append()
    again.close()
