"""What is appended is read: by sequence, by time, in order; segments are begun by size and age."""

import pytest

from tests.unit.recovery.log.logs import (
    OTHER,
    SESSION,
    T0,
    Log,
    S,
    read_all,
    read_stream,
    segments,
)


@pytest.fixture
def log():
    """Frames of 2, 1, 2, 1, … messages of `a`, one a second, over several segments."""
    made = Log(segment_bytes=4096)
    for number in range(200):
        made.append("a", 2 - number % 2)
        if number % 3 == 0:
            made.append("b", 1, age_s=0.5)
        made.now_ns += S
    return made


@pytest.fixture(params=["the writer's own", "one of another process"])
def reader(log, request):
    return log.writer.reader() if request.param.startswith("the") else log.reader()


def test_segments_that_nobody_looks_at_are_passed_over(log, reader):
    parts = {(SESSION, "a"): (100, 110), (SESSION, "none"): (0, 1)}
    found = [tuple(record) for record in reader.records(parts=parts)]

    assert [one for one in log.written if one[1] == "a" and 100 <= one[2] < 110] != []
    assert all(one in found for one in log.written if one[1] == "a" and 98 < one[2] < 110)
    at = log.written.index(found[0])
    assert log.written[at : at + len(found)] == found
    assert len(found) < len(log.written) // 2
    assert [*reader.records(parts={(OTHER, "a"): (0, 100)})] == []


def test_times_that_go_back_are_found_all_the_same():
    log = Log(segment_bytes=4096)
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
    assert log.reopen().findings == ()
    assert read_all(log.reader()) == log.written


def test_a_segment_is_begun_by_age():
    log = Log(retention_age=100)
    log.append()
    log.now_ns += 10 * S - 1
    log.writer.sync(log.now_ns)
    assert len(segments(log.store)) == 1

    log.append()
    log.now_ns += 1
    log.writer.sync(log.now_ns)
    assert len(segments(log.store)) == 2
    log.now_ns += 90 * S
    log.writer.sync(log.now_ns)  # the new one is empty yet
    assert len(segments(log.store)) == 2
    log.append()
    assert read_all(log.reader()) == log.written
