"""Progress bars."""

import io

import pytest

from p2pmsg.cli.progress import Bar, bar_text


def test_the_bar_shows_share_rate_and_what_is_left():
    assert bar_text(25, 100, 5.0, 71) == (
        "[#######......................]  25% 25 of 100 messages, 5/s, 15 s left"
    )
    assert bar_text(100, 100, 5.0, 79).endswith("] 100% 100 of 100 messages, 20/s")
    assert bar_text(0, 0, 0.0, 20) == "100% 0 of 0 messages"
    assert bar_text(5 * 10**8, 10**9, 2.0, 60, "bytes") == (
        "[#########.........]  50% 500 MB of 1 GB, 250 MB/s, 2 s left"
    )


@pytest.mark.parametrize("columns", [0, 1, 20, 60, 79, 200])
def test_the_bar_is_never_wider_than_the_terminal(columns):
    assert len(bar_text(123_456, 1_000_000, 7.0, columns)) <= columns


def test_the_bar_is_drawn_ten_times_a_second_after_one_and_cleared():
    file = io.StringIO()
    bar = Bar(file)
    for now_ms in range(0, 2000, 10):
        bar.update(now_ms, 2000, now_s=now_ms / 1000)
    assert file.getvalue().count("\r") == 10
    said = []
    bar.around(said.append)("text")

    assert said == ["text"]
    assert file.getvalue().endswith("\r\x1b[K")
    drawn = file.getvalue()
    bar.clear()
    assert file.getvalue() == drawn


def test_no_terminal_no_bar():
    bar = Bar(None)
    bar.update(1, 2, now_s=0.0)
    bar.clear()
