"""What the benchmark's processes run can be made: a row that cannot be measured is seen here."""

import inspect
import itertools
import types
from xml.etree import ElementTree

import pytest

from tests.bench import aio_roles, ours, peers
from tests.bench.harness import (
    STOLEN_TRIES,
    Contender,
    Receiver,
    Sender,
    read_stolen,
    repeat_stolen,
)
from tests.bench.loads import TrialError
from tests.bench.percentiles import SHARES, draw
from tests.bench.report import PERCENTILES, Goal, compare_percentiles

CONTENDERS = {
    one.name: one
    for module in (aio_roles, ours, peers)
    for one in vars(module).values()
    if isinstance(one, Contender)
}
SENDER, RECEIVER = ("wait_ready", "send", "finish", "close"), ("receive_rest", "close")
assert all(hasattr(Sender, name) for name in SENDER)
assert all(hasattr(Receiver, name) for name in RECEIVER)


@pytest.mark.parametrize("contender", CONTENDERS.values(), ids=CONTENDERS)
def test_each_contender_has_all_that_is_called_of_it(contender):
    for kind, names in ((contender.open_sender, SENDER), (contender.open_receiver, RECEIVER)):
        if isinstance(kind, types.FunctionType):  # which chooses one
            continue
        assert not inspect.isabstract(kind), kind.__abstractmethods__
        assert [name for name in names if not callable(getattr(kind, name, None))] == []
        if kind is contender.open_receiver:
            assert hasattr(kind, "receive") or hasattr(kind, "receive_checked")


def test_the_picture_of_percentiles_has_a_line_for_each_contender():
    ages = [1_000 * age for age in range(20, 5_020)]
    curves = [("ours", "#000000", ages), ("a & b", "#111111", ages[:200])]
    root = ElementTree.fromstring(draw([("10,000 a second", curves), ("50,000", curves)]))
    lines = [one for one in root.iter() if one.tag.endswith("polyline")]
    assert len(lines) == 4
    for line in lines:
        points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        assert len(points) == len(SHARES)
        assert points == sorted(points)  # to the right with the percentile
        heights = [y for _, y in points]
        assert heights == sorted(heights, reverse=True)  # and upwards with the age
        assert 0 < min(heights) <= max(heights) < 300
    texts = {one.text for one in root.iter() if one.tag.endswith("text")}
    assert {"ours", "a & b", "10,000 a second", "99.9 %"} <= texts


def test_percentiles_are_of_the_same_trials_and_a_failed_one_is_in_each_row():
    goals = {name: Goal("area", name, "µs", 2, 1, lower_is_better=True) for name in PERCENTILES}
    ours, peer = range(1_000_000, 0, -1_000), range(0, 2_000_000, 2_000)  # in ns, in any order
    rows = list(compare_percentiles("ages", goals, lambda: ours, lambda: peer, 2))
    assert [row.what for row in rows] == list(goals)
    assert [row.ours for row in rows] == [501, 991, 1000]
    assert [row.peer for row in rows] == [1000, 1980, 1998]
    assert all(row.ok for row in rows)

    def fails():
        raise TrialError("nothing came")

    rows = list(compare_percentiles("ages", goals, lambda: ours, fails, 2))
    assert [(row.ok, row.note) for row in rows] == [(False, "trial failed: nothing came")] * 3


def test_what_was_measured_while_the_host_took_the_cores_is_measured_again():
    ticks = iter([(0, 100), (10, 200), (10, 200), (10, 300)])
    figures = iter([1.0, 2.0])

    assert repeat_stolen("rate", lambda: next(figures), lambda: next(ticks)) == 2.0


def test_it_is_not_measured_again_without_end():
    ticks = ((10 * number, 20 * number) for number in itertools.count())
    figures = itertools.count()

    assert repeat_stolen("rate", lambda: next(figures), lambda: next(ticks)) == STOLEN_TRIES - 1


def test_stolen_time_is_read_where_the_system_counts_it(tmp_path):
    path = tmp_path / "stat"
    path.write_text("cpu  10 20 30 400 50 6 7 80 0 0\ncpu0 1\n")

    assert read_stolen(path) == (80, 10 + 20 + 30 + 6 + 7 + 80)
    assert read_stolen(tmp_path / "none") == (0, 1)
