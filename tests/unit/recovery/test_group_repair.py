"""Repairs to a group: once for all, again only for who has waited in vain, and within rates."""

from recovery import GroupRepair

MS = 1_000_000
A, B, C = b"a", b"b", b"c"


def drain(repair, now_ns, size=100):
    """Answer all that may be answered now; returns the ranges."""
    found = []
    while (job := repair.next_job(now_ns=now_ns)) is not None:
        found.append(job[2:])
        repair.sent(*job, size, now_ns=now_ns)
    return found


def test_a_range_that_several_ask_for_is_sent_once():
    repair = GroupRepair()
    for requester in (A, B, C):
        assert repair.request(requester, "s", [(10, 20)], now_ns=0) == []
    assert drain(repair, 0) == [(10, 20)]


def test_should_not_repair_again_while_it_lingers():
    repair = GroupRepair()
    repair.request(A, "s", [(0, 10)], now_ns=0)
    assert drain(repair, 0) == [(0, 10)]
    repair.request(B, "s", [(0, 10)], now_ns=9 * MS)
    assert drain(repair, 9 * MS) == []
    repair.request(B, "s", [(0, 10)], now_ns=10 * MS)
    assert drain(repair, 10 * MS) == [(0, 10)]


def test_should_repair_again_for_who_has_waited_in_vain():
    repair = GroupRepair()
    repair.request(A, "s", [(0, 10)], now_ns=0)
    drain(repair, 0)
    repair.request(A, "s", [(0, 10)], attempt=2, now_ns=3 * MS)
    assert drain(repair, 3 * MS) == [(0, 10)]
    repair.request(B, "s", [(0, 10)], attempt=2, now_ns=4 * MS)  # the second one is on its way
    assert drain(repair, 4 * MS) == []
    repair.request(B, "s", [(0, 10)], attempt=3, now_ns=8 * MS)
    assert drain(repair, 8 * MS) == [(0, 10)]


def test_all_repairs_together_keep_to_the_rate():
    repair = GroupRepair(rate_bytes_s=16_000)
    for number in range(100):
        repair.request(A, "s", [(number, number + 1)], now_ns=0)
    repair.request(A, "s", [(200, 201)], now_ns=0)

    def one_by_one(now_ns):
        count = 0
        while (job := repair.next_job(now_ns=now_ns)) is not None:
            requester, stream, start, _ = job
            repair.sent(requester, stream, start, start + 1, 100, now_ns=now_ns)
            count += 1
        return count

    assert one_by_one(0) == 5
    due_ns = repair.next_deadline_ns(now_ns=0)
    assert 0 < due_ns <= 100 * MS
    assert one_by_one(1000 * MS) == 5  # the burst bounds it


def test_one_requester_keeps_to_its_budget_and_the_others_have_theirs():
    repair = GroupRepair(rate_bytes_s=32_000)
    for number in range(0, 1000, 2):
        repair.request(A, "s", [(number, number + 1)], now_ns=0)
    count = sum(len(drain(repair, ms * MS)) for ms in range(1000))
    assert count * 100 <= 2000 + 16_000 + 100
    repair.request(B, "s", [(5000, 5001)], now_ns=1000 * MS)
    assert (5000, 5001) in drain(repair, 1000 * MS)
