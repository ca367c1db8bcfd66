import pytest

from recovery import RangeSet


@pytest.mark.parametrize(
    ("before", "added", "count", "after"),
    [
        pytest.param([], (2, 5), 3, [(2, 5)], id="into nothing"),
        pytest.param([(2, 5)], (5, 7), 2, [(2, 7)], id="touching behind"),
        pytest.param([(2, 5)], (0, 2), 2, [(0, 5)], id="touching before"),
        pytest.param([(2, 5)], (6, 7), 1, [(2, 5), (6, 7)], id="apart"),
        pytest.param([(2, 5), (7, 9)], (4, 8), 2, [(2, 9)], id="bridging two"),
        pytest.param([(2, 5), (7, 9)], (0, 20), 15, [(0, 20)], id="swallowing all"),
        pytest.param([(2, 5)], (3, 4), 0, [(2, 5)], id="inside"),
        pytest.param([(2, 5)], (9, 9), 0, [(2, 5)], id="empty"),
    ],
)
def test_adding_covers_and_merges(before, added, count, after):
    ranges = RangeSet(before)
    assert ranges.add(*added) == count
    assert list(ranges) == after
    assert ranges.size == sum(stop - start for start, stop in after)


@pytest.mark.parametrize(
    ("before", "removed", "count", "after"),
    [
        pytest.param([(2, 9)], (4, 6), 2, [(2, 4), (6, 9)], id="out of the middle"),
        pytest.param([(2, 9)], (0, 4), 2, [(4, 9)], id="off the front"),
        pytest.param([(2, 9)], (7, 20), 2, [(2, 7)], id="off the end"),
        pytest.param([(2, 4), (6, 9)], (3, 7), 2, [(2, 3), (7, 9)], id="across a hole"),
        pytest.param([(2, 4), (6, 9)], (4, 6), 0, [(2, 4), (6, 9)], id="the hole itself"),
        pytest.param([(2, 4)], (2, 2), 0, [(2, 4)], id="empty"),
        pytest.param([(2, 4)], (3, 3), 0, [(2, 4)], id="empty and inside"),
    ],
)
def test_removing_uncovers_and_splits(before, removed, count, after):
    ranges = RangeSet(before)
    assert ranges.remove(*removed) == count
    assert list(ranges) == after
    assert ranges.size == sum(stop - start for start, stop in after)


@pytest.mark.parametrize("method", ["add", "remove", "overlap", "missing"])
@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2)], ids=["negative", "reversed"])
def test_a_range_that_is_none_is_refused_by_name(method, start, stop):
    with pytest.raises(ValueError, match=rf"\[{start}, {stop}\)"):
        getattr(RangeSet(), method)(start, stop)


def test_the_ends_are_known_and_gone_after_clear():
    ranges = RangeSet([(1, 3), (7, 9)])
    assert (ranges.first, ranges.last) == ((1, 3), (7, 9))
    ranges.clear()
    assert (ranges.first, ranges.last, len(ranges), ranges.size) == (None, None, 0, 0)


def test_a_copy_goes_its_own_way():
    ranges = RangeSet([(1, 3)])
    other = ranges.copy()
    other.add(5, 6)
    assert ranges != other
    assert list(ranges) == [(1, 3)]
    assert ranges != [(1, 3)]
    assert repr(other) == "RangeSet([(1, 3), (5, 6)])"


def test_a_range_of_ten_million_costs_two_integers():
    ranges = RangeSet([(0, 10_000_000)])
    ranges.remove(5, 6)
    assert (len(ranges), ranges.size) == (2, 9_999_999)
