"""Which sessions there are, where each is read, and how relays' sessions move; pure."""

import pytest

import p2pmsg
from spark_bridge import offsets
from spark_bridge.options import parse_options
from spark_bridge.selection import Selection
from spark_bridge.session_directory import PeerView, SessionDirectory
from tests.spark.test_offsets import A, B, heads, view

T = Selection(("t",))


def find(views, home=A, session=1, **wanted):
    return SessionDirectory(views).find(home, session, **wanted)


def named(name, session, **streams):
    found = heads(session, **streams)
    return p2pmsg.Heads(
        publisher=name,
        session=session,
        recovery_endpoint=found.recovery_endpoint,
        streams=found.streams,
    )


def relay(*sessions, former=()):
    return PeerView({each.session: each for each in sessions}, tuple(former), is_relay=True)


def test_a_topic_that_comes_up_is_read_from_its_beginning():
    selection = Selection.of(parse_options({"peers": A, "subscribePattern": ".*"}))
    before = {A: {1: {"t": 5}}}
    now = {1: heads(1, t=(0, 5), new=(3, 7), old=(3, 7))}

    places = SessionDirectory({A: PeerView(now, born={1: frozenset({"new"})})})
    after = offsets.advance(before, places, selection)

    assert after == {A: {1: {"t": 5, "new": 0, "old": 3}}}


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
    assert not find({A: PeerView()}).is_sure
    assert find({A: gone}) is None
    elsewhere = find({A: gone, B: view(1, t=(0, 5))})
    assert (elsewhere.endpoint, elsewhere.is_sure) == (B, True)
    away = PeerView({1: heads(1)}, reachable=False)
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
    "away", [PeerView(), PeerView({1: heads(1, t=(0, 6))}, reachable=False)], ids=["new", "known"]
)
def test_a_session_goes_on_at_a_relay_while_its_publisher_is_away(away):
    views = {A: away, B: relay(heads(1, t=(0, 8)))}

    assert offsets.advance({A: {1: {"t": 5}}}, SessionDirectory(views), T) == {A: {1: {"t": 8}}}
    only = SessionDirectory({B: views[B]})
    assert offsets.advance({A: {1: {"t": 5}}}, only, T) == {A: {1: {"t": 8}}}


def test_all_sessions_of_a_relay_have_their_place():
    view = relay(heads(1, t=(4, 9)), heads(2, t=(0, 3)), heads(3, u=(0, 3)))
    places = SessionDirectory({A: view})

    earliest = offsets.first(places, T, offsets.earliest)
    assert earliest == {A: {1: {"t": 4}, 2: {"t": 0}, 3: {"t": 0}}}
    assert offsets.first(places, T, offsets.latest) == {A: {1: {"t": 9}, 2: {"t": 3}, 3: {"t": 0}}}
    before = {A: {1: {"t": 5}, 2: {"t": 3}, 3: {"t": 0}}}
    assert offsets.advance(before, places, T) == {A: {1: {"t": 9}, 2: {"t": 3}, 3: {"t": 0}}}


OLD, NEW = named("feed", 1, t=(0, 9)), named("feed", 2, t=(4, 6))
OTHER = named("other", 2, t=(4, 6))


@pytest.mark.parametrize(
    ("before", "now", "after"),
    [
        pytest.param({1: {"t": 9}}, relay(OLD, NEW), {1: {"t": 9}, 2: {"t": 0}}, id="begun anew"),
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
    places = SessionDirectory({A: view(1, t=(0, 9)), B: relay(heads(1, t=(0, 9)), OTHER)})

    assert offsets.advance({A: {1: {"t": 9}}}, places, T) == {A: {1: {"t": 9}}, B: {2: {"t": 4}}}


def test_positions_of_what_is_kept():
    positions = {A: {1: {"t": 3, "u": 3, "v": 3}, 2: {"t": 3}}, B: {9: {"t": 3}}}
    views = {A: view(1, t=(5, 9), u=(2, 9)), B: PeerView()}

    assert offsets.kept(positions, SessionDirectory(views)) == {
        A: {1: {"t": 5, "u": 3, "v": 3}, 2: {"t": 3}},
        B: {9: {"t": 3}},
    }
