"""What statsd 0.9.0 flushed for the same packets, in the dialect etsy."""

import math
import re
from dataclasses import replace

import pytest

from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.grammar import DIALECTS
from p2pmsg.statsd.outputs.graphite import GraphiteNames
from p2pmsg.statsd.snapshot import AggregateConfig
from tests.unit.p2pmsg.statsd.cases import as_bytes, parametrize

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
