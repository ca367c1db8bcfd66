"""A log that is filled faster than the rounds apply retention, or whose disk is full."""

import errno

import pytest

from p2pmsg import LogConfig
from p2pmsg.errors import LogFailedError
from p2pmsg.publisher.log import PublisherLog
from recovery.log import MemoryStore, verify
from tests.unit.p2pmsg.publisher.served import run_steps
from tests.unit.p2pmsg.publisher.test_log import core_on

SEGMENT, RETENTION = 4096, 12_000
FRAME = bytes(1000)
S = 10**9


class SmallDisk(MemoryStore):
    """A disk with so many bytes for all files."""

    def __init__(self, byte_count):
        super().__init__()
        self.byte_count = byte_count

    def space(self, data, operation):
        used = sum(len(content.data) for content in self._files.values())
        there = data[: max(0, self.byte_count - used)]
        if len(there) < len(data):
            self.failing = {"write": OSError(errno.ENOSPC, "No space left on device")}
        return there

    def check(self, operation):
        failing, self.failing = self.failing, {}
        error = failing.get(operation)
        if error is not None:
            raise error


def log_of(store=None, **options):
    settings = {"segment_bytes": SEGMENT, "retention_bytes": RETENTION, **options}
    config = LogConfig("log", **settings)
    return PublisherLog(config, session=1, wall_ns=0, store=store or MemoryStore())


def append(log, count=1, topic="t", session=None):
    for _ in range(count):
        log.append(topic, log.next(topic, session), 1, FRAME, 0, 0, session)


@pytest.mark.parametrize("session", [None, 7], ids=["publisher", "relay"])
def test_it_does_not_grow_beyond_retention_and_a_segment_though_no_round_is_taken(session):
    log = log_of()
    sizes = []
    for _ in range(400):
        append(log, session=session)
        sizes.append(log.stats().bytes)
    assert RETENTION < max(sizes) <= RETENTION + SEGMENT + 2 * len(FRAME)
    assert log.stats().unsynced_bytes <= max(sizes)
    assert run_steps(log.sync_steps())
    assert log.stats().unsynced_bytes == 0
    assert [*verify("log", store=log.store)] == []


def test_where_nothing_is_too_old_a_full_disk_is_reported():
    store = SmallDisk(20_000)
    log = log_of(store, retention_bytes=2**40)
    with pytest.raises(LogFailedError, match="No space left"):
        append(log, 400)
    kept = log.next("t")
    for _ in range(3):
        with pytest.raises(LogFailedError, match="No space left"):
            append(log)
    assert log.next("t") == kept
    store.byte_count = 2**40
    append(log, 10)
    assert [*verify("log", store=store)] == []


FULL = OSError(errno.ENOSPC, "No space left on device")
NOTHING = (None, None, None)


def warnings_of(caplog):
    """Return what was said since the last call."""
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    caplog.clear()
    return said


@pytest.mark.parametrize("how", ["publish", "publish_alone", "publish_many", "relay"])
def test_a_full_disk_is_said_once_a_minute_and_that_it_works_again(caplog, how):
    store = MemoryStore()
    log = log_of(store, retention_bytes=2**40)
    core = None if how == "relay" else core_on(log)

    def publish(now_ns):
        if core is None:
            log.append("t", log.next("t", 7), 1, FRAME, 0, 0, 7)
            return
        if how == "publish_many":
            times = {"now_ns": now_ns, "wall_ns": 1}
            core.publish_many("t", [FRAME] * 3, None, None, 0, **times, count=3)
        elif how == "publish" or core.publish_alone("t", FRAME, *NOTHING, now_ns, 1) < 0:
            core.publish("t", FRAME, *NOTHING, now_ns=now_ns, wall_ns=1)
            core.flush(now_ns=now_ns)

    publish(10**15)
    caplog.clear()
    store.failing = {"write": FULL}
    for second in range(1, 131):
        with pytest.raises(LogFailedError, match="No space left"):
            publish(10**15 + second * S)
        said = warnings_of(caplog)
        assert len(said) == (second == 1)
        if second == 1:
            assert "No space left on device. It is tried again" in said[0]
        assert "No space left" in log.stats().retrying
        assert log.stats().errors == second
    store.failing = {}
    publish(10**15 + 131 * S)
    assert warnings_of(caplog) == ["log: it works again, after 130 failures"]
    assert (log.stats().retrying, log.stats().errors) == (None, 130)
    publish(10**15 + 132 * S)
    assert warnings_of(caplog) == []
