"""What the outputs hand out, read by their own readers."""

import io
import pickle
import struct
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

import p2pmsg
from p2pmsg import metrics
from p2pmsg.statsd import (
    AggregateConfig,
    ConsoleOutput,
    GraphiteNames,
    GraphiteOutput,
    PrometheusOutput,
    read_sketch,
)
from p2pmsg.statsd.outputs import graphite
from tests.endpoints import lasting_endpoint
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.statsd_tools import (
    LONG_S,
    Carbon,
    collecting,
    feed,
    feed_and_flush,
    read_stream,
)

PACKET = (
    b"hits:3|c\nhits:2|c|#zone:b\nhits:1|c|@0.1|#zone:b\ndepth:7|g\ntook:100|ms\ntook:300|ms\n"
    b'size:5|h\nusers:ann|s\nusers:bob|s\nweird name/x:1|c|#a:b c,bare,q:"\\'
)


def reading(collector, topic="metrics"):
    return p2pmsg.Subscriber(collector.publish_endpoint, topics=[topic], start="earliest")


@pytest.fixture
def scraped():
    """A collector, and its output for Prometheus."""
    prometheus = PrometheusOutput(port=0)
    with collecting(outputs=[prometheus]) as (collector, _):
        yield collector, prometheus


def test_the_stream_has_one_message_a_metric_and_flush():
    with collecting(publish=LOOPBACK) as (collector, _):
        feed(collector, PACKET)
        with reading(collector) as subscriber:
            collector.flush()
            found = read_stream(subscriber, {"hits", "hits|#zone:b", "took", "users"})
    assert found["hits"] == {
        "name": "hits", "type": "counter", "tags": {}, "count": 3.0, "rate": 3 / LONG_S,
    }  # fmt: skip
    assert found["hits|#zone:b"]["tags"] == {"zone": "b"}
    assert found["hits|#zone:b"]["count"] == 12
    assert found["took"]["median"] == 200
    assert found["users"]["count"] == 2


def test_events_and_service_checks_have_topics_of_their_own():
    with collecting(publish=LOOPBACK) as (collector, _):
        feed(collector, b"_e{1,1}:t|x\n_sc|svc|2")
        with reading(collector, "metrics.*") as subscriber:
            collector.flush()
            topics = {subscriber.receive(60).topic for _ in range(2)}
    assert topics == {"metrics.events", "metrics.checks"}


def test_sketches_of_two_collectors_add_up():
    sketches, values = [], []
    for first in (0, 500):
        with collecting(publish=LOOPBACK) as (collector, _):
            part = list(range(first, first + 500))
            values += part
            for start in range(0, 500, 50):
                feed(collector, b"\n".join(b"d:%d|d|@0.5" % n for n in part[start : start + 50]))
            with reading(collector) as subscriber:
                collector.flush()
                sketches.append(read_sketch(read_stream(subscriber, {"d"})["d"]["sketch"]))
    merged, other = sketches
    merged.merge(other)
    assert merged.count == 2000
    for share in (0.1, 0.5, 0.99):
        expected = values[int(share * 999)]
        assert abs(merged.get_quantile_value(share) - expected) <= 0.011 * expected + 1


@pytest.mark.parametrize("found", [{}, None, {"bins": 7}, {"relative_error": 0.5, "bins": []}])
def test_what_is_no_sketch_is_refused(found):
    with pytest.raises(p2pmsg.ConfigError, match="sketch must be"):
        read_sketch(found)


