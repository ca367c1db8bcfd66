from recovery import RetransmitScheduler, retransmit


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


def test_the_longest_idle_requester_makes_space_and_a_busy_one_does_not(monkeypatch):
    monkeypatch.setattr(retransmit, "REQUESTERS_MAX", 2)
    answers = scheduler()
    answers.request(b"idle", "s", [(0, 1)], now_ns=0)
    serve(answers, 1)
    answers.request(b"busy", "s", [(0, 5)], now_ns=0)
    assert answers.request(b"new", "s", [(0, 5)], now_ns=0) == []
    assert list(answers.waiting(b"new", "s")) == [(0, 5)]
    assert answers.request(b"more", "s", [(0, 5)], now_ns=0) == [(0, 5)]
