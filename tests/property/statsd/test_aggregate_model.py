"""The aggregation by columns against a loop over lines, and its numbers against `float`."""

import math
import operator
import re
import statistics
import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.columns import PAD_BYTES, CodeKeys, split_columns
from p2pmsg.statsd.grammar import DIALECTS, parse_line
from p2pmsg.statsd.metric import BadLine, Kind, Metric, make_key
from p2pmsg.statsd.snapshot import AggregateConfig, find_bins, read_sketch
from tests.unit.p2pmsg.statsd.test_lines import mutated
from tests.unit.p2pmsg.statsd.test_parts import rows_of

PADDING = bytes(PAD_BYTES)
DECIMAL = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")
numbers = st.one_of(
    st.text("0123456789", min_size=1, max_size=18),
    st.from_regex(r"-?[0-9]{0,9}\.[0-9]{0,9}", fullmatch=True),
    st.text("0123456789.-+eE_ ", max_size=18),
    st.floats(allow_nan=False).map(repr),
)


@given(st.lists(numbers, min_size=1, max_size=40))
def test_a_number_read_by_columns_is_the_float(texts):
    lines = b"".join(b"n:%s|c\n" % text.encode() for text in texts if "\n" not in text)
    columns = split_columns(PADDING + lines + PADDING, CodeKeys(1))

    for text, value, regular in zip(texts, columns.values, columns.regular, strict=True):
        if regular:
            assert DECIMAL.fullmatch(text)
            assert float(text) == value
            assert math.copysign(1, float(text)) == math.copysign(1, value)
        else:  # nothing that is short and plain is left to the parser
            assert not DECIMAL.fullmatch(text) or len(text) > 15


# Around the ends of words and windows, and of what the parser is left.
lengths = st.one_of(
    st.integers(1, 140), st.sampled_from([7, 8, 9, 16, 24, 31, 32, 33, 63, 64, 65, 1024])
)
octets = st.sampled_from(b"\x00a\x80")
parts = st.builds(
    lambda length, fill, place, other: bytes(
        other if at == place % length else fill for at in range(length)
    ),
    lengths, octets, st.integers(0, 1023), octets,
)  # fmt: skip
pairs = st.one_of(
    st.tuples(parts, parts), st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=40))
)


def codes_of(pairs, keys):
    lines = b"".join(b"%s:1|%s\n" % pair for pair in pairs)
    columns = split_columns(PADDING + lines + PADDING, keys)
    assert columns is not None
    assert all(columns.regular == [max(len(name), len(rest) + 1) <= 1024 for name, rest in pairs])
    return columns.codes.tolist()


@given(st.lists(pairs, min_size=1, max_size=60), st.integers(0, 2**64 - 1))
def test_lines_of_any_batches_have_one_code_only_if_name_and_rest_are_the_same(found, seed):
    keys = CodeKeys(seed)
    pairs = [(re.sub(rb"[:|\n]", b"_", name), re.sub(rb"\n", b"_", rest)) for name, rest in found]
    pairs = [(name, rest) for name, rest in pairs if max(len(name), len(rest) + 1) <= 1024]
    if not pairs:
        return
    codes = codes_of(pairs, keys)
    alone = [codes_of([pair], keys)[0] for pair in pairs]

    assert codes == alone
    assert len(set(codes)) == len(set(pairs))


def flip_bits(text, *places):
    """Return `text` with some bits changed: (byte, bit)."""
    changed = bytearray(text)
    for octet, bit in places:
        changed[octet] ^= 1 << bit
    return bytes(changed)


