"""Ranges of a group that several publish to: whose was asked for is found, and no other."""

import pytest

import p2pmsg
from p2pmsg import LossReason, LossReport
from tests.integration.test_udp_multicast import GROUP, free_port

COUNT = 2000


@pytest.fixture
def place():
    return GROUP.format(150, free_port())


@pytest.fixture
def publishers(make_publisher, place):
    made = {name: make_publisher(place, name=name) for name in ("a", "b", "c")}
    for name, publisher in made.items():
        publisher.publish_many("t", [f"{name}{number}" for number in range(COUNT)])
        publisher.publish("of " + name, 0)
    return made


def values_of(items):
    found = []
    for item in items:
        assert not isinstance(item, LossReport), item
        found += item.values
    return found


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_the_session_that_is_asked_for_is_found(publishers, place, name):
    session = publishers[name].session
    with p2pmsg.RangeReader(place, session=session) as reader:
        for _ in range(3):
            heads = reader.heads(timeout=5)
            assert (heads.session, heads.publisher) == (session, name)
            assert set(heads.streams) == {"t", "of " + name}
        assert values_of(reader.fetch("t", 10, COUNT)) == [f"{name}{n}" for n in range(10, COUNT)]


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_the_publisher_of_that_name_is_found(publishers, place, name):
    with p2pmsg.RangeReader(place, publisher=name) as reader:
        assert reader.heads(timeout=5).session == publishers[name].session


def test_several_are_read_at_the_same_time_by_one_reader(publishers, place):
    with p2pmsg.RangeReader(place) as reader:
        fetches = {
            name: reader.fetch("t", 0, COUNT, session=publisher.session)
            for name, publisher in publishers.items()
        }
        found = {name: [] for name in fetches}
        while fetches:
            for name, fetch in list(fetches.items()):
                batch = next(fetch, None)
                if batch is None:
                    del fetches[name]
                else:
                    found[name] += values_of([batch])
    for name, values in found.items():
        assert values == [f"{name}{number}" for number in range(COUNT)]


def test_a_reader_that_names_nobody_keeps_to_one(publishers, place):
    with p2pmsg.RangeReader(place) as reader:
        sessions = {reader.heads(timeout=5).session for _ in range(10)}
        name = next(n for n, one in publishers.items() if {one.session} == sessions)
        for _ in range(10):
            assert values_of(reader.fetch("t", 0, 10)) == [f"{name}{n}" for n in range(10)]


def test_all_of_them_are_listed(publishers, place):
    with p2pmsg.RangeReader(place) as reader:
        found = {entry.publisher: entry.session for entry in reader.sessions(timeout=5)}
    assert found == {name: publisher.session for name, publisher in publishers.items()}


def test_a_session_that_has_ended_is_gone_although_others_are_there(publishers, place):
    ended = publishers["b"].session
    publishers["b"].close(timeout=0.1)
    with p2pmsg.RangeReader(place, session=ended) as reader:
        (loss,) = reader.fetch("t", 0, COUNT, session=ended, timeout=10)
    assert (loss.start, loss.stop, loss.reason) == (0, COUNT, LossReason.PUBLISHER_GONE)
