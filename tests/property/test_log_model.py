"""A log against a list: what is served is what was written, through kills, crashes and failures."""

import errno
from contextlib import contextmanager
from random import Random
from unittest import mock

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from recovery.log import (
    LogConfig,
    LogReader,
    LogWriteError,
    LogWriter,
    MemoryStore,
    index,
    opening,
    verify,
    writer,
)

OWN, OTHER = 1, 2
KEYS = [(OWN, "a"), (OWN, "b"), (OWN, "é"), (OTHER, "a")]
S = 10**9
FULL = OSError(errno.ENOSPC, "No space left on device")
OPERATIONS = ["write", "sync", "open", "replace", "remove", "truncate"]


def check_parts(parts, skips, report, following, *, is_whole):
    """Check that each sequence from the first record on is in a record, or skipped.

    Unless retention deletes: a crash may bring back a segment, and not the one after it.
    """
    kept = {number for part in parts for number in range(*part)}
    assert all(kept.isdisjoint(range(*skip)) for skip in report)
    if parts and is_whole:
        skipped = {number for skip in skips for number in range(*skip)}
        assert kept | skipped >= set(range(parts[0][0], following))


class Log:
    """The log, and what it must have.

    Attributes:
        kept: (session, topic, start, stop, frame, appended ns) of what was written and not lost to
            a crash, the oldest first. Retention may have deleted a first part of it.
        synced: how many of them no crash can take.
        is_final: whether a sync has failed: then this writer makes no other.
        used: by stream, the sequence above all that were ever handed out.
        skips: by stream, what was skipped after crashes.

    """

    def __init__(self, fsync, retention_bytes, retention_age):
        self.config = LogConfig(
            "log", segment_bytes=4096, fsync=fsync, retention_bytes=retention_bytes,
            retention_age=retention_age,
        )  # fmt: skip
        self.keeps_all = retention_bytes == 2**40 and retention_age is None
        self.store, self.now_ns, self.number = MemoryStore(), 10**18, 0
        self.kept, self.synced, self.deleted = [], 0, 0
        self.has_holes = False
        self.used, self.skips = dict.fromkeys(KEYS, 0), {}
        self.open()

    def open(self):
        self.writer = LogWriter(self.config, session=OWN, now_ns=self.now_ns, store=self.store)
        self.reader = self.other = None
        self.is_final = False

    # What a process does.

    def append(self, key, count, size):
        start = self.writer.next(*key)
        assert start >= self.used[key] or key[0] == OTHER
        frame = b"%d %d;" % (start, self.number) + bytes(size)
        if self.writer.floor and key[0] == OWN and key not in self.writer.streams():
            self.skips[key] = [(0, self.writer.floor)]
        with self.may_fail():
            self.writer.append(
                *key, start, count, frame, timestamp_ns_max=self.number, now_ns=self.now_ns
            )
            self.number += 1
            self.kept.append((*key, start, start + count, frame, self.now_ns))
            if self.config.fsync != "always":
                self.used[key] = start + count

    def sync(self):
        with self.may_fail():
            self.writer.sync()
            self.now_synced()

    def sync_while(self, appends, later=(), dies=None):
        """Append while it waits, and after that; `dies` says in the middle of it: (when, how)."""
        count = len(self.kept)
        with self.may_fail():
            pending = self.writer.begin_sync()
            if self.goes_on_after(pending, appends, later, dies):
                self.writer.end_sync(pending)
                self.now_synced(count)

    def now_synced(self, count=None):
        assert not self.is_final
        count = len(self.kept) if count is None else count
        self.synced = max(self.synced, count)
        for session, topic, _, stop, *_ in self.kept[:count]:
            self.used[session, topic] = max(self.used[session, topic], stop)

    def expire(self, seconds):
        self.now_ns += seconds * S
        with self.may_fail():
            self.writer.sync(self.now_ns)

    def expire_while(self, seconds, appends, later=(), dies=None):
        """Append while the oldest segments are deleted; `dies` as of `sync_while`."""
        self.now_ns += seconds * S
        with self.may_fail():
            pending = self.writer.begin_sync(self.now_ns)
            if self.goes_on_after(pending, appends, later, dies):
                self.writer.end_sync(pending)

    def goes_on_after(self, pending, appends, later, dies):
        """Append before it waited and after; return whether it did not die in between."""
        for stage, records in (("begun", appends), ("waited", later)):
            if stage == "waited":
                pending.wait()
                self.is_final |= pending.error is not None
            for key, size in records:
                self.append(key, 1, size)
            if dies is not None and dies[0] == stage:
                if dies[1] == "close":
                    self.close()
                else:
                    self.kill() if dies[1] == "kill" else self.crash(dies[1])
                return False
        return True

    @contextmanager
    def may_fail(self):
        """What fails says so: where the disk does, and permanently after a sync that failed."""
        try:
            yield
        except LogWriteError as error:
            assert self.store.failing or self.is_final
            self.is_final |= "cannot be forced to the disk" in str(error)

    def fail(self, operations):
        self.store.failing = dict.fromkeys(operations, FULL)

    def mend(self):
        self.store.failing = {}
        if self.is_final:
            with pytest.raises(LogWriteError, match="cannot be forced to the disk"):
                self.writer.sync()
            self.close()  # another writer goes on

    # How it ends, and begins again.

    def kill(self):
        self.store.failing = {}
        before = {key: self.writer.next(*key) for key in KEYS if key[0] == OWN}
        self.store.kill()
        self.open()
        report = self.writer.opened
        assert not report.clean
        assert (report.skipped, report.findings) == ((), ())
        assert {key: self.writer.next(*key) for key in before} == before
        if self.config.fsync == "always":
            self.now_synced()  # it is, before anybody can read it

    def close(self):
        self.store.failing = {}
        before = {key: self.writer.next(*key) for key in KEYS}
        has_failed = self.is_final
        try:
            self.writer.close()
        except LogWriteError:
            assert has_failed  # which nobody had asked about
        self.store.kill()
        # What a failed sync leaves open has the index of an earlier time, if any.
        found = verify("log", store=self.store)
        findings = [one.what for one in found if not has_failed or one.path.endswith(".log")]
        assert not findings or (self.has_holes and "the next segment" in " ".join(findings))
        self.open()
        assert all(self.writer.next(*key) == before[key] for key in KEYS[:3])
        assert self.writer.opened.clean == (not has_failed)
        if not has_failed:
            self.now_synced()

    def crash(self, seed):
        self.store.failing = {}
        known = set(self.writer.streams())
        self.store.crash(None if seed is None else Random(seed))
        reader = LogReader("log", store=self.store)
        left = [tuple(record)[:6] for record in reader.records()]
        named = {key: reader._catalog.next(key) for key in KEYS}
        self.open()
        rest = iter(self.kept)
        assert all(record in rest for record in left)
        synced = self.kept[self.deleted : self.synced]
        first = next((at for at, record in enumerate(synced) if record in left), len(synced))
        assert [record for record in synced[first:] if record not in left] == []
        for key in KEYS[:3]:
            following = self.writer.next(*key)
            assert following >= self.used[key]
            if key in self.writer.streams():
                parts = [record[2:4] for record in left if record[:2] == key]
                stops = [stop for _, stop in parts]
                report = [skip[2:] for skip in self.writer.opened.skipped if skip[:2] == key]
                self.skips.setdefault(key, []).extend(report)
                # After the last record, and before it where a segment lost its end.
                # All that was reserved, so nothing after; or retention has deleted what was there.
                is_used_up = following in (*stops[-1:], named[key])
                assert not report or report[-1][1] == following or is_used_up
                assert not stops or not report or report[-1][0] >= stops[-1] or is_used_up
                assert len([skip for skip in report if not stops or skip[0] >= stops[-1]]) <= 1
                check_parts(parts, self.skips[key], report, following, is_whole=self.keeps_all)
                if self.config.fsync == "always":
                    # Nothing after the last record; between others what no sync had brought there.
                    assert not report or report[-1][1] < stops[-1]
            else:
                assert key not in known or following == self.writer.floor
        self.has_holes = True
        self.kept, self.deleted = left, 0
        self.synced = len(left) if self.config.fsync == "always" else 0

    # What a reader sees.

    def served(self, reader):
        found = [tuple(record)[:6] for record in reader.records()]
        assert not reader.corrupt
        return found

    def read_all(self, is_own):
        reader = self.writer.reader() if is_own else LogReader("log", store=self.store)
        found = self.served(reader)
        assert found == self.kept[len(self.kept) - len(found) :]
        deleted = len(self.kept) - len(found)
        assert deleted >= self.deleted
        assert not (self.keeps_all and deleted)
        self.deleted = deleted
        for summary in reader.streams():
            key = (summary.session, summary.topic)
            mine = [record for record in found if record[:2] == key]
            assert (summary.earliest, summary.next) == (mine[0][2], mine[-1][3])
            assert summary.frames == len(mine)
            assert summary.appended_ns_last == max(record[5] for record in mine)
        assert {record[:2] for record in found} == {(s.session, s.topic) for s in reader.streams()}

    def read_range(self, key, start, length, bytes_max, is_own):
        reader = self.writer.reader() if is_own else LogReader("log", store=self.store)
        mine = [record[2:5] for record in self.served(reader) if record[:2] == key]
        expected = [one for one in mine if one[1] > start and one[0] < start + length and length]
        found = [tuple(kept)[:3] for kept in reader.frames(*key, start, start + length, bytes_max)]
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)
        if len(found) < len(expected):
            assert sum(len(one[2]) for one in expected[: len(found) + 1]) > bytes_max
        assert len(found) < 2 or sum(len(one[2]) for one in found) <= bytes_max

    def read_from_a_time(self, at, key):
        reader = self.writer.reader()
        records = [tuple(record) for record in reader.records() if tuple(record)[:2] == key]
        newest = int(at * self.number)
        expected = [one[2] for one in records if one[6] >= newest]
        found = reader.first_at_or_after(*key, newest)
        assert (found and found.start) == (expected[0] if expected else None)

    def begin_to_read(self):
        if self.reader is not None:
            return
        self.reader = LogReader("log", store=self.store)
        self.held = self.served(self.reader)
        self.other = self.writer.reader()

    def read_on(self):
        """What a reader holds is not deleted, up to the eight segments that it holds at a time."""
        if self.reader is None:
            return
        if len(self.segments()) <= 8:
            assert self.served(self.reader) == self.held
        self.reader.refresh()
        self.held = self.served(self.reader)
        assert self.held == self.served(self.other)
        assert self.held == self.kept[len(self.kept) - len(self.held) :]

    def end_to_read(self):
        if self.reader is None:
            return
        self.reader.close()
        self.other.close()
        self.reader = None

    def segments(self):
        return [name for name in self.store.names() if name.endswith(".log")]

    def check(self):
        """It says what was skipped, and how large it is."""
        writer = self.writer
        for key in KEYS[:3]:
            if key in writer.streams():
                earliest = writer.earliest(*key)
                expected = self.skips.get(key, [])
                assert set(writer.skips(*key)) <= set(expected)
                if earliest is not None:
                    late = {skip for skip in expected if skip[1] > earliest}
                    assert late <= set(writer.skips(*key))
        assert writer.skips(OTHER, "a") == []
        sizes = [len(self.store.read(name)) for name in self.segments()]
        if not self.store.failing and not writer._must_cut:
            assert writer.bytes == sum(sizes) or writer._segment_bytes < 0
        assert writer.unsynced_bytes >= 0
        assert writer.has_failed == self.is_final


