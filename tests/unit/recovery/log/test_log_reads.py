"""How much of a log is read: where a look-up begins, and what opening looks at."""

import pytest

from recovery.log import MemoryStore
from recovery.log.format import CHUNK_BYTES, SEGMENT_HEADER
from tests.unit.recovery.log.logs import SESSION, T0, Log, S, segments

COUNT, SIZE = 6000, 4000
SEGMENT_BYTES = 8 * 2**20


class CountedFile:
    """An open file that counts what is read of it."""

    def __init__(self, file, name, reads):
        self._file, self._name, self._reads = file, name, reads

    def read(self, byte_count, offset):
        data = self._file.read(byte_count, offset)
        self._reads[self._name] = self._reads.get(self._name, 0) + len(data)
        return data

    def __getattr__(self, name):
        return getattr(self._file, name)


class CountingStore(MemoryStore):
    """Counts the bytes that are read of each file while it is open."""

    def __init__(self):
        super().__init__()
        self.reads = {}

    def open(self, name, *, create=False):
        return CountedFile(super().open(name, create=create), name, self.reads)

    def read_meanwhile(self, work):
        self.reads.clear()
        work()
        return {name: count for name, count in self.reads.items() if count}


@pytest.fixture(scope="module")
def log():
    """Three segments of one stream, a frame a second."""
    made = Log(CountingStore(), segment_bytes=SEGMENT_BYTES)
    for _ in range(COUNT):
        made.append(size=SIZE)
        made.now_ns += S
    assert len(segments(made.store)) == 3
    return made


@pytest.mark.parametrize("at", [0, 700, 1999, 3000, 3900, 5000, COUNT - 1])
def test_a_frame_is_found_without_a_scan_by_sequence_and_by_time(log, at):
    reader = log.reader()

    def by_sequence():
        (kept,) = reader.frames(SESSION, "a", at, at + 1, 1)
        assert kept.start == at

    def by_time():
        assert reader.first_at_or_after(SESSION, "a", T0 + at * S).start == at

    for look_up in (by_sequence, by_time):
        read = log.store.read_meanwhile(look_up)
        assert len(read) == 1
        assert sum(read.values()) <= 2 * CHUNK_BYTES < SEGMENT_BYTES / 4


def test_opening_reads_no_segment_after_a_close_and_the_last_one_after_a_kill():
    store = CountingStore()
    log = Log(store, segment_bytes=2**20)
    log.append_each(COUNT // 4, size=SIZE)
    log.close()
    log.kill()
    assert max(store.read_meanwhile(log.open).values()) < 100  # headers
    log.append(size=SIZE)
    log.kill()
    read = store.read_meanwhile(log.open)
    *others, last = segments(store)
    assert SIZE < read.pop(last) < 2**20
    assert len(others) > 4
    assert read == dict.fromkeys(others, SEGMENT_HEADER.size)
