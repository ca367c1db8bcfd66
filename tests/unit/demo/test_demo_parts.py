from dataclasses import replace

import pytest

from examples.demo.bars import Bar
from examples.demo.report import (
    render_report,
)
from examples.demo.run import State, ledger_errors
from examples.demo.subscribing import SequenceCheck, Tally
from p2pmsg.message import MessageBatch

BAR = Bar("BTCUSDT", 1_000_000_000, 1.0, 3.0, 0.5, 2.0, 1.5, 4)
OTHER = replace(BAR, close=2.5)
LATER = replace(BAR, window_start_ns=2_000_000_000)


def batch(sequence, count, topic="t", session=1):
    return MessageBatch(topic, session, "p", sequence, 0, [b""] * count)


DELIVERIES = {
    "in order": ([(0, 3), (3, 2)], (5, 0, 0)),
    "one twice": ([(0, 3), (2, 2)], (5, 1, 0)),
    "all twice": ([(0, 3), (0, 3)], (6, 3, 0)),
    "a hole": ([(0, 3), (5, 1)], (4, 0, 2)),
    "a hole at the start": ([(2, 1)], (1, 0, 2)),
}


@pytest.mark.parametrize(("runs", "counts"), DELIVERIES.values(), ids=DELIVERIES)
def test_sequences_alone_show_duplicates_and_holes(runs, counts):
    check = SequenceCheck()

    for run in runs:
        check.note(batch(*run))

    assert (check.seen, check.duplicates, check.missing) == counts


GOOD = Tally(published=10, delivered=10, seen=10)
LEDGERS = {
    "good": ({}, 0),
    "lost": ({"delivered": 8, "seen": 8, "lost": 2, "missing": 2}, 1),
    "outstanding": ({"delivered": 8, "seen": 8, "outstanding": 2}, 1),
    "out of balance": ({"delivered": 8, "seen": 8}, 1),
    "a stream out of balance": ({"balanced": False}, 1),
    "knows too little": ({"published": 9}, 1),
    "twice, unseen by the library": ({"seen": 11, "duplicates": 1}, 1),
    "a hole, unseen by the library": ({"missing": 1}, 1),
}


@pytest.mark.parametrize(("changes", "count"), LEDGERS.values(), ids=LEDGERS)
def test_a_ledger_is_judged(changes, count):
    assert len(ledger_errors(replace(GOOD, **changes), 10)) == count


def make_state(**changes):
    state = State(
        total=10, expected=[BAR], published=10, seconds=2.5, cuts=2, spark="done", spark_rows=10,
        bars=[BAR], bars_equal=True, subscribers={"fast": GOOD, "slow": GOOD},
    )  # fmt: skip
    return replace(state, **changes)


def test_the_report_fits_on_a_small_terminal():
    """With the prompt, and a line for each of what else is said."""
    many, names = 10**6, ("fast", "slow")
    tally = Tally(published=many, delivered=many, repaired=many, seen=many)
    bars = [Bar("BTCUSDT", at, *[99_999.99] * 4, 99_999.999, 99_999) for at in range(1000)]
    report = render_report(
        make_state(
            published=many, seconds=100.0, spark_rows=many, spark_seconds=100.0, bars=bars,
            transport="tcp", cuts=100, restarts=1, subscribers=dict.fromkeys(names, tally),
        ),
        "/tmp/bars.csv",
    )  # fmt: skip
    lines = report.splitlines()

    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "the bars are equal to those computed straight from the input"
