"""The parts of the collector, one by one."""

import pytest

from p2pmsg.statsd import aggregate
from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.grammar import DIALECTS
from p2pmsg.statsd.management import Management
from p2pmsg.statsd.snapshot import AggregateConfig
from p2pmsg.statsd.sockets import StreamBuffer


def rows_of(aggregator, timestamp_s=0.0):
    found = [row for rows in aggregator.flush(timestamp_s).rows() for row in rows]
    return {row.key: row for row in found if not row.key.startswith("statsd.")}


def test_many_names_are_distinguished():
    aggregator = Aggregator()
    for round_ in range(2):
        for start in range(0, 30_000, 100):
            aggregator.feed(b"\n".join(b"n.%d:%d|c" % (n, n) for n in range(start, start + 100)))
        rows = rows_of(aggregator)
        assert len(rows) == 30_000, round_
        assert all(rows[f"n.{n}"].fields["count"] == n for n in range(30_000))


def test_the_templates_are_forgotten_when_they_are_too_many_and_nothing_is_lost():
    aggregator = Aggregator(AggregateConfig(names_max=10))
    for number in range(2000):
        aggregator.feed(b"a:1|g|T%d\nb:1|c|@0.%05d1" % (number, number))
    assert len(aggregator._templates) <= 50
    assert aggregator.series.cut_count == 0


def test_a_name_that_went_makes_space():
    config = AggregateConfig(names_max=2, delete_idle=True)
    aggregator = Aggregator(config)
    aggregator.feed(b"a:1|c\nb:1|c\nc:1|c")
    assert rows_of(aggregator).keys() == {"a", "b"}
    aggregator.feed(b"b:1|c")
    assert rows_of(aggregator).keys() == {"b"}
    aggregator.feed(b"c:5|c")
    rows = rows_of(aggregator)
    assert rows.keys() == {"c"}
    assert rows["c"].fields["count"] == 5
    assert aggregator.series.cut_count == 1
    assert list(aggregator.series.cut_names) == ["c"]


def test_metrics_with_a_time_are_flushed_with_it():
    aggregator = Aggregator()
    aggregator.feed(b"a:1|c|T100\na:2|c|T100\na:4|c|T101\na:8|c")
    found = [row for rows in aggregator.flush(200.0).rows() for row in rows if row.key == "a"]
    assert {row.timestamp_s: row.fields["count"] for row in found} == {200.0: 8, 100: 3, 101: 4}


def test_values_of_sets_and_timers_are_bounded_and_those_without_space_are_counted(monkeypatch):
    monkeypatch.setattr(aggregate, "SET_VALUES_MAX", 3)
    monkeypatch.setattr(aggregate, "VALUES_MAX", 4)
    aggregator = Aggregator()
    for _ in range(2):
        aggregator.feed(b"\n".join(b"s:%d|s\nt:%d|ms" % (number, number) for number in range(10)))
        aggregator.drain()
    rows = rows_of(aggregator)
    assert rows["s"].fields["count"] == 3
    assert rows["t"].fields["count"] == 20
    assert rows["t"].fields["upper"] == 3
    assert (aggregator.counts["set_values_dropped"], aggregator.counts["values_dropped"]) == (
        14,
        16,
    )


# -------------------------------------------------------------------------------- what Node says


@pytest.fixture
def management():
    aggregator = Aggregator(AggregateConfig(dialect=DIALECTS["etsy"]))
    aggregator.feed(b"a.b:1|c\na.c:2|c\nt:1|ms\nt:2|ms\ng:3|g")
    return Management(aggregator, 100.0, lambda: [("graphite", "last_flush", 90.0)], [("x", 1)])


def test_statistics_show_times_as_seconds_since(management):
    assert management.answer(b"stats\n", 107.4) == ("uptime: 7\ngraphite.last_flush: 17\nEND\n\n")


def test_deleting_a_folder_and_a_timer(management):
    assert management.answer(b"delcounters a.* x\n", 0) == (
        "deleted: a.b\ndeleted: a.c\nmetric x not found\nEND\n\n"
    )
    assert management.answer(b"timers", 0) == "{ t: [ 1, 2 ] }\nEND\n\n"
    assert management.answer(b"deltimers t", 0) == "deleted: t\nEND\n\n"
    assert management.answer(b"timers", 0) == "{}\nEND\n\n"
    assert management.answer(b"gauges", 0) == "{ g: 3 }\nEND\n\n"


def test_what_the_collector_says_about_itself_cannot_be_deleted(management):
    assert "not found" in management.answer(b"delcounters statsd.bad_lines_seen", 0)


STREAMS = {
    "lines come whole": (
        100, [b"a:1", b"|c\nb:", b"2|c\n\nc"], [b"", b"a:1|c", b"b:2|c\n"], b"c", 0,
    ),
    "a long line is skipped to its end": (
        10, [b"x" * 8, b"x" * 8, b"still\nb:1|c\n"], [b"", b"", b"b:1|c"], b"", 1,
    ),
    "a last line waits for the end": (100, [b"a:1|c\nb:2|c"], [b"a:1|c"], b"b:2|c", 0),
}  # fmt: skip


@pytest.mark.parametrize(
    ("bytes_max", "pieces", "taken", "rest", "overlong"), STREAMS.values(), ids=STREAMS
)
def test_in_a_stream(bytes_max, pieces, taken, rest, overlong):
    lines = StreamBuffer(bytes_max, framed=False)
    assert [lines.feed(piece) for piece in pieces] == taken
    assert (lines.end(), lines.end(), lines.overlong) == (rest, b"", overlong)


def frame(*lines):
    content = b"\n".join(lines)
    return len(content).to_bytes(4, "little") + content


FRAMES = frame(b"a:1|c", b"b:2|c") + frame(b"c:3|c", b"") + frame() + frame(b"d" * 300 + b":4|c")


@pytest.mark.parametrize("framed", [True, None])
@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 1000])
def test_frames_are_read_however_they_are_cut(framed, step):
    frames = StreamBuffer(1000, framed=framed)
    got = b"\n".join(frames.feed(FRAMES[at : at + step]) for at in range(0, len(FRAMES), step))
    assert got.split() == [b"a:1|c", b"b:2|c", b"c:3|c", b"d" * 300 + b":4|c"]
    assert frames.end() == b""
    assert (frames.overlong, frames.broken) == (0, False)


def test_a_frame_that_is_cut_off_is_reported_and_one_that_cannot_be_ends_the_connection():
    frames = StreamBuffer(1000, framed=True)
    assert frames.feed(frame(b"a:1|c") + frame(b"b:1|c")[:-1]) == b"a:1|c"
    assert frames.end() != b""
    assert frames.feed(frame(b"a:1|c") + b"x" * 8) == b"a:1|c"
    assert (frames.overlong, frames.broken) == (1, True)
    assert frames.feed(frame(b"a:1|c")) == b""
