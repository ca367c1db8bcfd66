"""Lines of StatsD: parsed as other servers' own cases say, and flushed as theirs."""

import math
import re
from dataclasses import replace
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.grammar import (
    DIALECTS,
    LINE_BYTES_MAX,
    STRICT,
    TIMESTAMP_MAX_S,
    Dialect,
    parse_line,
)
from p2pmsg.statsd.metric import BadLine, Event, Kind, Metric, make_key, split_key
from p2pmsg.statsd.outputs.graphite import GraphiteNames
from p2pmsg.statsd.outputs.prometheus import clean_label
from p2pmsg.statsd.snapshot import AggregateConfig, Row
from tests.unit.p2pmsg.statsd.cases import as_bytes, load_cases, parametrize

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


# Where the default dialect differs from other servers, by the reason for it.
STYLES = {"influxdb": "influx"}


def outcome(case, dialect: Dialect):
    """Return None where both agree, else what differs."""
    compare = globals()[f"compare_{case['dialect']}"]
    if case["dialect"] in ("statsd_exporter", "telegraf"):
        return compare(case, dialect)
    return compare(parse_one(case["line"], dialect), case["expect"])


def parse_one(line, dialect):
    items = parse_line(as_bytes(line), dialect)
    assert len(items) <= 1
    return items[0] if items else None


def compare_statsd_exporter(case, dialect):
    styles = frozenset(STYLES.get(style, style) for style in case["tag_styles"])
    item = parse_one(case["line"], replace(dialect, tag_styles=styles))
    unconfirmed = case["upstream_asserts_empty"] and not case.get("actual")
    if unconfirmed:  # upstream's own test does not look at it
        return None
    wanted = [
        (e["type"], e["name"], float(e["value"]), e.get("relative", False), e["labels"])
        for e in (case.get("actual") or case["expect"])["events"]
    ]
    got = exporter_events(item)
    same = len(got) == len(wanted) and all(
        a[:2] == b[:2] and math.isclose(a[2], b[2]) and a[3:] == b[3:]
        for a, b in zip(sorted(got, key=repr), sorted(wanted, key=repr), strict=True)
    )
    return None if same else f"{got} instead of {wanted}"


def exporter_events(item):
    """What statsd_exporter would call it: milliseconds as seconds, repeated by the rate."""
    if not isinstance(item, Metric) or item.kind is Kind.SET:
        return []
    labels = {}
    for tag in item.tags:
        key, colon, value = tag.partition(":")
        if key and colon and value:
            labels[clean_label(key)] = value
    if item.container:
        labels["container_id"] = item.container
    events = []
    for index, value in enumerate(item.values):
        if item.kind is Kind.COUNTER:
            events.append(("counter", item.name, value / item.rate, False, labels))
        elif item.kind is Kind.GAUGE:
            events.append(("gauge", item.name, value, item.relative[index], labels))
        else:
            value = value / 1000 if item.kind is Kind.TIMER else value
            events += [("observer", item.name, value, False, labels)] * int(1 / item.rate)
    return events


def compare_fields(item, wanted):
    """Compare the fields that a case names with those of the item."""
    if not wanted["ok"]:
        return None if isinstance(item, BadLine) else f"taken as {item}"
    if isinstance(item, BadLine) or item is None:
        return f"refused: {item and item.reason}"
    for field, value in wanted.items():
        if field in FIELDS and value is not None:
            got = FIELDS[field](item)
            if got != value:
                return f"{field} is {got!r} instead of {value!r}"
    return None


TYPES = {"c": "COUNTER", "g": "GAUGE", "ms": "TIMER", "h": "TIMER", "d": "TIMER", "s": "SET"}
FIELDS = {
    "name": lambda item: item.name,
    "values": lambda item: list(item.values),
    "set_value": lambda item: item.values[0],
    "type": lambda item: item.kind.value,
    "rate": lambda item: item.rate,
    "tags": lambda item: list(item.tags),
    "timestamp": lambda item: item.timestamp_s,
}
EVENT_FIELDS = (
    "title", "text", "timestamp", "priority", "alert_type", "tags", "aggregation_key",
    "source_type",
)  # fmt: skip
CHECK_FIELDS = ("name", "status", "timestamp", "hostname", "message", "tags")


def compare_dogstatsd(item, wanted):
    difference = compare_fields(item, wanted)
    if difference or not wanted["ok"]:
        return difference
    for part, fields in (("event", EVENT_FIELDS), ("service_check", CHECK_FIELDS)):
        if part in wanted:
            got = {field: FIELDS.get(field, attrgetter(field))(item) for field in fields}
            return None if got == wanted[part] else f"{got} instead of {wanted[part]}"
    return None


