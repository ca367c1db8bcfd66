from recovery import RetransmitScheduler

MS = 1_000_000
S = 1_000_000_000


def scheduler(**options) -> RetransmitScheduler:
    return RetransmitScheduler(**options)


def serve(of: RetransmitScheduler, count: int, *, now_ns: int = 0, size: int = 10):
    """Answer so many jobs with one message each; returns who got what."""
    served = []
    for _ in range(count):
        job = of.next_job(now_ns=now_ns)
        if job is None:
            break
        requester, stream, start, _ = job
        of.sent(requester, stream, start, start + 1, size, now_ns=now_ns)
        served.append((requester, stream, start))
    return served


def test_what_was_just_answered_is_not_answered_again():
    answers = scheduler(linger=0.01)
    answers.request(b"a", "s", [(0, 2)], now_ns=0)
    serve(answers, 2)
    assert answers.request(b"a", "s", [(0, 3)], now_ns=10 * MS - 1) == []
    assert list(answers.waiting(b"a", "s")) == [(2, 3)]
    assert answers.messages_lingering == 2
    answers.request(b"a", "s", [(0, 2)], now_ns=10 * MS)
    answers.request(b"b", "s", [(0, 2)], now_ns=0)
    assert list(answers.waiting(b"a", "s")) == [(0, 3)]
    assert list(answers.waiting(b"b", "s")) == [(0, 2)]


def test_a_range_too_many_is_refused_by_name():
    answers = scheduler(ranges_max=2)
    refused = answers.request(b"a", "s", [(0, 1), (4, 5), (8, 9), (1, 2)], now_ns=0)
    assert refused == [(8, 9)]
    assert list(answers.waiting(b"a", "s")) == [(0, 2), (4, 5)]
    assert (answers.ranges_refused, answers.requester_stats()[b"a"].ranges_refused) == (1, 1)


def test_the_longest_idle_requester_makes_space_and_a_busy_one_does_not():
    answers = scheduler(requesters_max=2)
    answers.request(b"idle", "s", [(0, 1)], now_ns=0)
    serve(answers, 1)
    answers.request(b"busy", "s", [(0, 5)], now_ns=0)
    assert answers.request(b"new", "s", [(0, 5)], now_ns=0) == []
    assert sorted(answers.requester_stats()) == [b"busy", b"new"]
    assert answers.request(b"more", "s", [(0, 5)], now_ns=0) == [(0, 5)]


def starts(of: RetransmitScheduler, now_ms: int, count: int = 100) -> list[int]:
    return [start for *_, start in serve(of, count, now_ns=now_ms * MS)]


def test_what_is_on_its_way_is_not_sent_again():
    answers = scheduler()
    answers.request(b"a", "s", [(0, 5)], now_ns=0, received=100)
    assert starts(answers, 0) == [0, 1, 2, 3, 4]
    answers.request(b"a", "s", [(0, 5)], now_ns=S, received=100)
    assert starts(answers, 1000) == []
    answers.request(b"a", "s", [(3, 5)], now_ns=2 * S, received=105)  # it has dropped some
    assert starts(answers, 2000) == [3, 4]
