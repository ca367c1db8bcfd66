"""RFC 5401's back-off and RFC 6298's time-out."""

from math import exp, log
from random import Random
from statistics import mean

import pytest

from recovery import Feedback
from recovery.checks import backed_off_ns

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


def test_the_wait_for_an_answer_doubles_up_to_its_ceiling_and_is_shortened_at_random():
    feedback = make(retry_interval=0.005)
    for attempt, expected_ms in enumerate([5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000]):
        drawn = [feedback.retry_ns(attempt) for _ in range(200)]
        assert 0.8 * expected_ms * MS <= min(drawn) < max(drawn) <= expected_ms * MS
    assert feedback.retry_ns(10**6) <= 1000 * MS


def test_the_wait_follows_how_long_answers_take():
    feedback = make()
    for _ in range(50):
        feedback.answered(50 * MS)
    assert 40 * MS < mean(feedback.retry_ns(0) for _ in range(100)) <= 60 * MS
    for _ in range(200):
        feedback.answered(100_000)
    assert mean(feedback.retry_ns(0) for _ in range(100)) <= 2 * MS  # the floor


def test_an_answer_is_waited_for_as_long_as_it_lies_unread():
    feedback = make()
    feedback.unread_ns = 300 * MS
    assert {feedback.retry_ns(attempt) for attempt in range(4)} == {300 * MS}
    assert feedback.retry_ns(20) > 300 * MS
    feedback.unread_ns = 0
    assert feedback.retry_ns(0) < 10 * MS


def test_waits_double_up_to_the_ceiling_and_jitter_shortens_them_by_its_part_at_most():
    waits = [backed_off_ns(10, 75, attempt, 0, Random(3)) for attempt in (0, 1, 2, 3, 4, 10**9)]
    assert waits == [10, 20, 40, 75, 75, 75]
    rng = Random(3)
    for attempt in range(5):
        longest = min(8000, 1000 << attempt)
        drawn = {backed_off_ns(1000, 8000, attempt, 0.25, rng) for _ in range(50)}
        assert len(drawn) > 20
        assert 0.75 * longest <= min(drawn) <= max(drawn) <= longest
