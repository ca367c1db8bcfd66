"""What of a log is kept in memory."""

import os
from random import Random

import pytest

from recovery.log import MemoryStore
from recovery.log.index import SegmentIndex
from recovery.log.store import FileStore
from recovery.log.sync import STEP_BYTES, PageCache
from tests.unit.recovery.log.logs import Log, read_all

MB = 2**20


def test_what_is_kept_is_the_newest():
    cache = PageCache(8 * MB)
    segment = SegmentIndex(0, 8 * MB)
    assert cache.due([segment]) == []
    segment.size = 12 * MB - 1
    assert cache.due([segment]) == []
    segment.size = 13 * MB
    assert cache.due([segment]) == [(segment.name, 0, 4 * MB)]
    assert cache.due([]) == []
    segment.size = 30 * MB
    assert cache.due([segment]) == [(segment.name, 4 * MB, 20 * MB)]


def test_the_rest_of_a_segment_goes_with_the_next_one():
    cache = PageCache(0)
    first, second = SegmentIndex(0, 5 * MB + 1), SegmentIndex(7, 3)
    assert cache.due([first]) == [(first.name, 0, 4 * MB)]
    second.size = 9 * MB
    assert cache.due([first, second]) == [
        (first.name, 4 * MB, 5 * MB + 1),
        (second.name, 0, 8 * MB),
    ]


def test_nothing_is_given_back_where_everything_is_to_be_kept():
    assert PageCache(None).due([SegmentIndex(0, 100 * MB)]) == []


def test_every_byte_is_given_back_once_and_only_what_is_old():
    for seed in range(300):
        rng = Random(seed)
        keep = rng.choice((0, MB, 10 * MB))
        cache = PageCache(keep)
        segments = [SegmentIndex(0)]
        given: dict[str, int] = {}
        for _ in range(40):
            dirty = [segments[-1]]
            for _ in range(rng.randint(1, 3)):
                segments[-1].size += rng.randint(0, 6 * MB)
                if rng.random() < 0.3:
                    segments.append(SegmentIndex(segments[-1].first_record + 1))
                    dirty.append(segments[-1])
            for name, start, stop in cache.due(dirty):
                assert given.get(name, 0) == start < stop, seed
                given[name] = stop
            held = [s.size - given.get(s.name, 0) for s in segments]
            assert min(held) >= 0, seed
            assert sum(held) <= keep + 2 * STEP_BYTES, seed
            assert sum(held) >= min(keep, sum(s.size for s in segments)), seed


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_writer_gives_back_only_what_is_on_the_disk(on_disk, tmp_path):
    store = FileStore(tmp_path) if on_disk else MemoryStore()  # this one looks what is given back
    log = Log(store, cache_bytes=0, segment_bytes=9 * MB)
    for _ in range(5):
        log.append_each(2, "a", size=2 * MB)
        log.writer.sync()
    assert read_all(log.reader()) == log.written
    log.close()


def test_what_is_given_back_is_in_memory_no_more(tmp_path):
    log = Log(FileStore(tmp_path), cache_bytes=4 * MB)
    log.append_each(6, "a", size=2 * MB)
    log.writer.sync()
    with open(tmp_path / "00000000000000000000.log", "rb") as file:
        try:
            # Raises where it would have to wait for the disk.
            os.preadv(file.fileno(), [bytearray(10)], 10 * MB, os.RWF_NOWAIT)
        except OSError as error:
            pytest.skip(f"the file system under {tmp_path} cannot tell what is in memory: {error}")
        with pytest.raises(BlockingIOError):
            os.preadv(file.fileno(), [bytearray(10)], 2 * MB, os.RWF_NOWAIT)
    log.close()
