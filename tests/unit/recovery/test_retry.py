from random import Random

from recovery import RetryPolicy


def test_waits_double_up_to_the_longest_one():
    policy = RetryPolicy(first_ns=10, most_ns=100)
    assert [policy.wait_ns(attempt) for attempt in range(6)] == [10, 20, 40, 80, 100, 100]
    assert policy.wait_ns(10_000) == 100


def test_a_factor_of_one_waits_the_same_each_time():
    policy = RetryPolicy(first_ns=10, most_ns=100, factor=1.0)
    assert policy.wait_ns(0) == policy.wait_ns(9) == 10


def test_a_measured_first_wait_stands_for_the_own_one():
    policy = RetryPolicy(first_ns=10, most_ns=100)
    assert policy.wait_ns(1, first_ns=30) == 60
    assert policy.wait_ns(3, first_ns=30) == 100


def test_jitter_takes_off_at_most_its_part():
    policy = RetryPolicy(first_ns=1000, most_ns=100_000, jitter=0.1)
    rng = Random(1)
    waits = [policy.wait_ns(3, rng) for _ in range(200)]
    assert all(7200 <= wait <= 8000 for wait in waits)
    assert len(set(waits)) > 50


def test_it_is_given_up_at_the_deadline_or_never():
    assert not RetryPolicy(first_ns=10, most_ns=100).is_over(0, 2**62)
    policy = RetryPolicy(first_ns=10, most_ns=100, deadline_ns=1000)
    assert not policy.is_over(5, 1004)
    assert policy.is_over(5, 1005)
