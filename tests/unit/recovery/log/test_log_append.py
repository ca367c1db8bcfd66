"""What is appended is read: by sequence, by time, in order; segments are begun by size and age."""

import pytest

from recovery.log import LogConfig, LogWriteError, LogWriter
from tests.unit.recovery.log.logs import (
    OTHER,
    SESSION,
    T0,
    Log,
    S,
    read_all,
    read_stream,
    record_bytes,
    segments,
)


@pytest.fixture
def log():
    """Frames of 2, 1, 2, 1, … messages of `a`, one a second, over several segments."""
    made = Log(segment_bytes=4096, index_bytes=300)
    for number in range(200):
        made.append("a", 2 - number % 2)
        if number % 3 == 0:
            made.append("b", 1, age_s=0.5)
        made.now_ns += S
    return made


@pytest.fixture(params=["the writer's own", "one of another process"])
def reader(log, request):
    return log.writer.reader() if request.param.startswith("the") else log.reader()


def test_records_begin_at_a_time(log, reader):
    at_ns = T0 + 100 * S
    found = [tuple(record) for record in reader.records(start_ns=at_ns)]

    assert found == [one for one in log.written if one[5] >= at_ns]
    assert [*reader.records(start_ns=T0 + 200 * S)] == []


def test_segments_that_nobody_looks_at_are_passed_over(log, reader):
    parts = {(SESSION, "a"): (100, 110), (SESSION, "none"): (0, 1)}
    found = [tuple(record) for record in reader.records(parts=parts)]

    assert [one for one in log.written if one[1] == "a" and 100 <= one[2] < 110] != []
    assert all(one in found for one in log.written if one[1] == "a" and 98 < one[2] < 110)
    at = log.written.index(found[0])
    assert log.written[at : at + len(found)] == found
    assert len(found) < len(log.written) // 2
    assert [*reader.records(parts={(OTHER, "a"): (0, 100)})] == []


def test_a_stream_that_is_not_there_has_nothing(reader):
    assert read_stream(reader, "none") == []
    assert read_stream(reader, "a", session=OTHER) == []
    assert reader.first_at_or_after(SESSION, "none", 0) is None
    assert reader.skips(SESSION, "none") == reader.skips(OTHER, "a") == []


