from random import Random

import pytest

from recovery import LatencyHistogram


def test_a_percentile_is_at_most_a_quarter_too_high():
    rng = Random(2)
    times = sorted(round(10 ** rng.uniform(0, 10)) for _ in range(2000))
    histogram = LatencyHistogram()
    for ns in times:
        histogram.record(ns)
    for p in (0.05, 1, 50, 90, 99, 99.9, 100):
        exact = times[max(0, -(-len(times) * p // 100).__int__() - 1)]
        assert exact <= histogram.percentile(p) <= exact * 1.25
    assert histogram.count == 2000
    assert histogram.max == times[-1] == histogram.percentile(100)


@pytest.mark.parametrize("ns", [0, 1, 3, 4, 5, 7, 8, 1000, 2**40, 2**62, 2**63 - 1, 2**70])
def test_one_time_alone_is_every_percentile(ns):
    histogram = LatencyHistogram()
    histogram.record(ns)
    assert histogram.percentile(1) == histogram.percentile(99) == histogram.max == ns


def test_merging_adds_up():
    left, right = LatencyHistogram(), LatencyHistogram()
    left.record(10)
    right.record(1000)
    left.merge(right)
    assert (left.count, left.max, left.percentile(50)) == (2, 1000, 11)


@pytest.mark.parametrize("p", [0, -1, 100.1])
def test_a_percentile_is_between_0_and_100(p):
    with pytest.raises(ValueError, match="p must"):
        LatencyHistogram().percentile(p)
