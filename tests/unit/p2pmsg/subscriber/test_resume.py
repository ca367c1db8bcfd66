"""Where streams resume, by a cursor and without a subscriber's core."""

from random import Random

import pytest

from p2pmsg import control
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.resume import ResumePoints
from p2pmsg.subscriber.sessions import Session, Stream
from recovery import CursorConfig, CursorFile, MemoryCursorStore, ReceiverConfig

SESSION = 7
CONNECTIONS = [Connection(session=SESSION), Connection()]
PLACES = ["tcp://a:1", "tcp://b:1"]


@pytest.fixture
def store():
    return MemoryCursorStore("c")


@pytest.fixture
def session():
    welcome = control.Welcome("feed", "tcp://127.0.0.1:1", -1.0)
    session = Session(SESSION, welcome, returning=False, now_ns=0)
    stream = session.streams["t"] = Stream(session, "t", ReceiverConfig(), Random(1))
    stream.receiver.start_at(5, now_ns=0)
    session.joined = True
    return session


def points_of(store, topics=()):
    store.kill()  # the former life is over
    return ResumePoints(CursorFile(store, CursorConfig("c")), PLACES, list(topics))


def test_a_session_that_was_recorded_resumes_where_it_began(store, session):
    points = points_of(store)
    points.note(session)
    points.note(session)
    assert points.newcomers == [session]

    points.record(CONNECTIONS)

    assert points.newcomers == []
    again = points_of(store)
    assert again.start_of(SESSION, "t", 0) == 5
    assert again.known(SESSION) == {"t": 5}
    assert again.contacted(0)
    assert not again.contacted(1)


def test_a_topic_that_was_not_there_then_begins_as_a_new_one(store, session):
    points = points_of(store)
    points.note(session)
    points.record(CONNECTIONS)

    assert points.start_of(SESSION, "new", 3) == 3
    assert points.start_of(8, "t", 3) is None


def test_nothing_is_recorded_before_the_streams_have_begun(store, session):
    session.joined = False
    points = points_of(store)
    points.note(session)
    points.record(CONNECTIONS)
    assert points.newcomers == [session]


def test_what_is_committed_is_where_the_stream_resumes(store, session):
    stream = session.streams["t"]
    points = points_of(store)
    points.note(session)
    points.record(CONNECTIONS)

    assert points.commit([(stream, 9)], durable=True) == 1
    assert points.committed(stream) == 9
    assert points_of(store).start_of(SESSION, "t", 0) == 9


def test_a_publisher_that_went_back_takes_its_stream_back(store, session):
    points = points_of(store)
    points.note(session)
    points.record(CONNECTIONS)
    points.commit([(session.streams["t"], 9)], durable=True)

    points.rewind(session, "t", 2)

    assert points.start_of(SESSION, "t", 0) == 2
    points.record(CONNECTIONS)
    assert points_of(store).start_of(SESSION, "t", 0) == 2