def compare_gostatsd(item, wanted):
    if wanted["ok"] and "event" in wanted:
        if not isinstance(item, Event):
            return f"refused: {item}"
        event = wanted["event"]
        got = {
            "title": item.title, "text": item.text, "date": item.timestamp_s,
            "host": item.hostname or None, "agg_key": item.aggregation_key or None,
            "tags": list(item.tags),
            "priority": "PriLow" if item.priority == "low" else None,
            "alert_type": None if item.alert_type == "info" else f"Alert{item.alert_type.title()}",
        }  # fmt: skip
        return None if got == event else f"{got} instead of {event}"
    wanted = dict(wanted)
    kind = wanted.pop("type", None)
    difference = compare_fields(item, wanted)
    if difference is None and kind and TYPES[item.kind.value] != kind:
        return f"type {item.kind} instead of {kind}"
    return difference


def compare_brubeck(item, wanted):
    difference = compare_fields(item, wanted)
    if difference or not wanted["ok"]:
        return difference
    got = (item.values[0], 1 / item.rate, bool(item.relative and item.relative[0]))
    expected = (wanted["value"], wanted["sample_multiplier"], wanted["relative"])
    return None if got == expected else f"{got} instead of {expected}"


def compare_telegraf(case, dialect):
    wanted = case["expect"]
    items = [parse_one(line, dialect) for line in case["lines"]]
    refused = [item.text for item in items if isinstance(item, BadLine)]
    if not wanted["ok"]:
        return None if refused else f"taken as {items}"
    if refused:
        return f"refused: {refused}"
    totals = {}
    for item in items:
        for index, value in enumerate(item.values):
            if item.kind is Kind.COUNTER or item.relative[index]:
                totals[item.name] = totals.get(item.name, 0.0) + value / item.rate
            else:
                totals[item.name] = value
    expected = wanted.get("gauges") or wanted["counters"]
    return None if totals == expected else f"{totals} instead of {expected}"


def compare_vector(item, wanted):
    wanted = dict(wanted)
    tags = wanted.pop("tags", None)
    difference = compare_fields(item, wanted)
    if difference:
        return difference
    pairs = [(key, value if colon else None) for key, colon, value in
             (tag.partition(":") for tag in item.tags)]  # fmt: skip
    if tags is not None and dict(pairs) != tags:
        return f"{pairs} instead of {tags}"
    seconds = item.values[0] / 1000 if item.kind is Kind.TIMER else item.values[0]
    several = {key: [v for k, v in pairs if k == key] for key, _ in pairs}
    checks = {
        "tags_multi": several,
        "counter": item.values[0],
        "gauge_set": item.values[0],
        "gauge_delta": item.values[0],
        "set_value": item.values[0],
        "samples": [[seconds, round(1 / item.rate)]],
    }
    for field, value in wanted.items():
        if field in checks and checks[field] != value:
            return f"{field} is {checks[field]} instead of {value}"
    return None


OTHER_NAMES = {"statsd_exporter": "exporter"}


@parametrize("parse_cases")
def test_the_dialect_of_a_server_reads_its_cases_as_it_does(case):
    dialect = DIALECTS[OTHER_NAMES.get(case["dialect"], case["dialect"])]

    assert outcome(case, dialect) is None


NAMES = {
    "legacyNamespace": "legacy", "globalPrefix": "global_prefix", "globalSuffix": "global_suffix",
}  # fmt: skip
BAD_HERE = ("edge.empty_value_s", "edge.hex_c", "edge.space_in_value", "edge.space_after_value")
"""Values that are no decimal numbers, or none at all."""
_NO_VALUE = re.compile(";([^;=]+)=?(?=;|$)")
"""A tag without a value in a path: statsd sends it, and carbon refuses the path."""


def make_config(config):
    """Turn statsd's own settings into ours."""
    config = dict(config or {})
    graphite = {NAMES[key]: value for key, value in config.pop("graphite", {}).items()}
    dialect = DIALECTS["etsy"]
    if not config.pop("keyNameSanitize", True):
        dialect = replace(dialect, clean_names=False)
    settings = {"dialect": dialect}
    percentiles = config.pop("percentThreshold", 90)
    settings["percentiles"] = tuple(percentiles if isinstance(percentiles, list) else [percentiles])
    settings["delete_idle"] = config.pop("deleteIdleStats", False)
    assert not config, f"unknown settings: {config}"
    return AggregateConfig(**settings), GraphiteNames(**graphite)


def flush_to_dict(aggregator, names):
    snapshot = aggregator.flush(1e9)
    found = {}
    for rows in snapshot.rows():
        for row in rows:
            if "timestamp_lag" not in row.key:  # time-dependent, and left out of the cases
                found.update(names.paths(row))
    found[names.stats_path()] = len(snapshot)
    return found


