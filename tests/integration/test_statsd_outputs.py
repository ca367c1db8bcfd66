"""What the outputs hand out, read by their own readers."""

import io
import pickle
import struct
import threading
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

import p2pmsg
from p2pmsg.statsd import (
    ConsoleOutput,
    GraphiteNames,
    GraphiteOutput,
    PrometheusOutput,
    read_sketch,
)
from tests.integration.statsd_tools import (
    LONG_S,
    LOOPBACK,
    Carbon,
    collecting,
    open_client,
    read_stream,
    until,
)  # fmt: skip

PACKET = (
    b"hits:3|c\nhits:2|c|#zone:b\nhits:1|c|@0.1|#zone:b\ndepth:7|g\ntook:100|ms\ntook:300|ms\n"
    b"size:5|h\nusers:ann|s\nusers:bob|s\nweird name/x:1|c|#a:b c,bare,q:\"\\"
)


def feed(collector, packet=PACKET):
    before = collector.stats().metrics
    with open_client(collector.endpoints[0]) as client:
        client.send(packet)
        until(lambda: collector.stats().metrics == before + packet.count(b"\n") + 1)


def test_the_stream_has_one_message_a_metric_and_flush():
    with collecting(publish=LOOPBACK) as (collector, _):
        feed(collector)
        with p2pmsg.Subscriber(
            collector.publish_endpoint, topics=["metrics"], start="earliest"
        ) as subscriber:
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
        with p2pmsg.Subscriber(
            collector.publish_endpoint, topics=["metrics.*"], start="earliest"
        ) as subscriber:
            collector.flush()
            topics = {subscriber.receive(10).topic for _ in range(2)}
    assert topics == {"metrics.events", "metrics.checks"}


def test_sketches_of_two_collectors_add_up():
    merged, values = None, []
    for first in (0, 500):
        with collecting(publish=LOOPBACK) as (collector, _):
            part = list(range(first, first + 500))
            values += part
            for start in range(0, 500, 50):
                feed(collector, b"\n".join(b"d:%d|d|@0.5" % n for n in part[start : start + 50]))
            with p2pmsg.Subscriber(
                collector.publish_endpoint, topics=["metrics"], start="earliest"
            ) as subscriber:
                collector.flush()
                sketch = read_sketch(read_stream(subscriber, {"d"})["d"]["sketch"])
        if merged is None:
            merged = sketch
        else:
            merged.merge(sketch)
    assert merged.count == 2000
    for share in (0.1, 0.5, 0.99):
        expected = values[int(share * 999)]
        assert abs(merged.get_quantile_value(share) - expected) <= 0.011 * expected + 1


@pytest.mark.parametrize("found", [{}, None, {"bins": 7}, {"relative_error": 0.5, "bins": []}])
def test_what_is_no_sketch_is_refused(found):
    with pytest.raises(p2pmsg.ConfigError, match="sketch must be"):
        read_sketch(found)


def scrape(port, path="/metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.read().decode()


def samples(text):
    return {
        (sample.name, *sorted(sample.labels.items())): (family.type, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_finds_names_and_types_as_of_statsd_exporter():
    prometheus = PrometheusOutput(port=0)
    with collecting(outputs=[prometheus]) as (collector, _):
        for _ in range(2):
            feed(collector)
            collector.flush()
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


def test_several_scrapes_at_once_are_answered():
    prometheus = PrometheusOutput(port=0)
    with collecting(outputs=[prometheus]) as (collector, _):
        feed(collector)
        collector.flush()
        texts = []
        threads = [
            threading.Thread(target=lambda: texts.append(scrape(prometheus.port)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(texts) == 8
    assert all("hits 3.0" in text for text in texts)


def test_a_name_with_two_types_is_left_out_and_counted():
    prometheus = PrometheusOutput(port=0)
    with collecting(outputs=[prometheus]) as (collector, _):
        feed(collector, b"a:1|c\na:2|g")
        collector.flush()
        text = scrape(prometheus.port)
        assert prometheus.conflicts == 1
    assert samples(text)[("a_total",)] == ("counter", 1)


def test_carbon_gets_paths_in_plain_text():
    carbon = Carbon()
    names = GraphiteNames(legacy=False, global_suffix="host")
    output = GraphiteOutput("127.0.0.1", carbon.port, names=names)
    with collecting(outputs=[output]) as (collector, _):
        feed(collector)
        collector.flush()
        until(lambda: b"numStats" in carbon.data)
        paths = carbon.paths()
    carbon.close()
    assert paths["stats.counters.hits.count.host"] == 3
    assert paths["stats.counters.hits.count.host;zone=b"] == 12
    assert paths["stats.timers.took.upper_90.host"] == 300
    assert paths["stats.counters.weird_name-x.count.host;a=b_c;bare=true;q=_"] == 1


def test_carbon_gets_pickles():
    carbon = Carbon()
    output = GraphiteOutput("127.0.0.1", carbon.port, protocol="pickle")
    with collecting(outputs=[output]) as (collector, _):
        feed(collector)
        collector.flush()
        until(lambda: b"numStats" in carbon.data)
        time.sleep(0.2)
        data, found = carbon.data, {}
    carbon.close()
    while data:
        (length,) = struct.unpack_from("!L", data)
        found |= {path: value for path, (_, value) in pickle.loads(data[4 : 4 + length])}
        data = data[4 + length :]
    assert found["stats_counts.hits"] == 3
    assert found["stats.gauges.depth"] == 7


def test_nothing_is_lost_while_carbon_is_away():
    carbon = Carbon()
    output = GraphiteOutput("127.0.0.1", carbon.port)
    with collecting(outputs=[output]) as (collector, _):
        feed(collector, b"first:1|c")
        collector.flush()
        until(lambda: b"stats_counts.first" in carbon.data)
        carbon.close()
        time.sleep(0.1)
        feed(collector, b"second:1|c")
        collector.flush()
        time.sleep(0.3)
        carbon = Carbon(carbon.port)
        until(lambda: b"stats_counts.second" in carbon.data)
    carbon.close()
    assert output.connects >= 2
    assert output.dropped_bytes == 0


def test_what_carbon_does_not_take_is_bounded_and_counted():
    output = GraphiteOutput("127.0.0.1", 9, buffer_bytes=10_000)
    with collecting(outputs=[output]) as (collector, _):
        for number in range(20):
            feed(collector, b"\n".join(b"n%d.%d:1|c" % (number, i) for i in range(50)))
            collector.flush()
    assert output.dropped_bytes > 10_000


def test_the_table_shows_the_busiest_metrics_and_no_control_characters():
    text = io.StringIO()
    with collecting(
        outputs=[ConsoleOutput(text, rows_max=5)], dialect="etsy"
    ) as (collector, _):
        packet = b"\n".join(b"n%d:%d|c" % (number, number) for number in range(1, 50))
        feed(collector, packet)
        collector.flush()
    shown = text.getvalue()
    assert "n49" in shown
    assert "n2 " not in shown
    assert "more" in shown


