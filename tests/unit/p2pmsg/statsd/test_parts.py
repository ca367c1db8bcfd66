"""The parts of a collector: outputs, exact totals, what it serves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import p2pmsg
from p2pmsg import codec
from p2pmsg.metrics.deltas import Deltas, check_name, check_number, check_tags
from p2pmsg.statsd import aggregate, parse_line
from p2pmsg.statsd import totals as totals_module
from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.grammar import DIALECTS, STRICT
from p2pmsg.statsd.management import Management
from p2pmsg.statsd.metric import Metric
from p2pmsg.statsd.snapshot import AggregateConfig
from p2pmsg.statsd.sockets import StreamBuffer
from p2pmsg.statsd.totals import ExactTotals


def rows_of(aggregator, timestamp_s=0.0):
    found = [row for rows in aggregator.flush(timestamp_s).rows() for row in rows]
    return {row.key: row for row in found if not row.key.startswith("statsd.")}


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


A, B = 7, 2**64 - 1


def delta(**counters):
    return {"v": 1, "c": counters}


def test_more_unfinished_clients_than_are_remembered_stay_a_reason(monkeypatch):
    monkeypatch.setattr(totals_module, "SESSIONS_MAX", 3)
    totals = ExactTotals()
    for session in range(5):
        totals.on_client(session, "x", "vanished")
    assert [each.session for each in totals.unfinished] == [2, 3, 4]
    assert totals.forgotten == 2
    for session in range(5):
        totals.on_finished(session)
    assert not ExactTotals.decode(totals.encode()).is_exact


@pytest.mark.parametrize(
    "value",
    [
        {"c": {"a": "1"}}, {"c": {"a": float("inf")}}, {"c": {7: 1}}, {"c": {"": 1}}, {"c": []},
        {"g": {"a": 1}}, {"g": {"a": [1, None]}}, {"g": {"a": [1.7e308, 1.7e308]}}, {"g": None},
        {"ms": {"a": 1}}, {"h": {"a": [1, float("nan")]}}, {"d": {"a": [1.7e308] * 2}},
        {"s": {"a": "text"}}, {"s": {"a": [1]}}, {"s": "a"},
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_malformed_costs_no_other_entry(value):
    totals, good = ExactTotals(), {"c": {"orders": 5}, "g": {"b": [1, 2]}, "ms": {"t": [1, 2]}}
    message = {"v": 1} | good
    for part, entries in value.items():
        message[part] = good.get(part, {}) | entries if isinstance(entries, dict) else entries
    metrics = totals.apply(A, 0, message)

    is_part = isinstance(next(iter(value.values())), dict)
    expected = good if is_part else {part: good[part] for part in good.keys() - value.keys()}
    assert totals.malformed == 1
    assert not totals.is_exact
    assert totals.counters == expected.get("c", {})
    assert totals.gauges == ({"b": 3} if "g" in expected else {})
    assert totals.statistics == ({"ms t": [2, 3]} if "ms" in expected else {})
    assert len(metrics) == len(expected)


@pytest.mark.parametrize(
    "entry",
    [{"c": {"a": 1.7e308}}, {"g": {"a": [None, 1.7e308]}}, {"h": {"a": [1.7e308]}}],
    ids=repr,
)
def test_a_change_beyond_what_a_float_holds_is_left_out_and_counted(entry):
    totals = ExactTotals()
    for sequence in range(3):
        totals.apply(A, sequence, {"v": 1, **entry, "s": {"users": ["ann"]}})

    assert totals.malformed == 2
    assert [*totals.counters.values(), *totals.gauges.values()] == [1.7e308] * ("h" not in entry)
    assert totals.statistics == ({"h a": [1, 1.7e308]} if "h" in entry else {})


def test_a_flood_of_names_is_cut_and_counted():
    totals = ExactTotals(names_max=10)
    for number in range(30):
        totals.apply(A, number, delta(**{f"n{number}": 1}))

    assert len(totals.counters) == 10
    assert totals.cut == 20
    assert not totals.is_exact


steps = st.lists(
    st.tuples(st.sampled_from([A, B]), st.integers(0, 12), st.integers(-(2**62), 2**62)),
    max_size=40,
)


@given(steps, st.randoms(use_true_random=False))
def test_repeats_and_restarts_change_nothing(messages, rng):
    """Any replay from any point, with a restart from the state in between, counts once."""
    sent = {A: [], B: []}
    for session, key, value in messages:
        sent[session].append(delta(**{f"k{key}": value}))
    expected = {}
    for stream in sent.values():
        for message in stream:
            for key, value in message["c"].items():
                expected[key] = expected.get(key, 0) + value

    totals = ExactTotals()
    for _ in range(4):
        for session, stream in sent.items():
            stop = rng.randrange(len(stream) + 1)
            for sequence in range(stop):
                totals.apply(session, sequence, stream[sequence])
        totals = ExactTotals.decode(totals.encode())
    for session, stream in sent.items():
        for sequence, message in enumerate(stream):
            totals.apply(session, sequence, message)

    assert totals.counters == expected
    assert totals.is_exact


@given(st.sampled_from([*ExactTotals().encode()]), st.text(max_size=60))
def test_any_other_state_is_refused(name, text):
    good = ExactTotals().encode()
    for state in ({}, {**good, name: f"x{text}"}, {n: good[n] for n in good if n != name}):
        with pytest.raises(ValueError, match="no state"):
            ExactTotals.decode(state)


def test_deltas_as_lines_say_the_same():
    deltas = Deltas()
    deltas.add("c", "a|#x:y", 3)
    deltas.add("c", "a|#x:y", -1)
    deltas.add("g", "g", 5)
    deltas.add("g+", "g", -7)
    deltas.add("g+", "h", 2)
    deltas.add("ms", "t", 1.5)
    deltas.add("s", "s", "ann")

    assert deltas.lines() == ["a:2|c|#x:y", "g:0|g", "g:-2|g", "h:+2|g", "t:1.5|ms", "s:ann|s"]
    assert all(isinstance(parse_line(line.encode(), STRICT)[0], Metric)
               for line in deltas.lines())  # fmt: skip


def add_any(deltas, key, number):
    """Add something of any kind, the largest numbers among it."""
    value = (number - 5) * 2**60 + number / 7 * (number % 2)
    kind = ("c", "g", "g+", "ms", "h", "d", "s")[number % 7]
    return deltas.add(kind, key, key * 2 if kind == "s" else value)


added = st.lists(st.tuples(st.text(min_size=1, max_size=60), st.integers(1, 12)), max_size=80)


@given(added, st.integers(1024, 4096))
def test_a_message_has_no_more_bytes_than_it_may(parts, bytes_max):
    deltas, messages = Deltas(bytes_max), []
    for key, number in parts:
        if not add_any(deltas, key, number):
            messages.append(deltas.message())
            deltas = Deltas(bytes_max)
            assert add_any(deltas, key, number)
    messages.append(deltas.message())

    assert all(len(codec.encode(message)) <= bytes_max for message in messages)


def check_value(value):
    check_number("value", value)


REFUSED = [
    *((check_name, name) for name in ("", "a:b", "a|b", "a@b", "a\nb", "a\x00", None, 7)),
    *((check_tags, tags) for tags in ("a", [""], ["a,b"], ["a|b"], ["a\n"], [7])),
    *((check_value, value) for value in (True, "1", None, float("nan"), float("inf"), 2**63)),
]


def name_of(one):
    return getattr(one, "__name__", repr(one))


@pytest.mark.parametrize(("check", "value"), REFUSED, ids=name_of)
def test_a_name_tags_or_a_value_that_cannot_be_sent_is_refused(check, value):
    with pytest.raises(p2pmsg.MessageError, match=f"{check.__name__.removeprefix('check_')} must"):
        check(value)
