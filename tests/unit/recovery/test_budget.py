from recovery import TokenBucket

S = 1_000_000_000


def test_a_bucket_starts_full_and_fills_at_its_rate():
    bucket = TokenBucket(100, 50)
    assert bucket.available(7 * S) == 50
    bucket.take(50, 7 * S)
    assert bucket.available(7 * S + S // 10) == 10
    assert bucket.available(99 * S) == 50


def test_one_frame_may_go_into_debt_that_time_pays_back():
    bucket = TokenBucket(100, 50)
    bucket.take(149, 0)
    assert bucket.available(0) == -99
    assert bucket.ready_at_ns(0) == S
    assert bucket.available(S) == 1
    assert bucket.ready_at_ns(S) == S
