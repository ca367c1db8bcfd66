from hypothesis import given, settings
from hypothesis import strategies as st

from recovery import RangeSet

STARTS = st.integers(0, 40)
CALLS = st.lists(
    st.tuples(st.sampled_from(["add", "remove"]), STARTS, st.integers(0, 12)), max_size=40
)


def ranges_of(sequences: set[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for sequence in sorted(sequences):
        if ranges and ranges[-1][1] == sequence:
            ranges[-1] = (ranges[-1][0], sequence + 1)
        else:
            ranges.append((sequence, sequence + 1))
    return ranges


@settings(max_examples=300, deadline=None)
@given(CALLS, STARTS, st.integers(0, 20))
def test_a_range_set_is_a_set_of_integers(calls, start, length):
    ranges, model = RangeSet(), set()
    for name, low, count in calls:
        before = len(model)
        wanted = set(range(low, low + count))
        model = model | wanted if name == "add" else model - wanted
        assert getattr(ranges, name)(low, low + count) == abs(len(model) - before)
        assert list(ranges) == ranges_of(model)
        assert ranges.size == len(model)
        assert len(ranges) == len(ranges_of(model))
    window = set(range(start, start + length))
    assert ranges.overlap(start, start + length) == ranges_of(model & window)
    assert ranges.missing(start, start + length) == ranges_of(window - model)
    for sequence in range(60):
        assert (sequence in ranges) == (sequence in model)
        whole = [r for r in ranges if r[0] <= sequence < r[1]]
        assert ranges.containing(sequence) == (whole[0] if whole else None)
    assert ranges == RangeSet((n, n + 1) for n in model) == ranges.copy()