def scrape(port, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return answer.read().decode()


def samples(text):
    """Return what Prometheus would take, by name and labels; each stands there once."""
    found = [
        ((sample.name, *sorted(sample.labels.items())), (family.type, sample.value))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len(found) == len(dict(found))
    # The parser puts `_total` to counters, so look at the lines as well.
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
    types = [line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    return dict(found)


def test_prometheus_finds_names_and_types_as_of_statsd_exporter(scraped):
    collector, prometheus = scraped
    for _ in range(2):
        feed_and_flush(collector, PACKET)
    text = scrape(prometheus.port)
    with pytest.raises(urllib.request.HTTPError, match="404"):
        scrape(prometheus.port, "/else")
    found = samples(text)
    assert "# TYPE hits counter\n" in text
    # prometheus-client's parser puts `_total` to the names of counters by itself.
    assert "\nhits 6.0\n" in text
    assert found[("hits_total",)] == ("counter", 6)
    assert found["hits_total", ("zone", "b")][1] == 24
    assert found[("depth",)] == ("gauge", 7)
    assert found[("took_count",)] == ("summary", 4)
    assert found[("took_sum",)][1] == pytest.approx(0.8)
    assert found["took", ("quantile", "0.5")][1] == pytest.approx(0.2)
    assert found["took", ("quantile", "0.9")][1] == pytest.approx(0.3)
    assert found[("size_sum",)][1] == 10
    assert found[("users",)] == ("gauge", 2)
    assert found["weird_name_x_total", ("a", "b c"), ("bare", ""), ("q", '"\\')][1] == 2


def test_a_timer_s_sum_has_the_rates_as_its_count_does(scraped):
    collector, prometheus = scraped
    for _ in range(2):
        feed_and_flush(collector, b"t:100|ms|@0.1\nt:300|ms|@0.5\nt:200|ms\nh:5|h")
    found = samples(scrape(prometheus.port))
    assert found[("t_count",)][1] == 2 * 13
    assert found[("t_sum",)][1] == pytest.approx(2 * 1.8)
    assert (found[("h_count",)][1], found[("h_sum",)][1]) == (2, 10)


SAME_SERIES = {
    "names": (b"a.b:1|c", b"a-b:2|c", "a_b_total", 1),
    "labels": (b"n:1|c|#a.b:x", b"n:2|c|#a-b:x", "n_total", 1),
    "types of one kind": (b"n:1|g", b"n:2|s", "n", 1),
    "a sum": (b"t:100|ms", b"t.sum:5|c", "t_sum", 0.1),
    "a count": (b"t:100|ms", b"t.count:5|g", "t_count", 1),
    "a summary of a sum": (b"t.sum:5|c", b"t:100|ms", "t_sum_total", 5),
    "types": (b"n:1|c", b"n:2|g", "n_total", 1),
}


@pytest.mark.parametrize(
    ("first", "second", "name", "value"), SAME_SERIES.values(), ids=SAME_SERIES
)
def test_of_two_metrics_with_one_series_the_first_is_exposed(
    scraped, caplog, first, second, name, value
):
    caplog.set_level("WARNING", "p2pmsg")
    collector, prometheus = scraped
    feed_and_flush(collector, first)
    for _ in range(3):
        feed_and_flush(collector, second)
    text = scrape(prometheus.port)
    assert prometheus.conflicts == 3
    found = {key: sample for key, sample in samples(text).items() if key[0] == name}
    assert [number for _, number in found.values()] == [pytest.approx(value)]
    (said,) = texts(caplog, "left out")
    assert repr(second.decode().partition(":")[0])[:-1] in said.partition("left out")[0]


COUNTED_BY_BOTH = {
    "lines first": (["1000|c", "+1", "1000|c", "+2"], [1000, 1001, 2001, 2003]),
    "the exact client first": (["+1", "1000|c", "+0", "5|c"], [1, 1001, 1001, 1006]),
    "both in an interval": (
        ["5|c +1", "7|c +-1", "9|c|T9", "-3|c", "+0.5", "+3", "+-1"],
        [6, 12, 21, 21, 21, 21.5, 21.5],
    ),
}


@pytest.mark.parametrize(("changes", "values"), COUNTED_BY_BOTH.values(), ids=COUNTED_BY_BOTH)
def test_counts_of_exact_clients_and_of_lines_add_up(changes, values):
    """A change with a plus in front is one of the exact client."""
    prometheus, found = PrometheusOutput(port=0), []
    with (
        metrics.Client(LOOPBACK) as client,
        collecting(outputs=[prometheus], exact=client.endpoint) as (collector, _),
    ):
        client.wait_for_collectors(1, timeout=60)
        exact = 0
        for change in changes:
            for part in change.split():
                if part.startswith("+"):
                    exact += (number := float(part[1:]))
                    client.increment("orders", number)
                    client.flush()
                    eventually(lambda: collector.totals().counters.get("orders", 0) == exact)  # noqa: B023
                else:
                    feed(collector, b"orders:" + part.encode())
            collector.flush()
            found.append(samples(scrape(prometheus.port))[("orders_total",)][1])
    assert found == values


def delete_idle(names_max=200_000):
    return AggregateConfig(names_max=names_max, delete_idle=True)


def exposed(prometheus):
    """Names of metrics that are exposed, but the collector's own."""
    found = {key[0] for key in samples(scrape(prometheus.port))}
    return {name for name in found if not name.startswith("statsd_")}


def held(prometheus):
    """How many entries the output holds in all its tables."""
    tables = ("_kinds", "_uses", "_values", "_counts", "_quantiles", "_series", "_seen")
    return sum(len(getattr(prometheus, table)) for table in tables)


def test_what_the_collector_has_forgotten_ends_in_prometheus_too():
    prometheus = PrometheusOutput(port=0)
    config = delete_idle()
    with collecting(outputs=[prometheus], config=config, interval=100.0) as (collector, _):
        feed_and_flush(collector, b"stays:1|c")
        feed_and_flush(collector, b"stays:1|c")
        before = held(prometheus)
        feed_and_flush(
            collector, b"stays:1|c\nonce:5|c|#z:a\nonce:2|c|#z:b\nt:100|ms\nu:1|s\ng:3|g"
        )
        assert {"once_total", "t_sum", "u", "g", "stays_total"} <= exposed(prometheus)
        for _ in range(3):
            assert {"t_sum", "g"} <= exposed(prometheus)
            feed_and_flush(collector, b"stays:1|c\nonce:2|c|#z:b")
        found = samples(scrape(prometheus.port))
        assert exposed(prometheus) == {"stays_total", "once_total"}
        assert found["once_total", ("z", "b")][1] == 8
        assert found[("stays_total",)][1] == 6
        for _ in range(5):
            feed_and_flush(collector, b"stays:1|c")
        scrape(prometheus.port)
        assert held(prometheus) == before
        feed_and_flush(collector, b"stays:1|c\nonce:3|c|#z:a\nt:7|c")  # t has another type now
        found = samples(scrape(prometheus.port))
    assert found["once_total", ("z", "a")][1] == 3
    assert found[("t_total",)] == ("counter", 7)
    assert prometheus.conflicts == 0


def test_forgotten_metrics_are_exposed_up_to_a_bound():
    prometheus = PrometheusOutput(port=0)
    config = delete_idle(names_max=100)
    with collecting(outputs=[prometheus], config=config, interval=10.0) as (collector, _):
        for number in range(20):
            lines = (b"job%d_%d:1|c" % (number, each) for each in range(40))
            feed_and_flush(collector, b"\n".join(lines))
        found = exposed(prometheus)
        assert len(found) <= 200
        assert "job19_0_total" in found
        assert "job0_0_total" not in found


def test_labels_that_prometheus_would_take_for_one_or_its_own_are_kept_apart(scraped):
    collector, prometheus = scraped
    feed_and_flush(
        collector, b"n:1|c|#a.b:x,a-b:y\nt:100|ms|#quantile:0.5\nt:300|ms\nm:1|c|#__name__:evil"
    )
    found = samples(scrape(prometheus.port))
    assert prometheus.conflicts == 0
    assert found["n_total", ("a_b", "y,x")] == ("counter", 1)
    assert found["t", ("exported_quantile", "0.5"), ("quantile", "0.5")][1] == pytest.approx(0.1)
    assert found["t", ("quantile", "0.5")][1] == pytest.approx(0.3)
    assert found["t_count", ("exported_quantile", "0.5")][1] == 1
    assert found["m_total", ("exported___name__", "evil")] == ("counter", 1)


def test_carbon_gets_paths_in_plain_text(carbon):
    names = GraphiteNames(legacy=False, global_suffix="host")
    output = GraphiteOutput("127.0.0.1", carbon.port, names=names)
    with collecting(outputs=[output]) as (collector, _):
        feed_and_flush(collector, PACKET)
        eventually(lambda: b"numStats" in carbon.data)
        paths = carbon.paths()
    assert paths["stats.counters.hits.count.host"] == 3
    assert paths["stats.counters.hits.count.host;zone=b"] == 12
    assert paths["stats.timers.took.upper_90.host"] == 300
    assert paths["stats.counters.weird_name-x.count.host;a=b_c;bare=true;q=_"] == 1


def found_in(data):
    """Return what whole pickles have, by path."""
    found = {}
    while len(data) >= 4 and len(data) >= 4 + (length := struct.unpack_from("!L", data)[0]):
        found |= {path: value for path, (_, value) in pickle.loads(data[4 : 4 + length])}
        data = data[4 + length :]
    return found


def test_carbon_gets_pickles(carbon):
    output = GraphiteOutput("127.0.0.1", carbon.port, protocol="pickle")
    with collecting(outputs=[output]) as (collector, _):
        feed_and_flush(collector, PACKET)
        eventually(lambda: "stats.gauges.depth" in found_in(carbon.data))
        found = found_in(carbon.data)
    assert found["stats_counts.hits"] == 3
    assert found["stats.gauges.depth"] == 7


def test_nothing_is_lost_while_carbon_is_away():
    carbon = Carbon(int(lasting_endpoint().rpartition(":")[2]))
    output = GraphiteOutput("127.0.0.1", carbon.port)
    with collecting(outputs=[output]) as (collector, _):
        feed_and_flush(collector, b"first:1|c")
        eventually(lambda: b"stats_counts.first" in carbon.data)
        carbon.close()
        feed_and_flush(collector, b"second:1|c")
        time.sleep(0.3)
        carbon = Carbon(carbon.port)
        eventually(lambda: b"stats_counts.second" in carbon.data)
    carbon.close()
    assert output.dropped_bytes == 0


@pytest.mark.internal
def test_what_carbon_does_not_take_is_bounded_and_counted(monkeypatch):
    monkeypatch.setattr(graphite, "BUFFER_BYTES", 10_000)
    output = GraphiteOutput("127.0.0.1", 9)
    with collecting(outputs=[output]) as (collector, _):
        for number in range(20):
            feed_and_flush(collector, b"\n".join(b"n%d.%d:1|c" % (number, i) for i in range(50)))
    assert output.dropped_bytes > 10_000


def texts(caplog, part):
    return [text for each in caplog.records if part in (text := each.getMessage())]


@pytest.mark.internal
def test_a_carbon_that_is_away_is_named_once_and_when_it_works_again(caplog, monkeypatch):
    monkeypatch.setattr(graphite, "BUFFER_BYTES", 5_000)
    place = int(lasting_endpoint().rpartition(":")[2])
    output = GraphiteOutput("127.0.0.1", place)
    with collecting(outputs=[output]) as (collector, _):
        for number in range(5):
            feed_and_flush(collector, b"\n".join(b"n%d.%d:1|c" % (number, i) for i in range(50)))
        eventually(lambda: output.failures >= 2)
        (said,) = texts(caplog, "statsd: carbon at 127.0.0.1:")
        assert "Connection refused" in said
        assert output.dropped_bytes
        assert collector.stats().output_failures["graphite"] >= 2
        carbon = Carbon(place)
        eventually(lambda: texts(caplog, "works again"))
        carbon.close()


def test_the_table_shows_the_busiest_metrics_and_no_control_characters():
    text = io.StringIO()
    with collecting(outputs=[ConsoleOutput(text, rows_max=5)], dialect="etsy") as (collector, _):
        packet = b"\n".join(b"n%d:%d|c" % (number, number) for number in range(1, 50))
        feed_and_flush(collector, packet)
    shown = text.getvalue()
    assert "n49" in shown
    assert "n2 " not in shown
    assert "more" in shown
