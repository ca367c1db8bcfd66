"""Many streams miss something: they take turns, and repairs are asked for as far as they fit."""

import pytest

from p2pmsg.subscriber.gaps import TURNS_MAX, GapScheduler
from p2pmsg.subscriber.sessions import Stream
from recovery import (
    ReceiverConfig,
    RetransmitScheduler,
)
from recovery.nack import answer_time
from tests.still import Still
from tests.unit.p2pmsg.subscriber_talk import MS, session

DEADLINE_NS = 1000 * MS


def make_streams(count, now_ns=0):
    """Streams of which the first message is missing."""
    peer = session(7)
    config = ReceiverConfig(deadline=1.0)
    peer.answer = answer_time()
    streams = [Stream(peer, f"t{n}", config, Still(n), peer.answer) for n in range(count)]
    for stream in streams:
        stream.receiver.start_at(0, now_ns=now_ns)
        stream.receiver.observe_head(1, now_ns=now_ns)
    return streams


def ask(troubled, now_ns):
    """Ask for what is due, as the core does; return the streams."""
    asked = []
    for stream in troubled.take_due(now_ns=now_ns):
        stream.receiver.handle_timer(now_ns=now_ns)
        if stream.receiver.nacks.due(now_ns=now_ns):
            asked.append(stream)
        else:
            troubled.pass_on(stream)
        if stream.receiver.missing:
            troubled.note(stream)
        else:
            troubled.discard(stream)
    return asked


def answer(troubled, stream, now_ns):
    stream.peer.answered_ns = now_ns
    stream.receiver.receive(0, 1, 10, "frame", now_ns=now_ns, repaired=True)
    troubled.discard(stream)


@pytest.fixture
def many():
    troubled, streams = GapScheduler(DEADLINE_NS), make_streams(TURNS_MAX + 100)
    assert all(troubled.note(stream) for stream in streams)
    assert not any(troubled.note(stream) for stream in streams)
    return troubled, streams


def test_a_publisher_that_answers_slowly_is_asked_for_no_more_than_it_keeps():
    troubled, streams = GapScheduler(60_000 * MS), make_streams(4 * TURNS_MAX)
    publisher = RetransmitScheduler()
    by_topic = {stream.topic: stream for stream in streams}
    for stream in streams:
        stream.receiver.observe_head(5, now_ns=0)
        troubled.note(stream)
    asked = now_ns = 0
    while len(troubled):
        now_ns += MS
        for stream in troubled.take_due(now_ns=now_ns):
            ranges = stream.receiver.nacks.due(now_ns=now_ns)
            if not ranges:
                troubled.pass_on(stream)
            asked += len(ranges)
            assert publisher.request(b"me", stream.topic, ranges, now_ns=now_ns) == []
            troubled.note(stream)
        if (job := publisher.next_job(now_ns=now_ns)) is None:
            continue
        requester, topic, start, _ = job  # one frame of one message each millisecond
        publisher.sent(requester, topic, start, start + 1, 100, now_ns=now_ns)
        stream = by_topic[topic]
        stream.receiver.receive(start, 1, 100, "frame", now_ns=now_ns, repaired=True)
        stream.peer.answered_ns = now_ns
        if stream.receiver.missing:
            troubled.note(stream)
        else:
            troubled.discard(stream)
    assert [stream.receiver.repaired for stream in streams] == [5] * len(streams)
    assert asked < 3 * 5 * len(streams)


def test_a_publisher_that_is_silent_keeps_no_other_waiting(many):
    troubled, _ = many
    (other,) = make_streams(1)
    troubled.note(other)
    assert other in ask(troubled, 0)


def test_what_waits_for_its_turn_is_not_given_up_while_there_are_answers(many):
    troubled, streams = many
    ask(troubled, 0)
    for turn in range(100):
        now_ns = (turn + 1) * 9 * MS
        answer(troubled, streams[turn], now_ns)
        assert streams[TURNS_MAX + turn] in ask(troubled, now_ns)
    last = streams[-1]
    ask(troubled, now_ns + DEADLINE_NS - 1)
    assert last.receiver.missing  # it had all of its time from its turn on
    ask(troubled, now_ns + DEADLINE_NS)
    assert last.receiver.lost == 1


def test_without_any_answer_all_is_given_up_at_the_deadline(many):
    troubled, streams = many
    ask(troubled, 0)
    while (due_ns := troubled.next_deadline_ns()) is not None and due_ns <= DEADLINE_NS:
        now_ns = due_ns
        ask(troubled, now_ns)
    assert now_ns == DEADLINE_NS
    assert [stream.receiver.lost for stream in streams] == [1] * len(streams)
    assert not len(troubled)


def test_what_the_streams_hold_is_summed_up():
    troubled, streams = GapScheduler(DEADLINE_NS), make_streams(3)
    for n, stream in enumerate(streams):
        stream.receiver.receive(2, 1, 10 + n, "frame", now_ns=0)
        troubled.note(stream)
    assert troubled.bytes_held == 33
    streams[0].receiver.receive(3, 1, 100, "frame", now_ns=0)
    troubled.note(streams[0])
    assert troubled.bytes_held == 133
    assert troubled.discard(streams[1])
    assert not troubled.discard(streams[1])
    assert troubled.bytes_held == 122
    assert list(troubled) == [streams[0], streams[2]]
    troubled.clear()
    assert (troubled.bytes_held, len(troubled), troubled.next_deadline_ns()) == (0, 0, None)
