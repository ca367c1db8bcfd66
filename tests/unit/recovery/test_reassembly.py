"""Parts to wholes, within bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery import Reassembler

MS = 1_000_000


@given(st.binary(min_size=1, max_size=300), st.integers(1, 40), st.randoms())
def test_parts_in_any_order_and_twice_make_the_whole_once(data, size, random):
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    order = [*range(len(parts)), *range(len(parts))]
    random.shuffle(order)
    made = Reassembler()
    seen, wholes = set(), []
    for index in order:
        if wholes:
            break
        seen.add(index)
        whole = made.add("k", index, len(parts), len(data), parts[index], now_ns=0)
        if whole is not None:
            wholes.append(whole)
        else:
            missing = {n for start, stop in made.missing("k") for n in range(start, stop)}
            assert missing == set(range(len(parts))) - seen
    assert wholes == [data]
    assert (len(made), made.bytes_held) == (0, 0)


REFUSED = {
    "a part beyond the last": (5, 5, 50, b"x"),
    "no part at all": (0, 0, 50, b"x"),
    "more parts than bytes": (0, 51, 50, b"x"),
    "a whole too large": (0, 5, 10**9, b"x"),
    "a part larger than the whole": (0, 2, 5, b"123456"),
    "an empty part": (0, 2, 5, b""),
}


@pytest.mark.parametrize("part", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_and_takes_no_memory(part):
    made = Reassembler()
    assert made.add("k", *part, now_ns=0) is None
    assert (made.refused, len(made), made.bytes_held) == (1, 0, 0)


def test_parts_that_contradict_one_another_are_refused():
    made = Reassembler()
    made.add("k", 0, 3, 30, b"x" * 10, now_ns=0)
    made.add("k", 1, 4, 30, b"x" * 10, now_ns=0)
    made.add("k", 1, 3, 31, b"x" * 10, now_ns=0)
    assert (made.refused, made.missing("k")) == (2, [(1, 3)])


def test_the_one_without_new_parts_makes_space():
    made = Reassembler(bytes_max=30)
    for key in "abc":
        made.add(key, 0, 2, 20, b"x" * 10, now_ns=0)
    made.add("a", 0, 2, 20, b"x" * 10, now_ns=0)  # nothing new
    made.add("d", 0, 2, 20, b"x" * 10, now_ns=0)
    assert ("a" in made, "b" in made, made.bytes_held) == (False, True, 30)


def test_old_ones_are_given_up():
    made = Reassembler(age_max=0.1)
    made.add("a", 0, 2, 20, b"x" * 10, now_ns=0)
    made.add("b", 0, 2, 20, b"x" * 10, now_ns=100 * MS)
    assert ("a" in made, made.bytes_held) == (False, 10)
