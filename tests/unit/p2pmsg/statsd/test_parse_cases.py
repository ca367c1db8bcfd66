"""The real parsers' own cases: each server's dialect agrees, the default differs as listed."""

import math
from dataclasses import replace
from operator import attrgetter

from p2pmsg.statsd.grammar import DIALECTS, Dialect, parse_line
from p2pmsg.statsd.metric import BadLine, Event, Kind, Metric
from p2pmsg.statsd.outputs.prometheus import clean_label
from tests.unit.p2pmsg.statsd.cases import as_bytes, parametrize

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


NAMES = {"statsd_exporter": "exporter"}


@parametrize("parse_cases")
def test_the_dialect_of_a_server_reads_its_cases_as_it_does(case):
    dialect = DIALECTS[NAMES.get(case["dialect"], case["dialect"])]

    assert outcome(case, dialect) is None
