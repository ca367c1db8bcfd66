from p2pmsg.cli.log_replay import Pace

S = 10**9


def waits(pace, appended, now_s=100.0):
    """Return the waits of a replay that takes no time except for them."""
    found = []
    for appended_ns in appended:
        found.append(pace.wait_s(appended_ns, now_s=now_s))
        now_s += found[-1]
    return found


def test_the_original_pace():
    assert waits(Pace(1.0), [5 * S, 6 * S, 6 * S, 9 * S]) == [0.0, 1.0, 0.0, 3.0]


def test_ten_times_the_pace():
    assert waits(Pace(10.0), [0, 10 * S, 30 * S]) == [0.0, 1.0, 2.0]


def test_a_clock_that_went_back_counts_as_no_time():
    assert waits(Pace(1.0), [10 * S, 11 * S, 3 * S, 4 * S]) == [0.0, 1.0, 0.0, 1.0]


def test_who_is_late_catches_up():
    pace = Pace(1.0)
    pace.wait_s(0, now_s=0.0)
    assert pace.wait_s(1 * S, now_s=2.5) == 0.0
    assert pace.wait_s(2 * S, now_s=2.5) == 0.0
    assert pace.wait_s(3 * S, now_s=2.5) == 0.5
