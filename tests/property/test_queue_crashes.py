"""A queue's log through kills, crashes of the system and damage, as a pusher writes it."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmsg.errors import LogFormatError
from p2pmsg.queue.journal.file import _close_all
from p2pmsg.queue.journal.reading import segments
from p2pmsg.queue.journal.records import change_record
from p2pmsg.queue.journal.repair import repair
from p2pmsg.queue.rules import Done
from tests.unit.p2pmsg.queue.journal.crashes import Disk, opened, push

STEPS = st.one_of(
    st.tuples(st.just("push"), st.integers(1, 20)),
    st.tuples(st.just("push"), st.integers(1, 20)),
    st.tuples(st.just("done"), st.integers(0, 30)),
    st.tuples(st.sampled_from(("begin", "finish")), st.just(0)),
    st.tuples(st.sampled_from(("wait", "end")), st.integers(0, 1)),
    st.tuples(st.just("empty"), st.integers(1, 30)),
    st.tuples(st.sampled_from(("kill", "crash", "crash", "close")), st.just(0)),
)


class Log:
    """A log, and what must be known of it whatever happens."""

    def __init__(self, folder, fsync):
        self.folder, self.fsync = folder, fsync
        self.boots = 1
        self.pushed, self.done = {}, {}  # by sequence, up to where the log has to be on the disk
        self.last_used = -1
        self.open()

    def open(self):
        how = {"boot": f"boot {self.boots}", "fsync": self.fsync}
        try:
            self.journal, self.state = opened(self.folder, **how)
        except LogFormatError:  # a crash has left a hole
            assert repair(self.folder).places
            self.journal, self.state = opened(self.folder, **how)
        self.next = self.state.next_sequence
        self.syncs = []

    def push(self, count):
        for _ in range(count):
            push(self.journal, self.next)
            self.pushed[self.next] = self.journal.written
            self.last_used = self.next
            self.next += 1

    def mark_done(self, at):
        left = sorted(self.pushed.keys() - self.done.keys())
        if left:
            sequence = left[at % len(left)]
            self.journal.append(change_record(Done(sequence, sequence + 1)))
            self.done[sequence] = self.journal.written

    def begin(self):
        if len(self.syncs) < 2:
            self.syncs.append([self.journal.begin_sync(), False])

    def wait(self, at):
        for each in self.syncs[at : at + 1]:
            each[0].wait()
            each[1] = True

    def end(self, at):
        for each in self.syncs[at : at + 1]:
            if each[1]:
                self.syncs.remove(each)
                self.journal.end_sync(each[0])

    def finish(self):
        while self.syncs:
            self.wait(0)
            self.end(0)

    def empty(self, at_once):
        """Empty the oldest segment as a pusher does; others run in between."""
        if not self.journal.has_to_empty:
            return
        found = self.journal.read_oldest()
        for at in range(0, len(found), at_once):
            self.journal.copy(found[at : at + at_once])
            self.push(1)
        pending = self.journal.begin_sync()
        self.push(1)
        pending.wait()
        self.journal.end_sync(pending)
        self.journal.delete_oldest()

    def died(self, is_synced):
        """Open it again; what is known must be what `is_synced` says, at least."""
        self.open()
        kept = {sequence for sequence, stop in self.pushed.items() if is_synced(stop)}
        gone = {sequence for sequence, stop in self.done.items() if is_synced(stop)}
        found = self.state.open.keys()
        assert kept - self.done.keys() <= found
        assert found <= self.pushed.keys() - gone
        if self.fsync != "always":  # there no job is reported before it is on the disk
            assert self.next > self.last_used
        self.pushed = dict.fromkeys(found, 0)
        self.done = {}


@settings(deadline=None)
@given(
    fsync=st.sampled_from(("interval", "always", "never")),
    steps=st.lists(STEPS, max_size=60),
    data=st.data(),
)
def test_what_was_on_the_disk_is_never_lost_and_what_is_damaged_is_refused(fsync, steps, data):
    def choose(low, high):
        return data.draw(st.integers(low, high))

    def among(ways):
        return data.draw(st.sampled_from(ways))

    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        Disk(folder) as disk,
    ):
        log = Log(Path(folder), fsync)
        for name, number in steps:
            if name == "push":
                log.push(number)
            elif name == "done":
                log.mark_done(number)
            elif name in ("begin", "finish"):
                log.begin()
                if name == "finish":
                    log.finish()
            elif name in ("wait", "end"):
                getattr(log, name)(number)
            elif name == "empty":
                log.empty(number)
            else:
                end(log, name, disk, choose, among)
        log.finish()
        log.journal.sync()
        log.journal.forget()
        for path in segments(Path(folder))[:-2]:
            damage(log, path, choose)


def end(log, how, disk, choose, among):
    """End a run and begin the next one."""
    synced = log.journal.synced
    if how == "close":
        log.finish()
        log.journal.close()
        log.died(lambda stop: True)
    elif how == "kill":
        log.journal.forget()
        log.died(lambda stop: True)
    else:
        log.journal.forget()
        for pending, _ in log.syncs:  # their threads died with the process
            _close_all(pending._fds)
        disk.crash(choose, among)
        log.boots += 1
        log.died(lambda stop: stop <= synced)


def damage(log, path, choose):
    """Change or cut a segment that is on the disk as a whole: it is refused."""
    whole = path.read_bytes()
    if not whole:
        return
    at = choose(0, len(whole) - 1)
    for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]):
        path.write_bytes(damaged)
        for boot in (f"boot {log.boots}", "another"):
            with pytest.raises(LogFormatError):
                opened(log.folder, boot)
    path.write_bytes(whole)
