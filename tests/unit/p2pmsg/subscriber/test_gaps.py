"""Many streams miss something: they take turns, and repairs are asked for as far as they fit."""

from random import Random

import pytest

from p2pmsg.subscriber.gaps import TURNS_MAX, GapScheduler, ReceiveWindow
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.wire import Frame
from recovery import (
    NackConfig,
    ReceiverConfig,
    RetransmitScheduler,
    StreamReceiver,
)
from tests.steps import lines_run
from tests.unit.p2pmsg.subscriber_talk import MS, data, session

DEADLINE_NS = 1000 * MS


def make_streams(count, now_ns=0):
    """Streams of which the first message is missing."""
    peer = session(7)
    config = ReceiverConfig(nack=NackConfig(jitter=0.0, deadline=1.0))
    peer.answer = config.nack.answer_time()
    streams = [Stream(peer, f"t{n}", config, Random(n), peer.answer) for n in range(count)]
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
    troubled.answering(now_ns)
    stream.receiver.receive(0, 1, 10, "frame", now_ns=now_ns, repaired=True)
    troubled.discard(stream)


@pytest.fixture
def many():
    troubled, streams = GapScheduler(DEADLINE_NS), make_streams(TURNS_MAX + 100)
    assert all(troubled.note(stream) for stream in streams)
    assert not any(troubled.note(stream) for stream in streams)
    return troubled, streams


def test_as_many_as_have_a_turn_are_asked_for_and_the_others_when_one_is_answered(many):
    troubled, streams = many
    assert troubled.next_deadline_ns() == 0
    assert ask(troubled, 0) == streams[:TURNS_MAX]
    assert troubled.next_deadline_ns() == 20 * MS  # when the first ones are asked for again
    assert ask(troubled, 5 * MS) == []
    answer(troubled, streams[3], 6 * MS)
    assert troubled.next_deadline_ns() <= 6 * MS
    assert ask(troubled, 6 * MS) == [streams[TURNS_MAX]]


def test_who_has_a_turn_keeps_it_for_its_next_attempts(many):
    troubled, streams = many
    ask(troubled, 0)
    assert ask(troubled, 20 * MS) == streams[:TURNS_MAX]


def test_a_turn_lasts_until_all_that_was_asked_for_has_come(many):
    troubled, streams = many
    first = streams[0]
    first.receiver.observe_head(9, now_ns=0)
    ask(troubled, 0)
    troubled.answering(1 * MS)
    first.receiver.receive(0, 1, 10, "frame", now_ns=1 * MS, repaired=True)
    troubled.note(first)
    assert ask(troubled, 1 * MS) == []
    first.receiver.receive(1, 8, 80, "frame", now_ns=2 * MS, repaired=True)
    troubled.discard(first)
    assert ask(troubled, 2 * MS) == [streams[TURNS_MAX]]


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
        troubled.answering(now_ns)
        if stream.receiver.missing:
            troubled.note(stream)
        else:
            troubled.discard(stream)
    assert [stream.receiver.repaired for stream in streams] == [5] * len(streams)
    assert asked < 3 * 5 * len(streams)


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


def test_being_stopped_takes_no_time_from_anybody(many):
    troubled, streams = many
    ask(troubled, 0)
    stopped_ns = 5 * DEADLINE_NS
    troubled.postpone(now_ns=stopped_ns, delay_ns=5 * MS, stopped_ns=stopped_ns)
    assert troubled.next_deadline_ns() >= stopped_ns + 5 * MS
    ask(troubled, stopped_ns + 5 * MS)
    assert not any(stream.receiver.lost for stream in streams)


def test_all_streams_are_postponed_in_as_many_steps_as_one(many):
    few = GapScheduler(DEADLINE_NS)
    few.note(make_streams(1)[0])
    steps = [
        lines_run(lambda gaps=gaps: gaps.postpone(now_ns=MS, delay_ns=5 * MS))
        for gaps in (few, many[0])
    ]
    assert steps[0] == steps[1] > 0


def test_streams_that_were_postponed_for_long_are_asked_for_again_and_none_is_given_up(many):
    troubled, streams = many
    ask(troubled, 0)
    for now_ns in range(MS, 3 * DEADLINE_NS, 5 * MS):
        troubled.postpone(now_ns=now_ns, delay_ns=5 * MS)
        assert troubled.next_deadline_ns() >= now_ns + 5 * MS
    assert ask(troubled, now_ns + 5 * MS) == streams[:TURNS_MAX]
    ask(troubled, now_ns + DEADLINE_NS - 1)
    assert not any(stream.receiver.lost for stream in streams)


def test_a_stream_that_was_postponed_has_its_time_from_then_on(many):
    troubled, streams = many
    ask(troubled, 0)
    troubled.postpone(now_ns=DEADLINE_NS // 2, delay_ns=0)
    while (due_ns := troubled.next_deadline_ns()) is not None and due_ns <= 2 * DEADLINE_NS:
        now_ns = due_ns
        ask(troubled, now_ns)
    assert now_ns == 3 * DEADLINE_NS // 2
    assert [stream.receiver.lost for stream in streams] == [1] * len(streams)


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


CONFIG = ReceiverConfig(reorder_frames_max=4096)
BYTES_MAX = 100_000


def frame(sequence, count=1, size=1000):
    return Frame(data(sequence, count, size=size // count))


@pytest.fixture
def window():
    return ReceiveWindow(BYTES_MAX, CONFIG)


@pytest.fixture
def receiver():
    receiver = StreamReceiver(CONFIG, Random(1))
    receiver.start_at(0, now_ns=0)
    return receiver


def test_without_any_frame_a_fixed_number_is_asked_for(window):
    assert window.window() == window.window_in(0) == 1024


def test_the_window_follows_the_size_of_the_messages(window):
    window.note(frame(0, count=100, size=1000))  # about ten bytes a message
    assert window.window() == pytest.approx(2 * BYTES_MAX / 12.5, rel=0.05)
    assert window.window_in(BYTES_MAX) == window.window() // 2
    assert window.window_in(0) == 16


def test_large_messages_leave_a_window_all_the_same(window):
    window.note(frame(0, count=1, size=50_000))
    assert window.window() == 1024


def test_it_is_crowded_from_three_quarters_on(window):
    assert not window.is_crowded(BYTES_MAX * 3 // 4 - 1)
    assert window.is_crowded(BYTES_MAX * 3 // 4)


def test_what_is_next_always_fits(window, receiver):
    assert window.admit_repair(receiver, frame(0), bytes_held=BYTES_MAX, now_ns=0)


def test_a_later_frame_fits_while_there_are_bytes_left(window, receiver):
    assert window.admit_repair(receiver, frame(5), bytes_held=BYTES_MAX - 1, now_ns=0)


def test_a_frame_that_does_not_fit_is_dropped(window, receiver):
    assert not window.admit_repair(receiver, frame(5), bytes_held=BYTES_MAX, now_ns=0)


def test_a_frame_still_further_on_is_evicted_for_a_repair(window, receiver):
    held = frame(9)
    receiver.receive(9, 1, len(held.data), held, now_ns=0)
    assert window.admit_repair(receiver, frame(5), bytes_held=BYTES_MAX, now_ns=0)
    assert receiver.bytes_held == 0