KEY = st.sampled_from(KEYS)
SIZES = st.one_of(st.integers(0, 300), st.integers(0, 6000))
APPENDS = st.lists(st.tuples(KEY, st.integers(0, 3000)), max_size=5)
STEPS = st.one_of(
    st.tuples(st.just("append"), KEY, st.integers(1, 30), SIZES),
    st.tuples(st.just("append"), KEY, st.just(1), SIZES),
    st.tuples(st.just("sync")),
    st.tuples(
        st.just("sync_while"), APPENDS, APPENDS,
        st.none() | st.tuples(
            st.sampled_from(["begun", "waited"]), st.none() | st.just("kill") | st.integers(0, 99)
        ),
    ),
    st.tuples(st.just("expire"), st.integers(-30, 30)),
    st.tuples(
        st.just("expire_while"), st.integers(-30, 30), APPENDS, APPENDS,
        st.none() | st.tuples(
            st.sampled_from(["begun", "waited"]),
            st.none() | st.sampled_from(["kill", "close"]) | st.integers(0, 99),
        ),
    ),
    st.tuples(st.just("fail"), st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=2)),
    st.tuples(st.just("mend")),
    st.tuples(st.just("kill")),
    st.tuples(st.just("close")),
    st.tuples(st.just("crash"), st.none() | st.integers(0, 2**16)),
    st.tuples(st.just("read_all"), st.booleans()),
    st.tuples(
        st.just("read_range"),
        KEY, st.integers(0, 400), st.integers(0, 100), st.integers(1, 10_000), st.booleans(),
    ),
    st.tuples(st.just("read_from_a_time"), st.floats(0, 1), KEY),
    st.tuples(st.just("begin_to_read")),
    st.tuples(st.just("read_on")),
    st.tuples(st.just("end_to_read")),
)  # fmt: skip


