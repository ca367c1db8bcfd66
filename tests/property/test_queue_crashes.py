"""A queue's log through kills, crashes of the system and damage, as a pusher writes it."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmsg.errors import LogFormatError
from p2pmsg.queue import QueueLogConfig
from p2pmsg.queue.journal.file import Journal
from p2pmsg.queue.journal.records import JournalState, job_record
from p2pmsg.queue.rules import Done, QueuedJob
from recovery.log import MemoryStore

STEPS = st.one_of(
    st.tuples(st.just("push"), st.integers(1, 20)),
    st.tuples(st.just("push"), st.integers(1, 20)),
    st.tuples(st.just("mark_done"), st.integers(0, 30)),
    st.tuples(st.sampled_from(("begin", "wait", "end")), st.just(0)),
    st.tuples(st.just("shorten"), st.integers(1, 30)),
    st.tuples(st.sampled_from(("kill", "crash", "crash", "close")), st.integers(0, 2**32)),
)


def opened(store, fsync="interval"):
    """Open a log with the smallest segments; return it and its state."""
    state = JournalState()
    journal = Journal(QueueLogConfig("memory", fsync=fsync), state, store=store, segment_bytes=4096)
    journal.begin_run(state.deliveries)
    return journal, state


class Log:
    """A log, and what must be known of it whatever happens."""

    def __init__(self, fsync):
        self.store, self.fsync = MemoryStore(), fsync
        self.pushed, self.done = {}, {}  # by sequence, up to where the log has to be on the disk
        self.last_used = -1
        self.open()

    def open(self):
        self.journal, self.state = opened(self.store, self.fsync)
        self.next = self.state.next_sequence
        self.pending = None

    def push(self, count):
        for _ in range(count):
            self.journal.push(QueuedJob(self.next, b"\x01" * 300, 1000 + self.next))
            self.pushed[self.next] = self.journal.written
            self.last_used = self.next
            self.next += 1

    def mark_done(self, at):
        left = sorted(self.pushed.keys() - self.done.keys())
        if left:
            sequence = left[at % len(left)]
            self.journal.change(Done(sequence, sequence + 1))
            self.done[sequence] = self.journal.written

    def begin(self, _):
        if self.pending is None:
            self.pending = self.journal.begin_sync()

    def wait(self, _):
        if self.pending is not None:
            self.pending.wait()

    def end(self, _):
        if self.pending is not None:
            self.pending.wait()
            self.journal.end_sync(self.pending)
            self.pending = None

    def shorten(self, at_once):
        """Shorten the log as a pusher does; others run in between."""
        again = self.journal.begin_shorten()
        for at in range(0, len(again), at_once):
            for sequence in again[at : at + at_once]:
                is_open = sequence in self.pushed and sequence not in self.done
                job = QueuedJob(sequence, b"\x01" * 300, 1000 + sequence)
                self.journal.write_again(sequence, [job_record(job)] if is_open else [])
            self.push(1)
        self.end(0)
        self.journal.keep_from(*self.journal.first_of_use())
        self.begin(0)
        self.push(1)
        self.end(0)

    def kill(self, _):
        self.store.kill()
        self.died(lambda stop: True)

    def crash(self, seed):
        synced = self.journal.synced
        self.store.crash(Random(seed))
        self.died(lambda stop: stop <= synced)

    def close(self, _):
        self.end(0)
        self.journal.close()
        self.died(lambda stop: True)

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
    at=st.integers(0, 2**32),
)
def test_what_was_on_the_disk_is_never_lost_and_damage_is_said(fsync, steps, at):
    log = Log(fsync)
    for name, number in steps:
        getattr(log, name)(number)
    log.end(0)
    log.journal.sync()
    log.journal.close()
    whole = log.store.copy()
    *_, newest = sorted(name for name in whole if name.endswith(".log"))
    for name in whole:
        if name.endswith(".log") and name != newest:
            damage(log, whole, name, at % len(whole[name]))


def damage(log, whole, name, at):
    """Change or cut a segment that is on the disk as a whole: it is refused, or said."""
    data = whole[name]
    for damaged in (data[:at], data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]):
        log.store.kill()
        log.store.restore(whole)
        log.store.write(name, damaged)
        try:
            _, state = opened(log.store)
        except LogFormatError:
            continue
        assert state.is_incomplete or state.open.keys() == log.pushed.keys() - log.done.keys()
