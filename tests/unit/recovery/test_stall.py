import pytest

from recovery import StallGuard

MS = 1_000_000


def shedding(now_ms: int = 1000) -> StallGuard:
    """A guard with `stall_timeout` 1 s that began to stall 1000 ms ago and sheds since `now_ms`."""
    guard = StallGuard(1.0)
    guard.blocked(now_ns=(now_ms - 1000) * MS)
    guard.blocked(now_ns=now_ms * MS)
    guard.frames_shed = 0
    assert not guard.flowing
    return guard


def test_a_send_waits_so_long_in_all_however_often_it_is_woken():
    guard = StallGuard(0.1)
    assert guard.blocked(now_ns=0) == 100 * MS
    assert guard.blocked(now_ns=60 * MS) == 40 * MS
    assert guard.blocked(now_ns=100 * MS) == 0
    assert (guard.stalls, guard.frames_shed, guard.stalled_ns) == (1, 1, 100 * MS)


def test_a_success_ends_the_stall_and_the_next_has_its_full_time():
    guard = StallGuard(0.1)
    guard.blocked(now_ns=0)
    guard.succeeded(now_ns=90 * MS)
    guard.succeeded(now_ns=95 * MS)
    assert guard.blocked(now_ns=95 * MS) == 100 * MS
    assert (guard.flowing, guard.stalls, guard.stalled_ns) == (True, 2, 90 * MS)


def test_while_shedding_no_frame_waits_until_the_next_attempt():
    guard = shedding(1000)
    assert [guard.blocked(now_ns=now_ms * MS) for now_ms in (1000, 1500, 1999)] == [0, 0, 0]
    assert guard.frames_shed == 3


@pytest.mark.parametrize("probing", [False, True], ids=["a passing attempt", "a waiting attempt"])
def test_any_success_ends_the_shedding(probing):
    guard = shedding(1000)
    if probing:
        guard.blocked(now_ns=2000 * MS)
    guard.succeeded(now_ns=2001 * MS)
    assert guard.flowing
    assert guard.blocked(now_ns=2002 * MS) == 1000 * MS
