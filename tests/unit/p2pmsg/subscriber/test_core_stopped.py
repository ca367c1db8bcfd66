"""A process that was stopped (SIGSTOP, a suspended machine) reads before it gives anything up."""

from p2pmsg.wire import Kind
from recovery import NackConfig
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.subscriber_talk import MS, Talk, data, head


def talk_with_a_gap(**options):
    talk = Talk(start="earliest", nack=NackConfig(jitter=0.0, deadline_ms=2000), **options)
    talk.join(head(0))
    talk.hear(data(0))
    talk.hear(data(2))
    talk.pass_ms(100)
    talk.read()
    talk.asked()
    return talk


def stop_for_ms(talk, ms):
    talk.now_ns += ms * MS
    talk.core.handle_timer(now_ns=talk.now_ns)


def test_a_stop_does_not_count_as_waiting_for_a_repair():
    talk = talk_with_a_gap()
    stop_for_ms(talk, 5000)

    assert talk.read() == []
    assert talk.asked(Kind.NACK) == []  # what answers it may lie unread
    talk.reply(data(1))
    assert talk.read() == [("t", 1, 1), ("t", 2, 1)]


def test_after_a_stop_the_rest_of_the_time_runs():
    talk = talk_with_a_gap()
    stop_for_ms(talk, 5000)
    talk.pass_ms(1500)
    assert talk.read() == []
    talk.pass_ms(1000)

    assert talk.read() == [("t", 1, 2, "timeout"), ("t", 2, 1)]


def test_a_publisher_is_not_silent_because_nobody_listened():
    talk = talk_with_a_gap(publisher_timeout_ms=1000)
    stop_for_ms(talk, 5000)
    talk.pass_ms(300)

    assert ("reconnect", 0, 0) not in talk.commanded()
    talk.hear(frames.heartbeat(3))
    assert not talk.core.peers[frames.SESSION].blamed


def test_silence_after_a_stop_is_noticed():
    talk = talk_with_a_gap(publisher_timeout_ms=1000)
    stop_for_ms(talk, 5000)
    talk.pass_ms(2000)

    assert "reconnect" in [what for what, _, _ in talk.commanded()]


def test_a_shell_that_is_late_again_and_again_gives_up_all_the_same():
    talk = talk_with_a_gap()
    for _ in range(40):
        stop_for_ms(talk, 900)

    assert talk.read() == [("t", 1, 2, "timeout"), ("t", 2, 1)]
