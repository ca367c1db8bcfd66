"""Totals out of deltas, without a socket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import p2pmsg
from p2pmsg import codec
from p2pmsg.metrics.deltas import (
    BYTES_MAX,
    Deltas,
    check_name,
    check_number,
    check_tags,
)
from p2pmsg.statsd import parse_line
from p2pmsg.statsd import totals as totals_module
from p2pmsg.statsd.grammar import STRICT
from p2pmsg.statsd.metric import Metric
from p2pmsg.statsd.totals import ExactTotals, LostDeltas

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


def test_what_is_missing_is_reported_with_its_range_and_only_once():
    totals = ExactTotals()
    totals.apply(A, 0, delta(a=1))
    totals.on_lost(A, 0, 3, "timeout")
    totals.apply(A, 5, delta(a=1))

    assert totals.losses == [LostDeltas(A, 1, 3, "timeout"), LostDeltas(A, 3, 5, "evicted")]
    assert totals.lost == 4
    assert not totals.is_exact


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


def test_what_is_larger_than_is_gathered_goes_alone():
    deltas, large = Deltas(), "x" * (2 * BYTES_MAX)
    deltas.add("c", "a", 1)
    assert not deltas.add("s", "s", large)
    assert deltas.message() == {"v": 1, "c": {"a": 1}}
    deltas = Deltas()
    assert deltas.add("s", "s", large)
    assert not deltas.add("c", "a", 1)


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