def test_no_names_share_a_code_whatever_the_keys_because_two_words_of_them_differ():
    name = b"service0.ab0cd0." * 3
    words = [flip_bits(name, (at, bit)) for at in range(0, 48) for bit in (0, 5, 6, 7)]
    # What a word's upper bits leave after one factor, and the next word takes back.
    words += [
        flip_bits(name, (at + 7, top), (at + 15, top), (at + low // 8, low % 8))
        for at in range(0, 32)
        for top in (6, 7)
        for low in range(64, 128)
    ]
    names = sorted({re.sub(rb"[:|\n]", b"_", word) for word in [name, *words]})
    for seed in range(8):
        assert len(set(codes_of([(word, b"c") for word in names], CodeKeys(seed)))) == len(names)


@pytest.mark.parametrize("length", [1024, 1025, 60_000])
def test_a_name_or_rest_too_long_for_columns_is_read_by_the_parser(length):
    lines = [b"n" * length + b":2|c", b"m:3|c|#" + b"t" * length, b"a:1|c"]
    columns = split_columns(PADDING + b"\n".join(lines) + b"\n" + PADDING, CodeKeys(1))

    assert columns is not None
    assert columns.regular.tolist() == [length <= 1024, False, True]
    check_against_model([b"\n".join(lines), b"\n".join(lines[::-1])], DIALECTS["strict"])


NAMES = ["a", "b.c", "a-name-that-is-longer-than-two-words", "x;t=1", "é"]
VALUES = ["1", "0", "2.5", "-3", "+4", "1e2", "1:2", "", "x", "12345678.125", "-0.5", " 7", "007"]
KINDS = ["c", "g", "ms", "h", "d", "s", "m", "q", "c\r", ""]
EXTRA = ["", "", "|@0.5", "|@2", "|#a:b,c", "|#c,a:b", "|@0.1|#z", "|T5", "|c:id", "|x:y"]
lines = st.one_of(
    st.builds(
        lambda name, value, kind, extra: f"{name}:{value}|{kind}{extra}".encode(),
        st.sampled_from(NAMES), st.sampled_from(VALUES), st.sampled_from(KINDS),
        st.sampled_from(EXTRA),
    ),
    st.builds(lambda value: f"g:{value}|g".encode(), st.sampled_from(VALUES)),
    st.sampled_from([b"", b":", b"|", b"a", b"::", b"a|b:1|c", b"\xff:1|c", b"_sc|n|0", b"\r"]),
    st.binary(max_size=12),
)  # fmt: skip


class Model:
    """A loop over lines, parsed one by one."""

    def __init__(self, dialect):
        self.dialect = dialect
        self.counters, self.gauges, self.values, self.sets, self.timed = {}, {}, {}, {}, {}
        self.bad = 0

    def feed(self, data):
        for line in data.split(b"\n"):
            for item in parse_line(line, self.dialect):
                if isinstance(item, BadLine):
                    self.bad += 1
                elif isinstance(item, Metric):
                    self.take(item)

    def take(self, metric):
        key = make_key(metric.name, metric.tags)
        if metric.timestamp_s is not None:
            self.timed[metric.kind, key] = True
        elif not all(abs(value) < 1e150 for value in metric.numbers):
            assume(False)  # sums of squares that overflow are another test's business
        elif metric.kind in (Kind.COUNTER, Kind.METER):
            added = sum(metric.values) / metric.rate
            self.counters[key] = self.counters.get(key, 0) + added
        elif metric.kind is Kind.GAUGE:
            for value, relative in zip(metric.values, metric.relative, strict=True):
                self.gauges[key] = self.gauges.get(key, 0) + value if relative else value
        elif metric.kind is Kind.SET:
            self.sets.setdefault(key, set()).add(metric.values[0])
        else:
            values = self.values.setdefault((metric.kind, key), [[], 0])
            values[0] += metric.values
            values[1] += len(metric.values) / metric.rate


@given(
    st.lists(st.lists(lines, max_size=12).map(b"\n".join), max_size=12),
    st.sampled_from(["strict", "etsy", "gostatsd"]),
)
def test_columns_add_up_to_what_a_loop_over_lines_does(packets, name):
    check_against_model(packets, DIALECTS[name])


def check_against_model(packets, dialect):
    aggregator = Aggregator(AggregateConfig(dialect=dialect), interval=1.0)
    model = Model(dialect)
    for packet in packets:
        aggregator.feed(packet)
        model.feed(packet)

    found = [row for rows in aggregator.flush(0.5).rows() for row in rows]
    plain = [row for row in found if row.timestamp_s == 0.5 and not row.key.startswith("statsd.")]
    assert aggregator.counts["bad_lines"] == model.bad
    assert_same({r.key: r.fields["count"] for r in plain if r.kind is Kind.COUNTER}, model.counters)
    assert_same({r.key: r.fields["value"] for r in plain if r.kind is Kind.GAUGE}, model.gauges)
    sizes = {key: len(values) for key, values in model.sets.items()}
    assert_same({r.key: r.fields["count"] for r in plain if r.kind is Kind.SET}, sizes)
    timers = {(r.kind, r.key): r.fields for r in plain if "median" in r.fields}
    assert timers.keys() == model.values.keys()
    for key, (values, weight) in model.values.items():
        fields = timers[key]
        assert fields["upper"] == max(values)
        assert fields["lower"] == min(values)
        assert fields["median"] == statistics.median(values)
        assert math.isclose(fields["sum"], math.fsum(values), abs_tol=1e-9)
        assert math.isclose(fields["count"], weight)


@given(st.lists(mutated(), max_size=20), st.sampled_from(list(DIALECTS)))
def test_mutated_lines_of_real_cases_add_up_alike(lines, name):
    packets = [b"\n".join(lines[:5]), b"\n".join(lines[5:])]
    check_against_model(packets, DIALECTS[name])


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        assert math.isclose(got[key], value, rel_tol=1e-12, abs_tol=1e-9), key


rated = st.tuples(st.integers(0, 1000), st.sampled_from(["", "", "|@0.5", "|@0.1", "|@0.01"]))


@given(st.lists(rated, min_size=1, max_size=60))
def test_a_sketch_has_each_value_with_its_own_rate(found):
    aggregator = Aggregator()
    for value, rate in found:
        aggregator.feed(f"d:{value}|d{rate}\nother:7|d|@0.25".encode())
        aggregator.drain()
    values = [value for value, _ in found]
    weights = [1 / float(rate.removeprefix("|@") or 1) for _, rate in found]
    total = math.fsum(map(operator.mul, values, weights))
    row = rows_of(aggregator)["d"]
    sketch = read_sketch(row.sketch)

    assert math.isclose(sketch.count, math.fsum(weights))
    assert math.isclose(row.fields["count"], math.fsum(weights))
    assert math.isclose(sketch.sum, total)
    assert math.isclose(row.weighted_sum, total)
    for value in set(values):
        share = [weight for each, weight in zip(values, weights, strict=True) if each == value]
        (code,) = find_bins(np.array([float(value)])).tolist()
        bins = dict(row.sketch["bins"])
        assert bins[code] >= math.fsum(share) * (1 - 1e-9)
    # The fields are of the values as they were received, as in statsd.
    assert math.isclose(row.fields["sum"], math.fsum(values))
    assert math.isclose(row.fields["mean"], statistics.mean(values))
    assert math.isclose(row.fields["median"], statistics.median(values))


huge = st.sampled_from(["1.7976931348623157e308", "1e308", "-1e308", "5e-324", "0", "3"])
huge_lines = st.builds(
    lambda name, value, kind, rate: f"{name}:{value}|{kind}{rate}".encode(),
    st.sampled_from(["a", "b"]),
    huge,
    st.sampled_from(["c", "g", "ms", "h", "d"]),
    st.sampled_from(["", "|@0.5", "|@1e-300"]),
)


@given(st.lists(huge_lines, max_size=30))
def test_no_value_that_somebody_sends_is_worth_a_warning_or_an_exception(sent):
    config = AggregateConfig(percentiles=(90.0, -10.0))
    aggregator = Aggregator(config, seed=1)
    metrics = [
        item
        for line in sent
        for item in parse_line(line, config.dialect)
        if isinstance(item, Metric)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for line in sent:
            aggregator.feed(line)
            aggregator.drain()
        for metric in metrics:
            aggregator.take([metric])
        rows = [row for part in aggregator.flush(1.0).rows() for row in part]
        for row in rows:
            if row.sketch is not None:
                read_sketch(row.sketch)