def run_case(case):
    """Return what differs from what statsd 0.9.0 flushed."""
    if "histogram" in (case.get("config") or {}) or case.get("proto") == "tcp":
        pytest.skip("there are no histograms of statsd here, and no connections")
    config, names = make_config(case.get("config"))
    aggregator = Aggregator(config, interval=case.get("flush_ms", 1000) / 1000)
    expected = case["expect_statsd_0_9_0"]
    if expected.get("crashed"):
        for packet in case["packets"]:
            aggregator.feed(as_bytes(packet))
        aggregator.drain()
        return [] if aggregator.bad_reasons == {"bad_rate": 1} else ["no bad line"]
    aggregator.flush(1e9)  # the cases were recorded after a first flush
    rounds = case.get("rounds") or [case["packets"]]
    differences = []
    for number, wanted in enumerate(expected["flushes"]):
        for packet in rounds[number] if number < len(rounds) else []:
            aggregator.feed(as_bytes(packet))
        got = flush_to_dict(aggregator, names)
        wanted = {_NO_VALUE.sub(r";\1=true", path): value for path, value in wanted.items()}
        for path in sorted(wanted.keys() | got.keys()):
            a, b = got.get(path), wanted.get(path)
            if a is None or b is None or not math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12):
                differences.append(f"flush {number}: {path} is {a}, not {b}")
    if aggregator.counts["bad_lines"] != expected["bad_lines_logged"]:
        differences.append(f"{aggregator.counts['bad_lines']} bad lines")
    return differences


@parametrize("flush_cases")
def test_the_dialect_etsy_flushes_what_statsd_does(case):
    assert bool(run_case(case)) is (case["id"] in BAD_HERE)


@parametrize("client_packets")
def test_what_real_clients_send_is_flushed_as_by_statsd(case):
    assert run_case(case) == []


def row(name, *tags):
    return Row(Kind.GAUGE, make_key(name, tags), {"value": 1.0}, 0.0)


def path_of(name, *tags):
    (path,) = [path for path, _ in GraphiteNames().paths(row(name, *tags))]
    return path


PATHS = {
    ("a", "k:v"): "stats.gauges.a;k=v",
    ("a", "canary"): "stats.gauges.a;canary=true",
    ("a", "k:"): "stats.gauges.a;k=true",
    ("a", ":v", "k:v"): "stats.gauges.a;k=v",
    ("a", "k:é"): "stats.gauges.a;k=_",
    ("a", "é:v"): "stats.gauges.a",
    ("a", "k:~x"): "stats.gauges.a;k=x",
    ("a", "url:http://x"): "stats.gauges.a;url=http--x",
    ("é",): "stats.gauges.",  # as statsd has it; carbon takes it
    ("a;b",): "stats.gauges.a;b=true",
    ("a;b=1;;c=",): "stats.gauges.a;b=1;c=true",
    ("a", "name:x"): "stats.gauges.a",  # carbon puts the path's own name there
    ("a", "k:v", "k:w"): "stats.gauges.a;k=v,w",  # carbon would keep the last one alone
}


@pytest.mark.parametrize("sent", PATHS)
def test_tags_become_what_carbon_takes(sent):
    assert path_of(*sent) == PATHS[sent]


TEXTS = st.text(alphabet="ab.:;=~ é/_#,|!^", max_size=6)


@given(TEXTS, st.lists(TEXTS.filter(lambda tag: tag and "," not in tag), max_size=3))
def test_every_path_is_one_that_carbon_takes(name, tags):
    """As Graphite has it: keys without ;!^= and values without ; and a first ~, none empty."""
    for path, _ in GraphiteNames().paths(row(name, *tags)):
        place, *pairs = path.split(";")
        assert re.fullmatch(r"[a-zA-Z0-9_.=-]+", place)
        for pair in pairs:
            assert re.fullmatch(r"[^;!^=]+=[^;~][^;]*", pair)


def fields_of(lines, percentiles=(90,), **names):
    config = AggregateConfig(dialect=DIALECTS["etsy"], percentiles=percentiles)
    aggregator = Aggregator(config)
    aggregator.feed(lines)
    rows = [row for rows in aggregator.flush(0.0).rows() for row in rows if row.name == "t"]
    paths = dict(GraphiteNames(**names).paths(*rows))
    return {path.removeprefix("stats.timers.t."): value for path, value in paths.items()}


def test_the_fields_of_timers_may_be_chosen_as_in_statsd():
    lines = b"\n".join(b"t:%d|ms" % number for number in range(1, 11))
    chosen = ("count", "count_ps", "upper_percent", "mean_percent")
    found = fields_of(lines, (90, -10, 99.9), timer_metrics=chosen)

    assert set(found) == {
        "count",
        "count_ps",
        "upper_90",
        "mean_90",
        "mean_top10",
        "upper_99_9",
        "mean_99_9",
    }
    assert set(found) < set(fields_of(lines, (90, -10, 99.9)))
