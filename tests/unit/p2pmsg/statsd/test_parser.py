"""The default dialect, line by line; Python's own traps; what nobody should be able to do."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.statsd.grammar import DIALECTS, LINE_BYTES_MAX, STRICT, TIMESTAMP_MAX_S, parse_line
from p2pmsg.statsd.metric import (
    BadLine,
    Kind,
    Metric,
    make_key,
    split_key,
)
from tests.unit.p2pmsg.statsd.cases import load_cases

C, G, MS, S = Kind.COUNTER, Kind.GAUGE, Kind.TIMER, Kind.SET


BAD = {
    b"a": "no_value",
    b"a:": "no_value",
    b"a:|c": "no_value",
    b"a:1": "no_type",
    b"a:1|": "no_type",
    b":1|c": "empty_name",
    b"a\x01:1|c": "bad_name",
    b"\xff:1|c": "not_utf8",
    b"a:x|c": "bad_number",
    b"a:1_000|c": "bad_number",
    b"a:nan|g": "bad_number",
    b"a:inf|g": "bad_number",
    b"a:Infinity|c": "bad_number",
    b"a: 1|c": "bad_number",
    b"a:0x10|c": "bad_number",
    b"a:1e999|c": "not_finite",
    b"a:" + b"9" * 5000 + b"|c": "not_finite",
    "a:٣|c".encode(): "bad_number",
    b"a:1|x": "unknown_type",
    b"a:1|c|@0": "bad_rate",
    b"a:1|c|@2": "bad_rate",
    b"a:1|c|@-1": "bad_rate",
    b"a:1|c|@nan": "bad_rate",
    b"a:1|c|@1e-320": "bad_rate",
    b"a:1|c|@0.5|@0.5": "repeated_section",
    b"a:1|c|x:y": "unknown_section",
    b"a:1|c|cx": "unknown_section",
    b"a:1|c|": "unknown_section",
    b"a:1|c|c:a|c:b": "repeated_section",
    b"a:1|c|card:low|card:high": "repeated_section",
    b"a:1|c|e:a|c:b|e:c": "repeated_section",
    b"a:1|c|#a|#b": "repeated_section",
    b"a:1|c|c:": "bad_container",
    b"a:1|ms|T12": "bad_timestamp",
    b"a:1|c|T-12": "bad_timestamp",
    b"a:1|c|T16565810400": "bad_timestamp",
    b"a:1|c|T%d" % (TIMESTAMP_MAX_S + 1): "bad_timestamp",
    b"a:1::2|c": "no_value",
    b"_e{9,9}:a|b": "bad_event",
    b"_e{1,1}:a|bc": "bad_event",
    b"_sc|a|7": "bad_service_check",
    b"a" * (LINE_BYTES_MAX + 1): "too_long",
}


@pytest.mark.parametrize(("line", "reason"), BAD.items(), ids=lambda value: repr(value)[:40])
def test_a_bad_line_is_bad_because_of(line, reason):
    (item,) = parse_line(line, STRICT)

    assert isinstance(item, BadLine)
    assert item.reason == reason


def test_a_comma_in_a_tag_of_graphites_style_makes_no_second_tag():
    """Only there may a value have one; a key of name and tags sets them apart by commas."""
    (item,) = parse_line(b"n;a=x,y;b=z:1|c", replace(STRICT, tag_styles=frozenset({"graphite"})))
    assert item.tags == ("a:x_y", "b:z")
    assert split_key(make_key(item.name, item.tags)) == ("n", item.tags)


SECTIONS = ["@0.5", "#a:b", "c:id", "T5", "e:it-false", "card:low"]


@given(st.permutations(SECTIONS), st.integers(0, len(SECTIONS)))
def test_sections_may_come_in_any_order_and_each_is_read(sections, count):
    chosen = sections[:count]
    (item,) = parse_line("|".join(["a:1|c", *chosen]).encode(), STRICT)
    assert isinstance(item, Metric)
    assert (item.rate == 0.5) is ("@0.5" in chosen)
    assert (item.tags == ("a:b",)) is ("#a:b" in chosen)
    assert (item.container == "id") is ("c:id" in chosen)
    assert (item.timestamp_s == 5) is ("T5" in chosen)


SEEDS = [
    line.encode("latin-1")
    for case in load_cases()["parse_cases"]
    for line in case.get("lines", [case.get("line")])
]

INSERTS = [b":", b"|", b"#", b"@", b"T1", b"\xff", b"-", b"_"]


@st.composite
def mutated(draw):
    line = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(line)))
        how = draw(st.integers(0, 2))
        if how == 0:
            line[at:at] = draw(st.sampled_from(INSERTS))
        elif how == 1:
            del line[at : at + draw(st.integers(1, 3))]
        elif line:
            line[at % len(line)] = draw(st.integers(0, 255))
    return bytes(line)


@given(st.one_of(st.binary(max_size=80), mutated()), st.sampled_from(list(DIALECTS.values())))
def test_nothing_makes_it_raise_and_every_number_is_finite(line, dialect):
    for item in parse_line(line, dialect):
        if isinstance(item, BadLine):
            assert item.reason in {
                *BAD.values(),
                "negative_timer",
                "bad_tags",
                "mixed_tag_styles",
                "packed_values",
            }
        elif isinstance(item, Metric):
            assert item.rate > 0
            if item.kind is not S:
                assert all(value - value == 0 for value in item.values)
