"""Logs in memory for tests: frames that can be distinguished, and what was written."""

from collections import defaultdict
from contextlib import contextmanager

from recovery.log import LogConfig, LogReader, LogWriter, MemoryStore, opening
from recovery.log.format import SEGMENT_HEADER, Walk
from recovery.log.index import first_record_of

SESSION, OTHER = 0xA1, 0xB2
S = 10**9
T0 = 10**18


def frame_of(session, topic, start, count, size=40):
    """Return bytes that no other frame has."""
    name = f"{session:x}/{topic}/{start}+{count}/".encode()
    return name + bytes((start * 7 + at) % 256 for at in range(size - len(name)))


class Log:
    """A writer, and all that it was given.

    Attributes:
        written: (session, topic, start, stop, frame, appended ns, newest ns) in order.
        next: what each stream goes on with.

    """

    def __init__(self, store=None, *, directory="log", now_ns=T0, reserve=None, **config):
        if reserve is not None:
            opening.RESERVE = reserve
        self.files = store
        self.store = MemoryStore() if store is None else store
        self.config = LogConfig(directory, **config)
        self.written = []
        self.next = defaultdict(int)
        self.now_ns = now_ns
        self.writer = None
        self.open()

    def open(self, **changes):
        fields = {name: getattr(self.config, name) for name in self.config.__slots__}
        self.config = LogConfig(**{**fields, **changes})
        self.writer = LogWriter(self.config, session=SESSION, now_ns=self.now_ns, store=self.store)
        return self.writer.opened

    def append(self, topic="a", count=1, *, size=40, session=SESSION, skip=0, age_s=0.0):
        """Append a frame whose newest message is `age_s` old."""
        key = (session, topic)
        start = self.next[key] + skip
        frame = frame_of(session, topic, start, count, size)
        newest_ns = self.now_ns - int(age_s * S)
        self.writer.append(
            session, topic, start, count, frame, timestamp_ns_max=newest_ns, now_ns=self.now_ns
        )
        self.next[key] = start + count
        self.written.append((session, topic, start, start + count, frame, self.now_ns, newest_ns))
        return start

    def append_each(self, count, *arguments, **options):
        for _ in range(count):
            self.append(*arguments, **options)

    def close(self):
        self.writer.close()

    def kill(self):
        """The process dies; the next writer is another one."""
        self.store.kill()

    @contextmanager
    def failing(self, errors):
        """Let the disk fail meanwhile."""
        self.store.failing = errors
        yield
        self.store.failing = {}

    def reopen(self):
        """The process dies; return what the next writer finds."""
        self.kill()
        return self.open()

    def crash(self, rng=None):
        """The system dies; return what the next writer finds."""
        self.store.crash(rng)
        return self.open()

    def reader(self):
        return LogReader("log", store=self.store)

    def of(self, topic="a", session=SESSION):
        return [kept_of(one) for one in self.written if one[:2] == (session, topic)]


def kept_of(written):
    """Return (start, stop, frame, newest ns), as a reader gives it."""
    return (*written[2:5], written[6])


def read_stream(reader, topic="a", start=0, stop=2**62, *, session=SESSION, bytes_max=2**40):
    return [tuple(kept) for kept in reader.frames(session, topic, start, stop, bytes_max)]


def read_all(reader):
    """Return all that a reader serves, by any of its ways; they are of one opinion."""
    records = [tuple(record) for record in reader.records()]
    for session, topic in {record[:2] for record in records}:
        expected = [kept_of(record) for record in records if record[:2] == (session, topic)]
        assert read_stream(reader, topic, session=session) == expected
    return records


def segments(store):
    """Return the names of the segments, the oldest first."""
    return sorted(name for name in store.names() if first_record_of(name, "log") is not None)


def boundaries(data):
    """Return where a segment's records begin, and where the last one ends."""
    walk = Walk(lambda count, at: data[at : at + count], SEGMENT_HEADER.size, len(data))
    starts = [placed.offset for placed in walk]
    return [*starts, walk.end_valid]


def newest_ns(data):
    """Return when a segment's newest frame was appended."""
    walk = Walk(lambda count, at: data[at : at + count], SEGMENT_HEADER.size, len(data))
    return max(placed.appended_ns for placed in walk)


def small_log(*, closed, sessions=True):
    """Return a log of three small segments with two or three streams."""
    log = Log(retention_age=100, retention_bytes=2**40)
    for number in range(3):
        if number:
            log.now_ns += 10 * S
            log.writer.sync(log.now_ns)
        log.append("a", 3)
        log.append("b" if number < 2 else "c", 1, age_s=1)
        if sessions:
            log.append("a", 2, session=OTHER)
        log.append("a", 1)
    if closed:
        log.close()
    log.kill()
    return log
