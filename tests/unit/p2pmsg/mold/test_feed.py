"""A feed's gaps that nobody can be asked for, its end, and a session that begins again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmsg.mold import codec
from p2pmsg.mold import sessions as rules
from p2pmsg.mold.sessions import NAMES_MAX, session_id
from tests.unit.p2pmsg.mold.feeds import MS, NAME, Cursor, Feeds

UNCONFIRMED_MS = rules.UNCONFIRMED_NS // MS


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
    feeds.pass_ms(UNCONFIRMED_MS)
    feeds.messages(1, 3, name=b"S2".ljust(10))
    assert feeds.taken() == [b"1", b"2", b"3", b"1", b"2"]
    assert feeds.endings() == [("S1", 4, False)]


@pytest.fixture
def feeds():
    """A feed of which the first 100 messages have come."""
    feeds = Feeds()
    feeds.messages(1, 101)
    return feeds


def play_again(feeds, ms, *, line=0, incarnation=b"b", start=1):
    """Play a second incarnation: a message every 100 ms, for so long; returns the next sequence."""
    for number in range(start, start + ms // 100):
        feeds.messages(number, number + 1, line=line, incarnation=incarnation)
        feeds.pass_ms(100)
    return start + ms // 100


def test_a_session_that_begins_again_under_its_name_is_a_new_one(feeds):
    feeds.taken()
    following = play_again(feeds, UNCONFIRMED_MS)
    assert feeds.taken() == []
    feeds.messages(following, following + 1, incarnation=b"b")
    assert feeds.taken() == [b"b%d" % number for number in range(1, following + 1)]
    assert feeds.endings() == [("S1", 101, False)]
    assert list(feeds.sessions.restarts) == [("S1", 101, 1)]
    first, second = feeds.core.streams
    assert (first.peer.session, second.peer.session) == (
        session_id(NAME), session_id(NAME, 1),
    )  # fmt: skip
    assert (first.peer.name, second.peer.name) == ("S1", "S1")
    assert (second.receiver.start, second.receiver.missing, second.receiver.lost) == (1, 0, 0)
    assert first.receiver.lost == 0


def test_heartbeats_alone_show_that_a_session_began_again(feeds):
    for _ in range(4):
        feeds.pass_ms(1000)
        feeds.heartbeat(1)
    assert list(feeds.sessions.restarts) == [("S1", 101, 1)]
    feeds.messages(1, 2, incarnation=b"b")
    assert feeds.taken()[-1] == b"b1"


@pytest.mark.parametrize("old", [(1, 2), (1, 101), (50, 60)], ids=str)
def test_old_packets_again_are_no_new_session(feeds, old):
    """For ten seconds, while the feed says where it stands once a second."""
    for number in range(100):
        feeds.messages(*old)
        feeds.pass_ms(100)
        if number % 10 == 5:
            feeds.heartbeat(101)
    assert not feeds.sessions.restarts
    assert feeds.taken() == [b"%d" % number for number in range(1, 101)]
    assert feeds.stream.receiver.duplicates >= 100 * (old[1] - old[0])


def test_a_line_that_lags_by_seconds_is_no_new_session():
    feeds = Feeds(lines=2)
    for number in range(1, 101):
        feeds.messages(number, number + 1)
    for number in range(1, 101):  # 10 s, while the first line is dead
        feeds.messages(number, number + 1, line=1)
        feeds.pass_ms(100)
    assert not feeds.sessions.restarts
    assert len(feeds.core.peers) == 1


def test_what_seems_to_fill_a_gap_unconfirmed_is_not_taken_for_the_former_session():
    """The new session's packet 50 has other messages than the former one's, which is missing."""
    feeds = Feeds()
    feeds.messages(1, 50)
    feeds.messages(60, 101)
    feeds.taken()
    play_again(feeds, UNCONFIRMED_MS + 100, start=45)
    found = feeds.taken()
    assert found[0] == (50, 60, "publisher_gone")
    assert found[1:42] == [b"%d" % number for number in range(60, 101)]


def test_what_is_kept_unconfirmed_is_bounded_and_the_rest_is_asked_for(monkeypatch):
    monkeypatch.setattr(rules, "HELD_BYTES", 1000)
    feeds = Feeds()
    feeds.messages(1, 101)
    feeds.taken()
    play_again(feeds, UNCONFIRMED_MS + 200)
    assert feeds.core.invalid["unheld"] > 0
    feeds.pass_ms(200)
    (gap,) = set(feeds.asked())
    assert gap == (len(feeds.taken()) + 1, 22)


def test_a_cursor_knows_the_second_incarnation_of_a_name():
    feeds = Feeds(cursor=Cursor({session_id(NAME): 12_013, session_id(NAME, 1): 15}))
    play_again(feeds, UNCONFIRMED_MS + 100, incarnation=b"", start=10)
    assert feeds.taken() == [b"%d" % number for number in range(15, 31)]


def play_quickly(feeds, count, *, incarnation=b"", lost=()):
    """Play messages from the first on, one a packet, within 10 ms."""
    for number in range(1, count + 1):
        if number not in lost:
            feeds.messages(number, number + 1, incarnation=incarnation)
        feeds.pass_ms(10 / count)


@pytest.mark.parametrize("lost", [(), {1, 2, 30, 31, 100}], ids=["whole", "with losses"])
@pytest.mark.parametrize("incarnation", [b"", b"b"], ids=["the same", "others"])
def test_a_session_that_begins_again_and_is_at_its_head_at_once(incarnation, lost):
    """It is there before anybody could know that the former one has gone."""
    feeds = Feeds()
    play_quickly(feeds, 100)
    feeds.taken()
    feeds.pass_ms(rules.AGAIN_NS // MS)
    play_quickly(feeds, 100, incarnation=incarnation, lost=lost)
    feeds.heartbeat(101)
    feeds.pass_ms(100)
    for number in lost:
        feeds.messages(number, number + 1, incarnation=incarnation)
    assert feeds.taken() == [incarnation + b"%d" % number for number in range(1, 101)]
    assert feeds.endings() == [("S1", 101, False)]


@pytest.mark.parametrize(
    ("count", "pause_ms"),
    [(20, 5000), (100, 100)],
    ids=["too few packets", "too early"],
)
def test_packets_that_say_the_same_again_are_repetitions(count, pause_ms):
    feeds = Feeds()
    play_quickly(feeds, count)
    feeds.pass_ms(pause_ms)
    play_quickly(feeds, count)
    feeds.messages(count + 1, count + 2)
    assert not feeds.sessions.restarts
    assert feeds.stream.receiver.duplicates == count


@pytest.mark.parametrize("start", [90, 100])
def test_a_packet_that_only_contradicts_the_last_messages_is_dropped(start):
    """It may be anybody's: less than half of what there was has come again."""
    feeds = Feeds()
    feeds.messages(1, 101)
    feeds.pass_ms(1000)
    feeds.messages(start, 103, incarnation=b"x")
    assert feeds.core.invalid["differs"] == 1
    assert list(feeds.sessions.strange) == [("S1", start)]
    feeds.messages(101, 103)
    assert feeds.taken() == [b"%d" % number for number in range(1, 103)]
    assert not feeds.sessions.restarts


@pytest.mark.parametrize("following", ["message", "heartbeat"])
def test_a_forged_packet_does_not_end_a_session_that_goes_on(following):
    feeds = Feeds()
    for number in range(1, 31):
        feeds.messages(number, number + 1)
        feeds.pass_ms(20)
    feeds.messages(1, 40, incarnation=b"x")
    if following == "heartbeat":
        feeds.heartbeat(31)
    feeds.messages(31, 32)
    assert not feeds.sessions.restarts
    assert feeds.core.invalid["differs"] == 1
    assert feeds.taken() == [b"%d" % number for number in range(1, 32)]


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