A_HOLE_AND_AN_END = [
    ("sync_while", [*[(KEYS[0], 0)] * 4, (KEYS[1], 1720)]),
    ("sync_while", [(KEYS[0], size) for size in (163, 1712, 0, 2147, 106)]),
    ("append", KEYS[3], 1, 3),
    ("append", KEYS[0], 4, 60),
    ("crash", 3),
]
"""The end of one segment is lost, and that of the next one."""
ALL_THAT_IS_RESERVED = [
    ("append", KEYS[0], 1, 0),
    ("append", KEYS[0], 1, 251),
    (
        "sync_while", [(KEYS[0], 0)] * 2,
        [(KEYS[0], 2539), (KEYS[0], 914), (KEYS[1], 0), (KEYS[1], 0)], ("waited", 0),
    ),
]  # fmt: skip
"""The end of one segment is lost, and what the next one has is the last that was reserved."""
A_HOLE_WHILE_THE_OLDEST_ARE_DELETED = [
    ("append", KEYS[0], 1, 0),
    ("sync_while", [], [*[(KEYS[0], size) for size in (0, 0, 645)], (KEYS[2], 3000)], None),
    ("append", KEYS[0], 1, 1),
    ("expire_while", 0, [], [(KEYS[0], 0)] * 3, ("waited", 0)),
]
"""Deleting brings the newest segment's name to the disk before the one before it is synced."""
A_FAILED_SYNC_THAT_NOBODY_ENDS = [
    ("append", KEYS[0], 1, 0),
    ("fail", ["sync"]),
    ("expire_while", 0, [], [], ("waited", "close")),
]
"""Closing says that it failed."""


