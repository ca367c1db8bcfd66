"""Options by name, and what they choose; pure."""

import pytest

from spark_bridge import offsets
from spark_bridge.errors import OptionError
from spark_bridge.options import check_use, is_sink, parse_options, parse_sink_options
from spark_bridge.selection import start_of, topics_of
from spark_bridge.session_directory import SessionDirectory
from tests.spark.test_offsets import A, B, heads, view

GOOD = {"peers": A, "subscribe": "t"}


@pytest.mark.parametrize(
    ("given", "option", "reason"),
    [
        ({"subscribe": "t"}, "peers", "is required to read"),
        ({**GOOD, "subscribePattern": "t"}, "subscribePattern", "together with 'subscribe'"),
        ({"peers": A, "subscribe": "t*"}, "subscribe", "takes whole topics"),
        ({"peers": A, "subscribePattern": "("}, "subscribePattern", "regular expression"),
        ({"peers": A, "assign": '{"t": [1]}'}, "assign", "list of publishers for 't'"),
        ({"peers": "file:/nowhere/peers", "subscribe": "t"}, "peers", "cannot be read"),
        ({**GOOD, "path": "/tmp"}, "path", "together with 'peers'"),
        ({"path": "/nowhere/log", "subscribe": "t"}, "path", "no directory"),
        ({**GOOD, "startingOffsets": "first"}, "startingOffsets", "latest, earliest or JSON"),
        ({**GOOD, "startingOffsets": '{"u": 5}'}, "startingOffsets", "topic 'u'; 'subscribe' is t"),
        ({**GOOD, "endingOffsets": '{"t": -2}'}, "endingOffsets", "cannot be -2"),
        ({**GOOD, "startingTimestamp": "2024-08-08T00:00:00"}, "startingTimestamp", "time zone"),
        (
            {**GOOD, "startingTimestamp": "2000", "endingTimestamp": "1000"},
            "endingTimestamp", "'1000', before startingTimestamp '2000'",
        ),
        (
            {**GOOD, "startingOffsets": '{"t": 7}', "endingOffsets": '{"t": {"p": 4}}'},
            "endingOffsets", "4 for topic 't', 'p'; startingOffsets has 7",
        ),
        ({**GOOD, "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger", "from 1"),
        ({**GOOD, "includeHeaders": "yes"}, "includeHeaders", "true or false"),
        ({**GOOD, "valueformats": "json"}, "valueformats", "is unknown"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_by_name(given, option, reason):
    with pytest.raises(OptionError, match=reason) as refusal:
        parse_options(given)

    assert refusal.value.option == option


@pytest.mark.parametrize(
    ("given", "streaming", "option"),
    [
        ({"endingOffsets": "latest"}, True, "endingOffsets"),
        ({"endingTimestamp": "1"}, True, "endingTimestamp"),
        ({"path": "/tmp"}, True, "path"),
        ({"maxOffsetsPerTrigger": "1"}, False, "maxOffsetsPerTrigger"),
        ({"startingOffsets": "Latest"}, False, "startingOffsets"),
    ],
)
def test_options_of_the_other_kind_of_read_are_refused(given, streaming, option):
    with pytest.raises(OptionError) as refusal:
        check_use(given, streaming=streaming)

    assert refusal.value.option == option


def test_options_have_their_values():
    options = parse_options(
        {"PEERS": f"{A}, {B}", "Assign": '{"t": ["p1"]}', "startingoffsets": '{"t": {"*": -2}}',
         "startingTimestamp": "1723161600123", "endingTimestamp": "2024-08-09T00:00:00.123+00:00",
         "minPartitions": "8", "valueFormat": "JSON"}
    )  # fmt: skip

    assert options.peers == (A, B)
    assert options.assign == {"t": ("p1",)}
    assert options.startingOffsets == {"t": {"*": -2}}
    assert options.startingTimestamp == options.endingTimestamp == 1_723_161_600_123_000_000
    assert options.minPartitions == 8
    assert options.valueFormat == "json"


def test_a_file_of_peers(tmp_path):
    path = tmp_path / "peers"
    path.write_text(f"# all of them\n{A}\n\n{B}  # the second\n{A}\n")

    assert parse_options({"peers": f"file:{path}", "subscribe": "t"}).endpoints() == (A, B)
    path.write_text("nothing")
    with pytest.raises(OptionError, match="'nothing'"):
        parse_options({"peers": f"file:{path}", "subscribe": "t"})


@pytest.mark.parametrize(
    ("given", "option", "reason"),
    [
        ({}, "endpoint", "is required"),
        ({"endpoint": "tcp://h:9-8"}, "endpoint", "range of at most"),
        ({"endpoint": "here"}, "endpoint", "must be tcp"),
        ({"endpoint": "tcp://h:1", "topic": "t*"}, "topic", "no \\*"),
        ({"endpoint": "tcp://h:1", "minSubscribers": "-1"}, "minSubscribers", "from 0"),
        ({"endpoint": "tcp://h:1", "writeId": "w"}, "writeBatch", "is required with 'writeId'"),
        ({"endpoint": "tcp://h:1", "writeBatch": "1"}, "writeId", "is required with 'writeBatch'"),
        ({"endpoint": "tcp://h:1", "writeBatch": "1", "writeId": ""}, "writeId", "not be empty"),
        ({"endpoint": "tcp://h:1", "peers": "x"}, "peers", "unknown to the sink"),
    ],
)
def test_bad_options_of_the_sink_are_refused_by_name(given, option, reason):
    with pytest.raises(OptionError, match=reason) as refusal:
        parse_sink_options(given)

    assert refusal.value.option == option


def test_the_endpoints_of_a_sink():
    options = parse_sink_options({"Endpoint": "tcp://0.0.0.0:70-72, ipc:///tmp/x"})

    assert options.endpoint == (
        "tcp://0.0.0.0:70", "tcp://0.0.0.0:71", "tcp://0.0.0.0:72", "ipc:///tmp/x"
    )  # fmt: skip
    assert is_sink({"ENDPOINT": "x"})
    assert not is_sink(GOOD)


@pytest.mark.parametrize(
    ("given", "topics"),
    [
        ({"subscribe": "t,later"}, ["t", "later"]),
        ({"subscribePattern": "t|u.*"}, ["t", "ux"]),
        ({"assign": '{"t": ["p1"], "ux": ["other"]}'}, ["t"]),
        ({"assign": f'{{"t": ["{A}"]}}'}, ["t"]),
        ({"assign": f'{{"t": ["{1:016x}"]}}'}, ["t"]),
    ],
)
def test_which_topics_are_read(given, topics):
    options = parse_options({"peers": A, **given})

    assert list(topics_of(options, A, heads(1, t=(0, 1), ux=(0, 1), tt=(0, 1)))) == topics


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        (None, 9),
        ("earliest", 4),
        ('{"t": 6}', 6),
        ('{"t": {"*": 6, "p1": 7}}', 7),
        ('{"t": {"p1": -2}}', 4),
        ('{"t": {"p1": -1}}', 9),
        ('{"t": {"p2": 5}}', 9),
    ],
)
def test_where_a_stream_starts(starting, expected):
    options = parse_options(GOOD if starting is None else {**GOOD, "startingOffsets": starting})
    start = start_of(options, "latest", None)
    first = offsets.first(SessionDirectory({A: view(1, t=(4, 9))}), options, start)

    assert first == {A: {1: {"t": expected}}}


@pytest.mark.parametrize(
    ("counts", "rows_max", "taken"),
    [
        ([5, 5], 10, [5, 5]),
        ([100, 0, 1], 10, [9, 0, 1]),
        ([100, 100], 11, [5, 5]),
        ([1000, 10], 101, [100, 1]),
        ([3, 3, 3], 1, [1, 0, 0]),
    ],
)
def test_a_limit_is_kept_and_nobody_starves(counts, rows_max, taken):
    before = {A: {1: {f"t{at}": 7 for at in range(len(counts))}}}
    after = {A: {1: {f"t{at}": 7 + count for at, count in enumerate(counts)}}}

    found = [stop - 7 for stop in offsets.limit(before, after, rows_max)[A][1].values()]

    assert sorted(found) == sorted(taken)


def test_a_limit_below_the_number_of_streams_serves_all_in_turn():
    position = {A: {1: {f"t{at}": 0 for at in range(20)}}}
    end = {A: {1: {f"t{at}": 3 for at in range(20)}}}
    for _ in range(20):
        position = offsets.limit(position, end, 5)

    assert position == end
    assert offsets.limit({}, end, 1) == end  # what is pinned only is no message
