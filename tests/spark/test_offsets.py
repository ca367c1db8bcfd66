"""How positions move, where sessions are read, and how relays' sessions move; pure."""

import pytest

import p2pmsg
import spark_bridge
from spark_bridge import offsets
from spark_bridge.offsets import Cut, Range
from spark_bridge.options import parse_options
from spark_bridge.session_directory import SessionDirectory

SILENT = p2pmsg.reader.EndpointHeads()
A, B = "tcp://a:1", "tcp://b:1"
T = parse_options({"peers": A, "subscribe": "t"})


def heads(session, *, name=None, **streams):
    return p2pmsg.reader.Heads(
        publisher=name or f"p{session}",
        session=session,
        recovery_endpoint="tcp://a:2",
        streams={topic: p2pmsg.reader.StreamHead(*head) for topic, head in streams.items()},
    )


def view(session, former=(), **streams):
    return peer(heads(session, **streams), former=former)


def peer(*sessions, former=(), reachable=True, is_relay=False):
    return p2pmsg.reader.EndpointHeads(
        sessions={each.session: each for each in sessions},
        former={each.session: each for each in former},
        reachable=reachable,
        is_relay=is_relay,
    )


@pytest.mark.parametrize(
    ("before", "views", "after"),
    [
        pytest.param({A: {1: {"t": 3}}}, {A: view(1, t=(0, 9))}, {A: {1: {"t": 9}}}, id="on"),
        pytest.param({A: {1: {"t": 9}}}, {A: view(1, t=(0, 3))}, {A: {1: {"t": 9}}}, id="not back"),
        pytest.param({A: {1: {"t": 3}}}, {A: SILENT}, {A: {1: {"t": 3}}}, id="unreachable"),
        pytest.param({A: {1: {"t": 3}}}, {}, {A: {1: {"t": 3}}}, id="not asked any more"),
        pytest.param({}, {A: SILENT}, {}, id="never reachable"),
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
    assert offsets.advance(before, SessionDirectory(views), T) == after


def test_the_first_position():
    views = {A: view(1, t=(4, 9)), B: SILENT}

    both = parse_options({"peers": A, "subscribe": "t,u"})
    directory = SessionDirectory(views)
    assert offsets.first(directory, both, offsets.latest) == {A: {1: {"t": 9, "u": 0}}}
    assert offsets.first(directory, both, offsets.earliest) == {A: {1: {"t": 4, "u": 0}}}


@pytest.mark.parametrize(
    "offset", [{}, {"version": 2, "peers": {}}, {"version": 1}, {"version": 1, "peers": {A: 1}}]
)
def test_a_foreign_checkpoint_is_refused(offset):
    with pytest.raises(spark_bridge.BridgeError, match="checkpoint"):
        offsets.from_json(offset)


@pytest.mark.parametrize("offset", [5, "x", [1], None, {"topic": {"0": 12}}, {"logOffset": 3}])
def test_a_checkpoint_of_another_source_is_reported_as_such(offset):
    def begins(offset):
        return offsets.start_of_batch(7 if offset is None else offset, {"version": 1, "peers": {}})

    def ends(offset):
        return offsets.start_of_batch(None, offset)

    for read in (offsets.from_json, begins, ends):
        with pytest.raises(spark_bridge.BridgeError, match=r"not of format p2pmsg.*Location"):
            read(offset)


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
    packed = offsets.pack(wanted, Cut(tasks_max, rows_min))

    assert [sum(each.count for each in task) for task in packed] == sizes
    pieces = [
        (each.topic, at) for task in packed for each in task for at in range(each.start, each.stop)
    ]
    assert pieces == [(each.topic, at) for each in wanted for at in range(each.start, each.stop)]


def test_what_is_gone_is_left_out_of_the_task_where_it_was():
    streams = Range(A, 1, "t", 0, 1000), Range(B, 2, "t", 0, 1000)
    packed = offsets.pack(list(streams), Cut(4, 50_000, 2))
    assert packed == [[streams[0]], [streams[1]]]

    # Of B what is kept is elsewhere; A is gone.
    kept = Range("tcp://c:1", 2, "t", 300, 1000, "feed")
    assert offsets.without_gone(packed, {streams[1].stream: kept}) == [[], [kept]]

    packed = offsets.pack(list(streams), Cut(4, 50_000, 4))
    left = {streams[0].stream: streams[0], streams[1].stream: kept}
    assert offsets.without_gone(packed, left) == [
        [streams[0].until(500)],
        [Range(A, 1, "t", 500, 1000)],
        [kept.until(500)],
        [Range("tcp://c:1", 2, "t", 500, 1000, "feed")],
    ]


@pytest.mark.parametrize("cut", [None, 4, [], [4], [4, 500, "x"], {"a": 1}])
def test_a_malformed_cut_is_refused(cut):
    with pytest.raises(spark_bridge.BridgeError, match="malformed"):
        offsets.cut_of({"version": 1, "peers": {}, "cut": cut})


def find(views, home=A, session=1, **wanted):
    return SessionDirectory(views).find(home, session, **wanted)


def relay(*sessions, former=()):
    return peer(*sessions, former=former, is_relay=True)


def test_a_topic_that_comes_up_is_read_from_its_beginning():
    selection = parse_options({"peers": A, "subscribePattern": ".*"})
    before = {A: {1: {"t": 5}}}
    now = {A: peer(heads(1, t=(0, 5), new=(3, 7)))}

    after = offsets.advance(before, SessionDirectory(now), selection, watched={1})
    assert after == {A: {1: {"t": 5, "new": 0}}}
    # The pattern has changed, or it came while nobody was looking.
    assert offsets.advance(before, SessionDirectory(now), selection) == {A: {1: {"t": 5, "new": 3}}}


def test_a_session_at_two_endpoints_is_read_once():
    both = {A: view(1, t=(0, 9)), B: view(1, t=(0, 8))}

    first = offsets.first(SessionDirectory(both), T, offsets.earliest)
    assert first == {A: {1: {"t": 0}}}
    assert offsets.advance(first, SessionDirectory(both), T) == {A: {1: {"t": 9}}}
    assert offsets.advance({B: {1: {"t": 2}}}, SessionDirectory(both), T) == {B: {1: {"t": 8}}}


def test_a_publisher_goes_before_the_relay_of_its_session():
    both = {A: relay(heads(1, t=(0, 9))), B: view(1, t=(0, 9))}

    assert offsets.first(SessionDirectory(both), T, offsets.earliest) == {B: {1: {"t": 0}}}


def test_where_a_session_is_found():
    gone = view(2, [heads(1, t=(0, 5))])

    assert find({A: view(1)}).is_sure
    assert not find({A: SILENT}).is_sure
    assert find({A: gone}) is None
    elsewhere = find({A: gone, B: view(1, t=(0, 5))})
    assert (elsewhere.endpoint, elsewhere.is_sure) == (B, True)
    away = peer(heads(1), reachable=False)
    assert find({A: away, B: view(1)}).endpoint == B
    assert find({A: away}).endpoint == A


def test_who_keeps_the_messages_is_asked_for_them():
    views = {A: view(1, t=(50, 90)), B: view(1, t=(10, 90))}

    assert find(views, topic="t", start=60).endpoint == A
    assert find(views, topic="t", start=20).endpoint == B
    assert find(views, topic="t", start=5).endpoint == A


def test_a_session_that_another_endpoint_has_too_goes_on_there():
    views = {A: view(2, [heads(1, t=(0, 5))], t=(0, 3)), B: view(1, t=(0, 8))}

    after = offsets.advance({A: {1: {"t": 5}}}, SessionDirectory(views), T)

    assert after == {A: {1: {"t": 8}, 2: {"t": 0}}}


@pytest.mark.parametrize(
    "away", [SILENT, peer(heads(1, t=(0, 6)), reachable=False)], ids=["new", "known"]
)
def test_a_session_goes_on_at_a_relay_while_its_publisher_is_away(away):
    views = {A: away, B: relay(heads(1, t=(0, 8)))}

    assert offsets.advance({A: {1: {"t": 5}}}, SessionDirectory(views), T) == {A: {1: {"t": 8}}}
    only = SessionDirectory({B: views[B]})
    assert offsets.advance({A: {1: {"t": 5}}}, only, T) == {A: {1: {"t": 8}}}


def test_all_sessions_of_a_relay_have_their_place():
    view = relay(heads(1, t=(4, 9)), heads(2, t=(0, 3)), heads(3, u=(0, 3)))
    directory = SessionDirectory({A: view})

    earliest = offsets.first(directory, T, offsets.earliest)
    assert earliest == {A: {1: {"t": 4}, 2: {"t": 0}, 3: {"t": 0}}}
    latest = {A: {1: {"t": 9}, 2: {"t": 3}, 3: {"t": 0}}}
    assert offsets.first(directory, T, offsets.latest) == latest
    before = {A: {1: {"t": 5}, 2: {"t": 3}, 3: {"t": 0}}}
    assert offsets.advance(before, directory, T) == latest


OLD, NEW = heads(1, name="feed", t=(0, 9)), heads(2, name="feed", t=(4, 6))
OTHER = heads(2, name="other", t=(4, 6))


@pytest.mark.parametrize(
    ("before", "now", "after"),
    [
        pytest.param({1: {"t": 9}}, relay(OLD, NEW), {1: {"t": 9}, 2: {"t": 0}}, id="begun again"),
        pytest.param({1: {"t": 9}}, relay(OLD, OTHER), {1: {"t": 9}, 2: {"t": 4}}, id="another"),
        pytest.param({1: {"t": 9}}, relay(NEW, former=[OLD]), {2: {"t": 0}}, id="forgotten"),
        pytest.param(
            {1: {"t": 7}}, relay(NEW, former=[OLD]), {1: {"t": 9}, 2: {"t": 0}}, id="owed"
        ),
        pytest.param({1: {"t": 9}}, relay(OTHER), {2: {"t": 0}}, id="who was here is unknown"),
        pytest.param({1: {"t": 9}}, relay(), {1: {"t": 9}}, id="a relay that has nobody yet"),
    ],
)
def test_sessions_come_and_go_at_a_relay(before, now, after):
    assert offsets.advance({A: before}, SessionDirectory({A: now}), T) == {A: after}


def test_a_relay_that_joins_is_read_from_what_it_keeps():
    directory = SessionDirectory({A: view(1, t=(0, 9)), B: relay(heads(1, t=(0, 9)), OTHER)})

    assert offsets.advance({A: {1: {"t": 9}}}, directory, T) == {A: {1: {"t": 9}}, B: {2: {"t": 4}}}


def test_what_a_session_owes_that_has_ended_does_not_count_for_the_limit():
    views = {A: view(2, [heads(1, t=(0, 200))], t=(0, 500))}
    directory, before = SessionDirectory(views), {A: {1: {"t": 52}, 2: {"t": 0}}}
    after = offsets.advance(before, directory, T)
    assert after == {A: {1: {"t": 200}, 2: {"t": 500}}}

    limited = offsets.limit(offsets.kept(before, directory), after, 100)
    assert limited == {A: {1: {"t": 200}, 2: {"t": 100}}}
    # Somebody else has it, or may have it yet.
    elsewhere = SessionDirectory({**views, B: relay(heads(1, t=(0, 200)))})
    assert offsets.kept(before, elsewhere) == before
    assert offsets.kept(before, SessionDirectory({A: SILENT})) == before
