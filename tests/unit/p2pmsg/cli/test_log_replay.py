import pytest

from p2pmsg.cli.log_replay import Pace

S = 10**9


def waits(pace, appended, now_s=100.0):
    """Return the waits of a replay that takes no time except for them."""
    found = []
    for appended_ns in appended:
        found.append(pace.wait_s(appended_ns, now_s=now_s))
        now_s += found[-1]
    return found


@pytest.mark.parametrize(
    ("speed", "appended_s", "expected"),
    [
        (1.0, [5, 6, 6, 9], [0.0, 1.0, 0.0, 3.0]),
        (10.0, [0, 10, 30], [0.0, 1.0, 2.0]),
        (1.0, [10, 11, 3, 4], [0.0, 1.0, 0.0, 1.0]),  # a clock that went back counts as no time
    ],
)
def test_waits_are_those_of_the_log_by_the_speed(speed, appended_s, expected):
    assert waits(Pace(speed), [each * S for each in appended_s]) == expected


def test_who_is_late_catches_up():
    pace = Pace(1.0)
    pace.wait_s(0, now_s=0.0)
    assert pace.wait_s(1 * S, now_s=2.5) == 0.0
    assert pace.wait_s(2 * S, now_s=2.5) == 0.0
    assert pace.wait_s(3 * S, now_s=2.5) == 0.5