@pytest.mark.rounds(200, 10_000)
def test_a_log_is_a_list(rounds):
    cases = given(
        st.sampled_from(["interval", "always", "never"]),
        st.sampled_from([0, 9000, 2**40]),
        st.sampled_from([None, 200]),
        st.integers(1, 40),
        st.lists(STEPS, max_size=60),
    )(check)
    for fsync, steps in (
        ("interval", A_HOLE_AND_AN_END),
        ("interval", ALL_THAT_IS_RESERVED),
        ("always", A_HOLE_WHILE_THE_OLDEST_ARE_DELETED),
        ("interval", A_FAILED_SYNC_THAT_NOBODY_ENDS),
    ):
        cases = example(fsync, 0, None, 1, steps)(cases)
    settings(max_examples=rounds, deadline=None, phases=set(Phase) - {Phase.explain})(cases)()


def check(fsync, retention_bytes, retention_age, reserve, steps):
    with (
        mock.patch.object(opening, "RESERVE", reserve),
        mock.patch.object(index, "INDEX_BYTES", 500),
        mock.patch.object(writer, "INDEX_BYTES", 500),
    ):
        follow(Log(fsync, retention_bytes, retention_age), steps)


def follow(log, steps):
    for name, *arguments in [*steps, ("kill",), ("read_all", False)]:
        if name.startswith(("read", "begin")) and log.store.failing:
            log.mend()
        getattr(log, name)(*arguments)
        log.check()
