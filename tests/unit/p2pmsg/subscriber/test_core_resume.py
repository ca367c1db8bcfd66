"""A subscriber's core with a cursor: where streams begin, and what must be noted before."""

import pytest

from p2pmsg.subscriber.resume import ResumePoints
from p2pmsg.wire import Kind
from recovery import CursorFile
from recovery.memory_store import MemoryStoreFile
from tests.unit.p2pmsg.frames import SESSION, echo, welcome
from tests.unit.p2pmsg.subscriber_talk import Talk, data, head

NEXT = SESSION + 1


class Incarnations:
    """A subscriber that dies and comes back, on one cursor."""

    def __init__(self):
        self.store = MemoryStoreFile()

    def begin(self, *heads, start="latest", topics=(), lines=1, session=SESSION):
        """Return a new incarnation; with `heads` it has joined and noted that."""
        self.store.kill()
        endpoints = [f"tcp://h:{port}" for port in range(1, lines + 1)]
        self.points = ResumePoints(CursorFile(self.store.open), endpoints, list(topics))
        talk = Talk(start=start, topics=topics, lines=lines, cursor=self.points)
        if heads:
            talk.join(*heads, session=session)
            talk.record_newcomers()
        return talk

    def commit(self, talk, topic, following):
        (stream,) = (stream for stream in talk.core.streams if stream.topic == topic)
        return self.points.commit([(stream, following)], durable=True)


@pytest.fixture
def lives():
    return Incarnations()


def starts(talk):
    return {stream.topic: stream.receiver.start for stream in talk.core.streams}


def test_nothing_is_noted_before_it_is_certain_and_joining_waits_for_the_note(lives):
    talk = lives.begin()
    talk.hear(welcome())
    probe = talk.probe().probe
    assert lives.points.newcomers == []
    talk.hear(data(4))  # early: it is not known yet whether it is wanted
    talk.hear(echo(probe, head(4)))
    (peer,) = lives.points.newcomers
    assert peer.session == SESSION
    talk.pass_ms(20_000)
    assert talk.asked(Kind.JOINED) == []  # so the publisher does not count it

    talk.record_newcomers()
    assert lives.points.newcomers == []
    assert lives.points.file.cursor.sessions[SESSION].streams == {"t": 4}
    assert lives.points.file.cursor.endpoints == ("tcp://h:1",)
    talk.pass_ms(20)
    assert [kind for kind, *_ in talk.asked(Kind.JOINED)] == ["JOINED"]


def test_who_is_forgotten_before_it_has_begun_holds_no_other_one_up(lives):
    talk = lives.begin()
    talk.hear(welcome())
    talk.hear(data(0))
    lives.points.note(talk.core.peers[SESSION])  # as where its publisher's log has gone back
    talk.core.table.forget(SESSION)
    talk.join(head(4), session=NEXT)
    talk.record_newcomers()
    assert list(lives.points.file.cursor.sessions) == [NEXT]
    talk.hear(data(4, session=NEXT))
    assert talk.read() == [("t", 4, 1)]


def test_a_note_that_fails_is_made_again(lives):
    talk = lives.begin()
    talk.join(head(4))
    lives.store.failing["write"] = OSError("no space")
    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            talk.record_newcomers()
        assert len(lives.points.newcomers) == 1
    lives.store.failing.clear()
    talk.record_newcomers()
    assert starts(lives.begin(head(9))) == {"t": 4}


def test_nothing_is_recorded_of_a_session_whose_joining_was_cut_short(lives):
    talk = lives.begin()
    talk.hear(welcome())
    (peer,) = talk.core.peers.values()
    for _ in range(2):
        lives.points.note(peer)
    assert lives.points.newcomers == [peer]
    talk.record_newcomers()
    assert lives.points.newcomers == [peer]
    assert SESSION not in lives.points.file.cursor.sessions
