"""What is missing of a session when the feed's next one has begun: it is still asked for."""

import pytest

from p2pmsg.mold.sessions import session_id
from p2pmsg.subscriber.effects import Action
from tests.unit.p2pmsg.mold.feeds import Feeds

FIRST, SECOND = b"E1".ljust(10), b"E2".ljust(10)


@pytest.fixture
def feeds():
    """A feed whose first session lacks [3, 10), has ended, and was followed by the second."""
    feeds = Feeds(start="earliest")
    feeds.messages(1, 3, name=FIRST)
    feeds.end(10, name=FIRST)
    feeds.messages(1, 2, name=SECOND, incarnation=b"b")
    return feeds


def closed(feeds):
    """Take out the sessions whose requests are over."""
    commands = [feeds.core.commands.popleft() for _ in range(len(feeds.core.commands))]
    return [one.session for one in commands if one.what is Action.DISCONNECT]


def test_what_nobody_answers_is_lost_after_its_usual_time(feeds):
    feeds.taken()
    feeds.pass_ms(9000)
    assert feeds.taken() == []
    feeds.pass_ms(1500)
    ((start, stop, _),) = feeds.taken()
    assert (start, stop) == (3, 10)
    assert feeds.endings() == [("E1", 10, True)]
    assert closed(feeds) == [session_id(FIRST)]


def test_without_a_request_server_it_is_lost_at_once():
    feeds = Feeds(can_ask=False)
    feeds.messages(1, 3, name=FIRST)
    feeds.end(10, name=FIRST)
    feeds.messages(1, 2, name=SECOND)
    assert feeds.taken() == [b"1", b"2", (3, 10, "publisher_gone"), b"1"]


def test_a_former_name_that_begins_again_is_not_asked_for_any_more(feeds):
    """Its servers would answer with the new session's messages."""
    feeds.taken()
    feeds.end(2, name=SECOND)
    for number in (1, 2):
        feeds.pass_ms(600)
        feeds.messages(number, number + 1, name=FIRST, incarnation=b"c")
    taken = feeds.taken()
    assert taken[0] == (3, 10, "publisher_gone")
    assert taken[1:] == [b"c1", b"c2"]
