import pytest

from recovery import RangeSet


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
