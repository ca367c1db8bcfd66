"""How positions move; pure, without Spark."""

import json

import pytest

import p2pmsg
import spark_bridge
from spark_bridge import offsets
from spark_bridge.offsets import Range
from spark_bridge.selection import Selection
from spark_bridge.session_directory import PeerView, SessionDirectory

A, B = "tcp://a:1", "tcp://b:1"


def heads(session, **streams):
    return p2pmsg.Heads(
        publisher=f"p{session}",
        session=session,
        recovery_endpoint="tcp://a:2",
        streams={topic: p2pmsg.StreamHead(*head) for topic, head in streams.items()},
    )


def view(session, former=(), **streams):
    return PeerView({session: heads(session, **streams)}, tuple(former))


@pytest.mark.parametrize(
    ("before", "views", "after"),
    [
        pytest.param({A: {1: {"t": 3}}}, {A: view(1, t=(0, 9))}, {A: {1: {"t": 9}}}, id="on"),
        pytest.param({A: {1: {"t": 9}}}, {A: view(1, t=(0, 3))}, {A: {1: {"t": 9}}}, id="not back"),
        pytest.param({A: {1: {"t": 3}}}, {A: PeerView()}, {A: {1: {"t": 3}}}, id="unreachable"),
        pytest.param({A: {1: {"t": 3}}}, {}, {A: {1: {"t": 3}}}, id="not asked any more"),
        pytest.param({}, {A: PeerView()}, {}, id="never reachable"),
        pytest.param({}, {A: view(1, t=(4, 9))}, {A: {1: {"t": 4}}}, id="joins at earliest"),
        pytest.param({}, {A: view(1, u=(4, 9))}, {A: {1: {"t": 0}}}, id="without the topic yet"),
        pytest.param({A: {1: {}}}, {A: view(1, t=(4, 9))}, {A: {1: {"t": 4}}}, id="new topic"),
        pytest.param(
            {A: {1: {"t": 3}}}, {A: view(2, t=(4, 9))}, {A: {2: {"t": 0}}}, id="restarted"
        ),
        pytest.param(
            {A: {1: {"t": 3}}},
            {A: view(2, [heads(1, t=(0, 5))], t=(4, 9))},
            {A: {1: {"t": 5}, 2: {"t": 0}}},
            id="restarted, owing",
        ),
        pytest.param(
            {A: {1: {"t": 5}, 2: {"t": 0}}},
            {A: view(2, [heads(1, t=(0, 5))], t=(4, 9))},
            {A: {2: {"t": 9}}},
            id="restarted, nothing owed any more",
        ),
    ],
)  # fmt: skip
def test_positions_move(before, views, after):
    assert offsets.advance(before, SessionDirectory(views), Selection(("t",))) == after


def test_the_first_position():
    views = {A: view(1, t=(4, 9)), B: PeerView()}

    both = Selection(("t", "u"))
    directory = SessionDirectory(views)
    assert offsets.first(directory, both, offsets.latest) == {A: {1: {"t": 9, "u": 0}}}
    assert offsets.first(directory, both, offsets.earliest) == {A: {1: {"t": 4, "u": 0}}}


def test_json_is_sorted_and_comes_back():
    positions = {B: {2**64 - 1: {"u": 1, "t": 2}, 1: {}}, A: {7: {"t": 2**62}}}
    text = json.dumps(offsets.to_json(positions))

    assert text == json.dumps(offsets.to_json(positions), sort_keys=True)
    assert offsets.from_json(json.loads(text)) == positions


@pytest.mark.parametrize(
    "offset", [{}, {"version": 2, "peers": {}}, {"version": 1}, {"version": 1, "peers": {A: 1}}]
)
def test_a_foreign_checkpoint_is_refused(offset):
    with pytest.raises(spark_bridge.BridgeError, match="checkpoint"):
        offsets.from_json(offset)


@pytest.mark.parametrize("offset", [5, "x", [1], None, {"topic": {"0": 12}}, {"logOffset": 3}])
def test_a_checkpoint_of_another_source_is_told_as_such(offset):
    def begins(offset):
        return offsets.start_of_batch(7 if offset is None else offset, {"version": 1, "peers": {}})

    def ends(offset):
        return offsets.start_of_batch(None, offset)

    for read in (offsets.from_json, begins, ends):
        with pytest.raises(spark_bridge.BridgeError, match=r"not of format p2pmsg.*Location"):
            read(offset)


def test_ranges_between_two_positions():
    start = {A: {1: {"t": 3, "u": 5}}, B: {1: {"t": 9}}}
    end = {A: {1: {"t": 7, "u": 5, "v": 4}, 2: {"t": 0}}, B: {1: {"t": 2}}}

    assert offsets.ranges(start, end) == [Range(A, 1, "t", 3, 7)]
    assert offsets.ranges({}, end) == []


@pytest.mark.parametrize(
    ("counts", "tasks_max", "rows_min", "sizes"),
    [
        ([10], 4, 100, [10]),
        ([1000], 4, 100, [250, 250, 250, 250]),
        ([1] * 40, 4, 100, [40]),
        ([199], 4, 100, [199]),
        ([90, 110, 301], 3, 100, [167, 167, 167]),
        ([], 4, 100, []),
    ],
)
def test_ranges_are_packed_into_few_tasks_of_like_size(counts, tasks_max, rows_min, sizes):
    wanted = [Range(A, 1, f"t{at:03}", 5, 5 + count) for at, count in enumerate(counts)]
    packed = offsets.pack(wanted, tasks_max, rows_min)

    assert [sum(each.count for each in task) for task in packed] == sizes
    pieces = [
        (each.topic, at) for task in packed for each in task for at in range(each.start, each.stop)
    ]
    assert pieces == [(each.topic, at) for each in wanted for at in range(each.start, each.stop)]
