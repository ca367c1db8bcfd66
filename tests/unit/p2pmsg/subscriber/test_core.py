import pytest

from p2pmsg.subscriber.core import Intake
from p2pmsg.wire import Kind
from tests.unit.p2pmsg.frames import SESSION, echo, heartbeat, nack, probe, refused, welcome
from tests.unit.p2pmsg.subscriber_talk import MS, Talk, data, head

FORGED = {
    "data of an unknown session": data(0, session=7),
    "a heartbeat of an unknown session": heartbeat(5, session=7),
}


@pytest.mark.parametrize("frame", FORGED.values(), ids=FORGED)
def test_a_forged_session_is_counted_and_dropped(frame):
    talk = Talk().join(head(0))
    for _ in range(3):
        talk.hear(frame)
    assert talk.core.invalid == {"session": 3}
    assert set(talk.core.peers) == {SESSION}
    assert talk.read() == []


REPLIES = {
    "another session": (data(0, session=7), "session"),
    "an unknown stream": (data(0, topic="u"), "stream"),
    "a refusal for an unknown stream": (refused((0, 1), topic="u"), "stream"),
    "a refusal of nothing": (refused((1, 1)), "range"),
    "a refusal of another shape": (nack((0, 1)), "kind"),
    "a heartbeat": (heartbeat(5), "kind"),
    "a welcome": (welcome(), "kind"),
    "rubbish": (b"rubbish", "no topic"),
}


@pytest.mark.parametrize(("reply", "reason"), REPLIES.values(), ids=REPLIES)
def test_a_reply_that_does_not_fit_is_counted_and_dropped(reply, reason):
    talk = Talk().join(head(0))
    talk.reply(reply)
    assert talk.core.invalid == {reason: 1}
    assert talk.read() == []


HOSTILE = {
    "rubbish": (b"\0" * 50, "magic"),
    "a kind for publishers": (nack((0, 1)), "kind"),
    "a probe": (probe(), "kind"),
    "a heartbeat without topic": (heartbeat(3, topic=""), "topic"),
    "cut short": (data(0)[:-1], "length"),
}


@pytest.mark.parametrize(("frame", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_what_is_hostile_on_the_data_path_is_counted_and_dropped(frame, reason):
    talk = Talk().join(head(0))
    talk.hear(frame)
    assert talk.core.invalid == {reason: 1}
    talk.hear(data(0))
    assert talk.read() == [("t", 0, 1)]


def test_a_head_beyond_all_reason_costs_one_gap():
    talk = Talk(repair_timeout=0.2).join(head(0))
    talk.hear(heartbeat(2**63 - 1))
    talk.pass_ms(100)
    (stream,) = talk.core.streams
    assert stream.receiver.missing == 2**63 - 1
    talk.pass_ms(200)
    assert talk.read() == [("t", 0, 2**63 - 1, "timeout")]
    assert stream.ledger(0).balanced


def test_streams_beyond_the_bound_are_counted_and_dropped():
    talk = Talk(streams_max=2).join(head(0, topic="a"))
    for topic in "abcd":
        talk.hear(data(0, topic=topic))
    talk.hear(heartbeat(5, topic="e"))
    talk.hear(welcome())
    talk.hear(echo(talk.probe().probe, *(head(1, topic=topic) for topic in "abc")))
    assert talk.read() == [("a", 0, 1), ("b", 0, 1)]
    assert talk.core.invalid == {"streams_max": 4}
    assert len(talk.core.streams) == 2


def fill(talk, now_ns):
    """Receive until there is no more space; returns what is done with what comes at `now_ns`."""
    stream = talk.core.last_stream
    following = 0 if stream is None else stream.receiver.head
    for sequence in range(following, following + 70):
        talk.hear(data(sequence, size=1000))
    return talk.core.intake(now_ns)


def joined_with_little_space(**options):
    """A subscriber that may hold its publisher up for 1000 ms."""
    return Talk(start="earliest", receive_bytes=64 * 1024, **options).join(head(0))


def test_one_that_is_full_holds_its_publisher_up_for_as_long_as_that_allows():
    talk = joined_with_little_space()
    assert fill(talk, 5 * MS) is Intake.HOLD
    assert talk.core.intake(1005 * MS) is Intake.HOLD
    assert talk.core.intake(1006 * MS) is Intake.SHED


def test_silence_counts_again_once_all_is_read_though_all_is_full():
    """It was excused as long as there was no space, so that no publisher counted as dead."""
    talk = joined_with_little_space()
    (line,) = talk.core.lines
    line.last_heard_ns = 0
    assert fill(talk, 5 * MS) is Intake.HOLD
    talk.core.handle_timer(now_ns=1000 * MS)
    assert line.silent_from_ns == 1000 * MS
    assert talk.core.intake(1006 * MS) is Intake.SHED
    for now_ms in range(1250, 6251, 250):
        talk.core.handle_timer(now_ns=now_ms * MS)
    assert line.silent_from_ns == 1000 * MS
    assert not line.is_heard


def test_those_of_many_topics_are_folded_where_there_is_no_more_space():
    topics = [f"t{number}" for number in range(10)]
    talk = Talk(start="earliest", receive_bytes=64 * 1024, on_gap="latest")
    talk.join(*[head(0, topic=topic) for topic in topics])
    for sequence in range(20):
        for topic in topics:
            talk.hear(data(sequence, size=1000, topic=topic))
        assert talk.core.intake(5 * MS) is Intake.READ
    assert talk.core.ready.bytes_held <= 64 * 1024
    assert sum(output.count for _, output in talk.core.ready) == 200


def test_where_only_the_newest_values_matter_no_step_folds_much():
    talk = Talk(start="earliest", on_gap="latest").join(head(0))
    waiting = []
    for first in range(0, 100_000, 500):
        talk.hear(data(first, 500))
        waiting.append(sum(output.item.count for _, output in talk.core.ready))
        assert talk.core.intake(5 * MS) is Intake.READ
    assert max(waiting) <= 32 + 500
    assert len(talk.core.ready.entries) == 1
    assert sum(output.count for _, output in talk.core.ready) == 100_000


def last_nack(talk):
    return talk.asked(Kind.NACK)[-1][1]


def test_a_nack_says_how_many_frames_came_over_the_recovery_channel():
    talk = Talk(start="latest").join()
    talk.hear(data(3))
    talk.pass_ms(0)
    assert last_nack(talk).received is None  # it may be that some are lost on the way
    talk.core.table.effects.counts_replies = True
    for sequence in (0, 0):
        talk.reply(data(sequence))
    talk.reply(b"malformed")
    talk.hear(data(5))
    talk.pass_ms(0)
    assert last_nack(talk).received == 3


def test_one_that_is_always_late_asks_all_the_same():
    talk = Talk().join()
    talk.pass_ms(100)
    talk.asked()
    talk.hear(data(3))
    for _ in range(3):
        talk.now_ns += 2000 * MS
        talk.core.handle_timer(now_ns=talk.now_ns)
    assert talk.asked(Kind.NACK)