def test_the_streams_are_listed_with_what_there_is_of_them(log, reader):
    a, b = reader.streams()

    assert (a.session, a.topic, a.earliest, a.next, a.frames) == (SESSION, "a", 0, 300, 200)
    assert a.bytes == sum(record_bytes(kept[2]) for kept in log.of("a"))
    assert (b.timestamp_ns_min, b.timestamp_ns_max) == (T0 - S // 2, T0 + 198 * S - S // 2)
    assert (b.appended_ns_first, b.appended_ns_last) == (T0, T0 + 198 * S)
    assert reader.session == SESSION


def test_times_that_go_back_are_found_all_the_same():
    log = Log(segment_bytes=4096, index_bytes=100)
    for number in range(300):
        log.append("a", age_s=(number * 37) % 100)
    reader = log.reader()
    for age_s in range(101):
        found = reader.first_at_or_after(SESSION, "a", T0 - age_s * S)
        assert tuple(found) == next(kept for kept in log.of() if kept[3] >= T0 - age_s * S)


def test_sequences_may_leave_ranges_out_and_never_go_back():
    log = Log()
    log.append("a", 2)
    log.append("a", 3, skip=10)
    assert [kept[:2] for kept in read_stream(log.reader())] == [(0, 2), (12, 15)]
    assert [kept[:2] for kept in read_stream(log.reader(), "a", 5, 13)] == [(12, 15)]

    for start, count in ((14, 1), (0, 20), (15, 0), (15, -1)):
        with pytest.raises(ValueError, match=f"start >= 15 and count >= 1, not {start} and"):
            log.writer.append(
                SESSION, "a", start, count, b"", timestamp_ns_max=0, now_ns=log.now_ns
            )
    log.append("a")
    assert read_all(log.reader()) == log.written


def test_an_empty_frame_and_one_larger_than_a_segment_are_kept():
    log = Log(segment_bytes=4096)
    log.append("a", size=0)
    log.append("a", size=100_000)
    log.append("a", size=40)
    log.append("é" * 127, size=5000)

    assert read_all(log.reader()) == log.written
    assert len(segments(log.store)) == 4
    assert log.reopen().bytes_cut == 0
    assert read_all(log.reader()) == log.written


def test_a_segment_is_begun_by_size(log):
    names = segments(log.store)
    sizes = [len(log.store.read(name)) for name in names]

    assert all(3900 < size <= 4096 for size in sizes[:-1])
    assert sum(sizes) == log.writer.bytes


def test_a_segment_is_begun_by_age():
    log = Log(segment_age=10)
    log.append()
    log.now_ns += 10 * S - 1
    log.writer.expire(log.now_ns)
    assert len(segments(log.store)) == 1

    log.append()
    log.now_ns += 1
    log.writer.expire(log.now_ns)
    assert len(segments(log.store)) == 2
    log.now_ns += 1000 * S
    log.writer.expire(log.now_ns)  # the new one is empty yet
    assert len(segments(log.store)) == 2
    log.append()
    assert read_all(log.reader()) == log.written


def test_a_clock_that_goes_back_begins_and_deletes_no_segment():
    log = Log(segment_age=10, retention_age=20, segment_bytes=4096)
    for seconds in (0, -3600, -7200, 5, -100):
        log.now_ns = T0 + seconds * S
        log.writer.expire(log.now_ns)
        log.append_each(60)
    count = len(segments(log.store))
    log.now_ns = T0 - 10**6 * S
    log.writer.expire(log.now_ns)

    assert len(segments(log.store)) == count > 2
    assert read_all(log.reader()) == log.written
    at_ns = T0 - 50 * S
    found = [tuple(record) for record in log.reader().records(start_ns=at_ns)]
    assert found == [one for one in log.written if one[5] >= at_ns]


def test_a_reader_goes_on_although_its_files_were_closed_meanwhile(log):
    reader = log.reader()
    records = reader.records()
    found = [tuple(next(records))]
    for start in range(0, 300, 10):  # other segments, more than it keeps open
        read_stream(reader, "a", start, start + 1)
    reader.close_idle()
    reader.close_idle()
    found += map(tuple, records)

    assert found == log.written
    assert reader.corrupt == {}


def test_a_frame_is_read_although_its_file_was_closed_since_the_last_one():
    log = Log()
    log.append_each(8, "a", size=700_000)  # a reader reads ahead by a megabyte
    reader = log.writer.reader()
    records = reader.records()
    found = [tuple(next(records))]
    reader.close_idle()
    reader.close_idle()
    found += map(tuple, records)

    assert found == log.written
    assert reader.corrupt == {}


NO_NUMBERS = ("five", True, [], b"1", float("nan"), float("inf"), 1.5j)
NUMBERS = (
    "retention_bytes", "segment_bytes", "index_bytes", "fsync_interval", "fsync_bytes",
    "cache_bytes", "reserve", "retention_age",
)  # fmt: skip
WRONG = [
    {"retention_bytes": -1}, {"segment_bytes": 4095}, {"index_bytes": 0},
    {"fsync_interval": -0.001}, {"fsync_bytes": 0}, {"cache_bytes": -1}, {"retention_age": 0},
    {"segment_age": -5}, {"directory": 5}, {"on_error": "ignore"}, {"fsync": "sometimes"},
    {"acknowledge": "sometimes"}, {"acknowledge": "written", "fsync": "always"},
    {"acknowledge": "gathered", "fsync": "always"}, {"acknowledge": "synced", "fsync": "never"},
    # What would spoil sequences.
    {"reserve": 0}, {"reserve": 2.5}, {"reserve": 2**41}, {"moved": "no"}, {"moved": 1},
    *({field: value} for field in NUMBERS for value in NO_NUMBERS),
]  # fmt: skip


@pytest.mark.parametrize("settings", WRONG, ids=str)
def test_settings_out_of_their_limits_are_named(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must"):
        LogConfig(**{"directory": "log", **settings})


def test_a_closed_writer_takes_nothing_and_closes_once():
    log = Log()
    log.append()
    log.close()
    with pytest.raises(LogWriteError, match="closed"):
        log.append()
    second = LogWriter(log.config, session=1, now_ns=log.now_ns, store=log.store)
    log.close()  # this must not say for the second one that all is done

    log.kill()
    assert not log.open().clean
    assert second.next(SESSION, "a") == 1
