"""A feed's gaps that nobody can be asked for, its end, and a session that begins again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmsg.mold import codec
from p2pmsg.mold import sessions as rules
from p2pmsg.mold.sessions import NAMES_MAX, session_id
from tests.unit.p2pmsg.mold.feeds import MS, NAME, Cursor, Feeds

LATER_MS = rules.AGAIN_LATER_NS // MS


def test_what_nobody_can_be_asked_for_is_reported_after_a_short_wait():
    feeds = Feeds(can_ask=False)
    feeds.messages(1, 3)
    feeds.messages(5, 6)
    feeds.pass_ms(19)
    assert feeds.taken() == [b"1", b"2"]
    feeds.pass_ms(1)
    assert feeds.taken() == [(3, 5, "timeout"), b"5"]
    assert feeds.asked() == []
    assert feeds.stream.receiver.nacks.sent == 0


def test_the_end_is_reported_once_everything_was_handed_on():
    feeds = Feeds()
    feeds.messages(1, 4)
    feeds.end(6)
    assert feeds.endings() == []
    assert feeds.taken() == [b"1", b"2", b"3"]
    assert feeds.endings() == []
    feeds.messages(4, 6)
    assert feeds.taken() == [b"4", b"5"]
    assert feeds.endings() == [("S1", 6, True)]
    feeds.end(6)
    assert feeds.endings() == []


def test_an_end_that_lies_or_was_none_is_counted_and_taken_back():
    feeds = Feeds(lines=2)
    feeds.messages(1, 10)
    feeds.end(4, line=1)
    assert feeds.core.invalid["end"] == 1
    feeds.end(10)
    feeds.messages(10, 12)  # it goes on all the same
    feeds.taken()
    assert feeds.endings() == []
    feeds.end(12)
    assert feeds.endings() == [("S1", 12, True)]


def test_another_session_in_the_place_of_one_ends_it():
    feeds = Feeds()
    feeds.messages(1, 4)
    feeds.pass_ms(LATER_MS)
    feeds.messages(1, 3, name=b"S2".ljust(10))
    assert feeds.taken() == [b"1", b"2", b"3", b"1", b"2"]
    assert feeds.endings() == [("S1", 4, False)]


@pytest.fixture
def feeds():
    """A feed of which the first 100 messages have come."""
    feeds = Feeds()
    feeds.messages(1, 101)
    return feeds


def test_what_comes_of_it_before_that_is_certain_is_dropped_and_asked_for(feeds):
    """It might be of the former one, and fill its gap with another one's messages."""
    feeds.messages(150, 401)
    feeds.taken()
    for number in range(300, 321):
        feeds.pass_ms(100)
        feeds.messages(number, number + 1, incarnation=b"b")
    assert feeds.core.invalid["unconfirmed"] == 19
    assert feeds.taken()[0] == (101, 150, "publisher_gone")
    feeds.pass_ms(20)
    assert (1, 319) in feeds.asked()


def test_heartbeats_alone_show_that_a_session_began_again(feeds):
    feeds.pass_ms(1000)
    feeds.heartbeat(1)
    assert list(feeds.sessions.restarts) == [("S1", 101, 1)]
    feeds.messages(1, 2, incarnation=b"b")
    assert feeds.taken()[-1] == b"b1"


def test_late_and_repeated_packets_are_no_new_session(feeds):
    """Soon after the feed went on any of them; later those that are not of its beginning."""
    feeds.messages(101, 401)
    feeds.messages(1, 101)
    for number in range(40):
        feeds.pass_ms(250)
        feeds.messages(300, 310)
        if number % 4 == 3:
            feeds.heartbeat(401)
    assert not feeds.sessions.restarts
    assert feeds.taken() == [b"%d" % number for number in range(1, 401)]


def test_a_line_that_lags_by_seconds_is_no_new_session():
    feeds = Feeds(lines=2)
    for number in range(1, 101):
        feeds.messages(number, number + 1)
    for number in range(1, 101):  # 10 s, while the first line is dead
        feeds.messages(number, number + 1, line=1)
        feeds.pass_ms(100)
    assert not feeds.sessions.restarts
    assert len(feeds.core.peers) == 1


def test_a_cursor_knows_the_second_incarnation_of_a_name():
    feeds = Feeds(cursor=Cursor({session_id(NAME): 12_013, session_id(NAME, 1): 15}))
    for number in range(10, 31):
        feeds.messages(number, number + 1)
        feeds.pass_ms(100)
    assert feeds.taken() == [b"%d" % number for number in range(15, 31)]


sizes = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(lives=st.lists(sizes, min_size=2, max_size=4), lines=st.integers(1, 2), data=st.data())
@settings(max_examples=80, deadline=None)
def test_whatever_the_packets_no_incarnation_of_a_name_goes_on_as_another(lives, lines, data):
    """Each incarnation begins 0.6 s after the former one, or later; both lines bring the same."""
    feeds = Feeds(lines=lines)
    played = []
    for number, packets in enumerate(lives):
        incarnation, start = b"%c" % (97 + number), 1
        for size in packets:
            for line in data.draw(st.permutations(range(lines))):
                feeds.messages(start, start + size, incarnation=incarnation, line=line)
            start += size
            feeds.pass_ms(data.draw(st.sampled_from([0, 0, 10, 200])))
        played += [incarnation + b"%d" % sequence for sequence in range(1, start)]
        beats = 4 if number == len(lives) - 1 else data.draw(st.integers(0, 4))
        for _ in range(beats):
            feeds.pass_ms(1000)
            for line in range(lines):
                feeds.heartbeat(start, line=line)
        feeds.pass_ms(600)
    assert feeds.taken() == played
    streams = feeds.core.streams
    assert [s.receiver.head - 1 for s in streams] == [sum(packets) for packets in lives]
    assert all(s.receiver.missing == s.receiver.lost == 0 for s in streams)


def test_forged_names_take_no_place_of_the_session_that_goes_on():
    feeds = Feeds()
    feeds.messages(1, 11)
    feeds.taken()
    for number in range(NAMES_MAX + 1):
        feeds.messages(1, 2, name=b"%010d" % number)
    feeds.messages(11, 12)
    assert feeds.taken() == [b"11"]
    assert feeds.core.invalid["session"] == NAMES_MAX + 1
    session = session_id(NAME)
    answer = codec.read_packet(codec.packet(NAME, 12, [b"12"]))
    feeds.core.receive_reply(
        session, feeds.feeds[0].answer(session, answer, wall_ns=1), now_ns=feeds.now_ns
    )
    assert feeds.taken() == [b"12"]
