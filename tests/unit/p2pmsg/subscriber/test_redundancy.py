"""Two lines of one stream: how long a gap waits for the later one before it is asked for."""

import pytest

from tests.unit.p2pmsg.mold.feeds import MS, Feeds


def play(feeds, count, *, lag_ms, lost_on_a=(), lost_on_b=(), start=1, every_ms=1):
    """Play messages over line A, and over line B so much later; returns what was asked for."""
    asked = []
    for number in range(start, start + count + lag_ms // every_ms):
        if number < start + count and number not in lost_on_a:
            feeds.messages(number, number + 1)
        late = number - lag_ms // every_ms
        if late >= start and late not in lost_on_b:
            feeds.messages(late, late + 1, line=1)
        feeds.pass_ms(every_ms)
        asked += feeds.asked()
    return asked


def pass_over(feeds, number, *, line=0):
    """Let a line bring the messages before and after one, but not that one."""
    feeds.messages(number - 1, number, line=line)
    feeds.messages(number + 1, number + 2, line=line)


@pytest.mark.parametrize("lag_ms", [1, 10, 40, 90])
def test_what_the_later_line_brings_is_not_asked_for(lag_ms):
    feeds = Feeds(lines=2)
    lost = set(range(3, 1000, 7))
    assert play(feeds, 1000, lag_ms=lag_ms, lost_on_a=lost) == []
    assert feeds.taken() == [b"%d" % number for number in range(1, 1001)]
    assert feeds.core.by_line.counts[1].lag_ns == pytest.approx(lag_ms * MS, rel=0.2)


def test_what_both_lost_is_asked_for_as_soon_as_both_are_past_it():
    feeds = Feeds(lines=2)
    play(feeds, 500, lag_ms=10)
    asked = play(feeds, 8, lag_ms=10, start=501, lost_on_a={505}, lost_on_b={505})
    assert asked[0] == (505, 506)
    # Line B is past 505 with 506, 10 ms after line A was.
    feeds = Feeds(lines=2)
    play(feeds, 500, lag_ms=10)
    pass_over(feeds, 502)
    feeds.pass_ms(10)
    feeds.messages(501, 502, line=1)
    assert feeds.asked() == []
    feeds.messages(503, 504, line=1)
    feeds.pass_ms(0.1)
    assert feeds.asked() == [(502, 503)]


def warnings_of(feeds):
    """Take out what was to be warned of: (line, text)."""
    found = [(one.line, one.text) for one in feeds.core.commands if one.what == "warn"]
    feeds.core.commands.clear()
    return found


def bring(feeds, start, stop, *, every_ms=100):
    """Line A brings one message every 100 ms; line B nothing."""
    for number in range(start, stop):
        feeds.messages(number, number + 1)
        feeds.pass_ms(every_ms)


def test_what_a_dead_line_does_not_bring_is_counted_and_it_is_warned_of_once():
    feeds = Feeds(lines=2)
    play(feeds, 100, lag_ms=1)
    by_line = feeds.core.by_line
    bring(feeds, 101, 121)
    assert by_line.missing() == [0, 0]  # perhaps it is only late
    assert warnings_of(feeds) == []
    bring(feeds, 121, 201)
    assert by_line.missing() == [0, 100]
    ((line, text),) = warnings_of(feeds)
    assert line == 1
    assert text.startswith("nothing has come over this line for ")
    assert by_line.silent == {1: text}
    bring(feeds, 201, 301)
    assert by_line.missing() == [0, 200]
    assert warnings_of(feeds) == []
    feeds.messages(301, 302)
    feeds.messages(301, 302, line=1)
    feeds.pass_ms(1100)
    assert by_line.missing() == [0, 200]
    assert warnings_of(feeds) == [(1, "something comes over this line again")]
    assert by_line.silent == {}
