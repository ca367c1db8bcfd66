"""An exception at any line of a publisher: it goes on, and nothing that was returned is lost."""

import contextlib

import pytest

import p2pmsg
from p2pmsg.driver import section, threads
from p2pmsg.peers import publisher, sending, serving
from p2pmsg.publisher import (
    batch,
    control_queue,
    core,
    gathering,
    heartbeats,
    log,
    requests,
)
from recovery import replay_buffer, retransmit
from tests.integration.peers import TOPIC, check_ledger
from tests.integration.strikes import LineStrike

FILES = (
    batch, control_queue, core, gathering, heartbeats, log, publisher,
    replay_buffer, requests, retransmit, section, sending, serving, threads,
)  # fmt: skip


@pytest.mark.rounds(60, 900)
@pytest.mark.parametrize("kind", ["plain", "logged", "synced"])
def test_what_was_returned_arrives_once(connect, tmp_path, rounds, kind):
    options = {} if kind == "plain" else {"log": p2pmsg.LogConfig(tmp_path)}
    if kind == "synced":
        options["log"] = p2pmsg.LogConfig(tmp_path, fsync="always")
    sender, receiver = connect(publisher=options)
    accepted, struck = {}, 0

    def note(sequence, value):
        assert accepted.setdefault(sequence, value) == value

    for number in range(1, rounds + 1):
        strike = LineStrike(FILES, 1 + number * 7 % (3 * rounds))
        with strike:
            for part in range(40 if number % 2 else 3):  # gathered, or alone
                value = f"{number}.{part}"
                note(sender.publish(TOPIC, value, key="k" if part % 3 else None), value)
            values = [f"{number}.many.{part}" for part in range(200)]
            first, _ = sender.publish_many(TOPIC, values)
            for part, value in enumerate(values):
                note(first + part, value)
            sender.flush()
            with contextlib.suppress(TimeoutError):
                sender.wait_for_subscribers(2, 0.001)
            sender.stats()
        struck += strike.left <= 0
    assert struck > rounds // 3
    note(sender.publish(TOPIC, "the end"), "the end")
    sender.flush()
    received = {}
    while "the end" not in received.values():
        message = receiver.receive(60)
        received[message.sequence] = message.value
    assert accepted.items() <= received.items()
    assert len(set(received.values())) == len(received)
    assert sender.publish(TOPIC, "still there") == max(received) + 1
    check_ledger(receiver)
