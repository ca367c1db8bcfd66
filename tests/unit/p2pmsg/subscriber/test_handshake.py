"""When a probe is repeated, and when JOINED is due, without a subscriber's core."""

from random import Random

import pytest

from p2pmsg import wire
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.handshake import Handshake
from p2pmsg.wire import Kind

MS = 1_000_000


@pytest.fixture
def effects():
    return Effects()


@pytest.fixture
def handshake(effects):
    handshake = Handshake(-1)
    handshake.begin(2, effects, rng=Random(1), now_ns=0)
    return handshake


def commanded(effects):
    found = [(command.what, command.line, command.prefix) for command in effects.commands]
    effects.commands.clear()
    return found


def echo(probe):
    return wire.control_prefix(Kind.ECHO, probe)


def test_an_echo_is_subscribed_to_until_it_comes(handshake, effects):
    probe = handshake.probe
    assert commanded(effects) == [("subscribe", 2, echo(probe))]
    handshake.echoed(effects)
    assert commanded(effects) == [("unsubscribe", 2, echo(probe))]
    assert handshake.joined
    assert handshake.take_due(10**12) is None


def test_another_probe_takes_the_place_of_the_former(handshake, effects):
    former = handshake.probe
    commanded(effects)
    probe = handshake.begin(3, effects, rng=Random(2), now_ns=0)
    assert probe == handshake.probe != former
    assert commanded(effects) == [("unsubscribe", 2, echo(former)), ("subscribe", 3, echo(probe))]


def test_an_echo_that_is_not_awaited_any_more_joins_nothing(handshake, effects):
    handshake.cancel(effects)
    commanded(effects)
    handshake.cancel(effects)
    assert commanded(effects) == []
    assert not handshake.joined


def test_a_probe_is_repeated_soon_and_ever_more_rarely(handshake):
    due_ms, now_ms = [], 0
    while len(due_ms) < 14:
        now_ms += 1
        if handshake.take_due(now_ms * MS) is not None:
            due_ms.append(now_ms)
    waits = [after - before for before, after in zip([0, *due_ms], due_ms, strict=False)]
    assert waits == [10, 20, 40, 80, *[100] * 5, 200, 400, 800, 1600, 1600]


def test_a_probe_that_is_to_be_echoed_once_more_is_repeated_soon(handshake):
    for now_ms in (10, 30, 70):
        assert handshake.take_due(now_ms * MS) == handshake.probe
    handshake.repeat_soon()
    assert handshake.take_due(149 * MS) is None
    assert handshake.take_due(150 * MS) == handshake.probe
    assert handshake.take_due(170 * MS) == handshake.probe


def test_a_report_is_due_again_after_a_while(handshake):
    assert handshake.is_report_due(0, complete=False)
    handshake.note_report(100, complete=False)
    assert not handshake.is_report_due(99, complete=False)
    assert handshake.is_report_due(100, complete=False)


def test_that_nothing_is_missing_is_reported_at_once_and_once(handshake):
    handshake.note_report(100, complete=False)
    handshake.note_closing()
    assert handshake.is_report_due(1, complete=True)
    handshake.note_report(100, complete=True)
    assert not handshake.is_report_due(2, complete=True)
    handshake.note_closing()  # the other side says it again: our report was lost, perhaps
    assert handshake.is_report_due(3, complete=True)


def test_the_other_side_may_come_back(handshake):
    handshake.note_closing()
    handshake.note_report(100, complete=True)
    handshake.note_open()
    assert not handshake.closing
    assert not handshake.reported_complete
