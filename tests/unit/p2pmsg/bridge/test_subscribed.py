"""When a message may go to a plain PUB."""

from p2pmsg.bridge.subscribed import SETTLE_NS, FirstSubscriber, Verdict

S = 1_000_000_000
SEND, WAIT, NOBODY = Verdict.SEND, Verdict.WAIT, Verdict.NOBODY


def looks(first, *steps):
    """What it says at each `(seconds, is_there)`."""
    return [first.look(is_there, now_ns=int(at_s * S)) for at_s, is_there in steps]


def test_the_first_subscriber_is_waited_for_and_then_a_while_for_others():
    first = FirstSubscriber(S, now_ns=0)
    assert looks(first, (0.1, False), (0.5, True), (0.7, True)) == [WAIT, WAIT, WAIT]
    assert first.look(True, now_ns=S // 2 + SETTLE_NS) is SEND
    assert looks(first, (0.8, True), (9, True)) == [SEND, SEND]


def test_with_nobody_there_it_goes_on_when_patience_ends():
    first = FirstSubscriber(S, now_ns=0)
    assert looks(first, (5, False), (5.9, False), (6, False), (7, False)) == [
        WAIT, WAIT, NOBODY, NOBODY,
    ]  # fmt: skip


def test_who_comes_when_patience_has_ended_gets_what_follows_at_once():
    first = FirstSubscriber(S, now_ns=0)
    assert looks(first, (0, False), (1, False), (1.1, True)) == [WAIT, NOBODY, SEND]


def test_when_all_have_left_one_is_waited_for_again():
    first = FirstSubscriber(S, now_ns=0)
    assert looks(first, (9, True), (10, False), (10.5, True), (10.8, True)) == [
        SEND, WAIT, WAIT, SEND,
    ]  # fmt: skip
    assert looks(first, (20, False), (21, False), (22, True)) == [WAIT, NOBODY, SEND]
    assert looks(first, (30, False), (31, False)) == [WAIT, NOBODY]


def test_one_that_leaves_while_others_are_waited_for_costs_no_more_patience():
    first = FirstSubscriber(S, now_ns=0)
    steps = ((0, False), (0.5, True), (0.6, False), (0.9, False), (1, False))
    assert looks(first, *steps) == [WAIT, WAIT, WAIT, WAIT, NOBODY]


def test_one_that_was_there_before_the_first_message_counts_from_the_start():
    first = FirstSubscriber(S, now_ns=0)
    assert looks(first, (0.1, True), (0.25, True)) == [WAIT, SEND]
    assert FirstSubscriber(S, now_ns=0).look(True, now_ns=S) is SEND


def test_without_patience_nothing_waits():
    first = FirstSubscriber(0, now_ns=0)
    assert looks(first, (0, False), (0, True), (1, False), (1, True)) == [NOBODY, SEND] * 2
    assert FirstSubscriber(0, now_ns=0).look(True, now_ns=0) is SEND
