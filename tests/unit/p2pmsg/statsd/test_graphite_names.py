"""Paths that carbon takes, whatever was sent; fields of timers as statsd chooses them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.grammar import DIALECTS
from p2pmsg.statsd.metric import Kind, make_key
from p2pmsg.statsd.outputs.graphite import GraphiteNames
from p2pmsg.statsd.snapshot import AggregateConfig, Row


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
