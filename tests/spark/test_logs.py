"""Batches over directories of logs."""

import json

import pytest

pytest.importorskip("pyarrow")

import p2pmsg
from spark_bridge.errors import DataLossError, OptionError
from spark_bridge.logs import log_ranges, read_logs
from spark_bridge.options import parse_options
from tests.spark.streams import sealed


def publish(directory, count, topics=("t",)):
    log = p2pmsg.LogConfig(directory)
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed", log=log) as publisher:
        for topic in topics:
            for number in range(count):
                publisher.publish(topic, {"n": number}, timestamp_ns=number * 1_000_000_000)
            sealed(publisher, topic, count)
        return publisher.session


def offsets_of(directory, **options):
    parsed = parse_options({"path": str(directory), "subscribe": "t", **options})
    ranges = log_ranges(parsed)[0]
    return [message.sequence for batch in read_logs(ranges, parsed, None) for message in batch]


def test_ranges_of_a_log(tmp_path):
    session = publish(tmp_path, 100, ("t", "u"))

    assert offsets_of(tmp_path) == list(range(100))
    assert offsets_of(tmp_path, startingOffsets='{"t": 90}') == list(range(90, 100))
    by_session = json.dumps({"t": {f"{session:016x}": 7}})
    assert offsets_of(tmp_path, endingOffsets=by_session) == list(range(7))
    times = {"startingTimestamp": "10000", "endingTimestamp": "19500"}
    assert offsets_of(tmp_path, **times) == list(range(10, 20))


def test_what_a_log_has_not_got_is_named(tmp_path):
    publish(tmp_path, 10)
    parsed = parse_options({"path": str(tmp_path), "subscribe": "t"})
    (wanted,) = log_ranges(parsed)[0]
    from dataclasses import replace

    beyond = [replace(wanted, stop=15)]
    with pytest.raises(DataLossError, match=r"5 messages \[10, 15\) of topic 't'"):
        list(read_logs(beyond, parsed, None))


def test_a_directory_without_a_log_is_refused(tmp_path):
    with pytest.raises(OptionError, match="path"):
        log_ranges(parse_options({"path": str(tmp_path), "subscribe": "t"}))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_batch_over_a_log(spark, tmp_path):
    publish(tmp_path, 1000)
    reader = spark.read.format("p2pmsg").option("path", str(tmp_path)).option("subscribe", "t")
    frame = reader.option("minPartitions", "3").schema("n long, _offset long").load()

    assert frame.rdd.getNumPartitions() == 3
    row = frame.selectExpr("count(*) c", "sum(n) s", "sum(_offset) o").first()
    assert (row.c, row.s, row.o) == (1000, 499_500, 499_500)
    assert frame.where("n < 10").count() == 10
    assert frame.count() == 1000
