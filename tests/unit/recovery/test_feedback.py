"""RFC 5401's back-off and RFC 6298's time-out."""

from math import exp, log
from random import Random
from statistics import mean

import pytest

from recovery import Feedback

MS = 1_000_000


def make(seed=1, group_size=10, **options):
    feedback = Feedback(Random(seed), **options)
    feedback.group_size = group_size
    return feedback


def test_a_lone_receiver_does_not_wait():
    assert {make(group_size=1).delay_ns() for _ in range(100)} == {0}


@pytest.mark.parametrize(
    ("group_size", "longest_ms"), [(4, 2.01), (10, 3.34), (1000, 10), (10**6, 10)]
)
def test_the_larger_the_group_the_longer_the_wait(group_size, longest_ms):
    feedback = make(group_size=group_size)
    drawn = [feedback.delay_ns() for _ in range(5000)]
    assert min(drawn) >= 0
    assert max(drawn) <= longest_ms * MS
    assert max(drawn) > 0.9 * longest_ms * MS


def test_waits_are_distributed_as_the_rfc_has_it():
    """P(t < x) = (e^(λx/T) - 1) / (e^λ - 1), with λ = ln(group size) + 1."""
    feedback = make(group_size=1000)
    rate = log(1000) + 1
    drawn = sorted(feedback.delay_ns() / (10 * MS) for _ in range(20_000))
    for part in (0.5, 0.7, 0.9, 0.99):
        expected = (exp(rate * part) - 1) / (exp(rate) - 1)
        found = sum(one < part for one in drawn) / len(drawn)
        assert found == pytest.approx(expected, abs=0.015), part


def test_the_wait_follows_how_long_answers_take():
    feedback = make()
    for _ in range(50):
        feedback.answer.answered(50 * MS)
    assert 40 * MS < mean(feedback.retry_ns(0) for _ in range(100)) <= 60 * MS
    for _ in range(200):
        feedback.answer.answered(100_000)
    assert mean(feedback.retry_ns(0) for _ in range(100)) <= 2 * MS  # the floor
