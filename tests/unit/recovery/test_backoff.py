from random import Random

import pytest

from recovery import Backoff


def test_delays_double_up_to_the_ceiling():
    backoff = Backoff(10, 75)
    assert [backoff.delay_ns(attempt) for attempt in range(5)] == [10, 20, 40, 75, 75]


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0])
def test_an_attempt_of_any_number_has_a_delay(factor):
    assert 10 <= Backoff(10, 100, factor=factor).delay_ns(10**9 if factor > 1 else 50) <= 100


def test_a_factor_of_one_never_grows():
    assert Backoff(10, 100, factor=1).delay_ns(50) == 10


def test_jitter_shortens_by_its_part_at_most_and_is_named_by_the_seed():
    backoffs = [Backoff(1000, 8000, jitter=0.25, rng=Random(3)) for _ in range(2)]
    delays = [[backoff.delay_ns(attempt % 5) for attempt in range(50)] for backoff in backoffs]
    assert delays[0] == delays[1]
    assert len(set(delays[0])) > 20
    for attempt, delay in enumerate(delays[0]):
        longest = min(8000, 1000 * 2 ** (attempt % 5))
        assert 0.75 * longest <= delay <= longest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial_ns": 0}, "initial_ns .* at least 1, not 0"),
        ({"ceiling_ns": 5}, "ceiling_ns .* at least 10, not 5"),
        ({"factor": 0.5}, "factor .* at least 1, not 0.5"),
        ({"jitter": 1.5, "rng": Random(1)}, "jitter must be at most 1, not 1.5"),
        ({"jitter": 0.1}, "rng is needed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_argument_out_of_its_limits_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Backoff(**{"initial_ns": 10, "ceiling_ns": 100} | arguments)


def test_a_negative_attempt_is_refused():
    with pytest.raises(ValueError, match="attempt"):
        Backoff(10, 100).delay_ns(-1)
