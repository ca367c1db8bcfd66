import io

import pytest

from p2pmsg.cli.log_replay import Bar, Pace, bar_text


def test_the_bar_shows_share_rate_and_what_is_left():
    assert bar_text(25, 100, 5.0, 71) == (
        "[#######......................]  25% 25 of 100 messages, 5/s, 15 s left"
    )
    assert bar_text(100, 100, 5.0, 79).endswith("] 100% 100 of 100 messages, 20/s")
    assert bar_text(0, 0, 0.0, 20) == "100% 0 of 0 messages"


@pytest.mark.parametrize("columns", [0, 1, 20, 60, 79, 200])
def test_the_bar_is_never_wider_than_the_terminal(columns):
    assert len(bar_text(123_456, 1_000_000, 7.0, columns)) <= columns


def test_the_bar_is_drawn_ten_times_a_second_and_cleared():
    file = io.StringIO()
    bar = Bar(file)
    for now_ms in range(0, 1000, 10):
        bar.update(now_ms, 1000, now_s=now_ms / 1000)
    assert file.getvalue().count("\r") == 10
    told = []
    bar.around(told.append)("news")

    assert told == ["news"]
    assert file.getvalue().endswith("\r\x1b[K")
    drawn = file.getvalue()
    bar.clear()
    assert file.getvalue() == drawn


def test_no_terminal_no_bar():
    bar = Bar(None)
    bar.update(1, 2, now_s=0.0)
    bar.clear()


S = 10**9


def waits(pace, appended, now_s=100.0):
    """Return the waits of a replay that takes no time but for them."""
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


def test_a_long_pause_is_shortened():
    assert waits(Pace(1.0, 2.0), [0, 1 * S, 3600 * S, 3601 * S]) == [0.0, 1.0, 2.0, 1.0]


def test_who_is_late_catches_up():
    pace = Pace(1.0)
    pace.wait_s(0, now_s=0.0)
    assert pace.wait_s(1 * S, now_s=2.5) == 0.0
    assert pace.wait_s(2 * S, now_s=2.5) == 0.0
    assert pace.wait_s(3 * S, now_s=2.5) == 0.5
