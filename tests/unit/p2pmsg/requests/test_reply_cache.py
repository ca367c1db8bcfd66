"""The cache of replies and requests at work: when nobody waits for them any more."""

from p2pmsg.requests.frames import wait_ms_of
from p2pmsg.requests.reply_cache import NEVER_NS, ReplyCache

ONE, OTHER = (1, 1, "", ""), (1, 2, "", "")


def make():
    return ReplyCache(10, 1000, 10**9)


def test_a_request_is_over_when_its_requester_stops_waiting():
    cache = make()
    assert cache.begin(ONE, b"a", 100) == (True, None)
    assert not cache.is_over(ONE, 99)
    assert cache.is_over(ONE, 100)
    assert not cache.is_over(OTHER, 100)


def test_asked_again_it_waits_for_the_longer_time_and_is_answered_where_it_was_asked_last():
    cache = make()
    cache.begin(ONE, b"a", 100)
    assert cache.begin(ONE, b"b", 300) == (False, None)
    assert not cache.is_over(ONE, 299)
    assert cache.begin(ONE, b"c", 200) == (False, None)
    assert not cache.is_over(ONE, 299)
    assert cache.is_over(ONE, 300)
    assert cache.end(ONE, b"reply", now_ns=400) == b"c"
    assert cache.begin(ONE, b"a", 100) == (False, b"reply")
    assert not cache.is_over(ONE, 1000)


def test_one_that_does_not_say_how_long_it_waits_is_never_over():
    cache = make()
    cache.begin(ONE, b"a")
    assert not cache.is_over(ONE, NEVER_NS - 1)
    cache.begin(OTHER, b"a", 100)
    cache.begin(OTHER, b"a", NEVER_NS)
    assert not cache.is_over(OTHER, 10**18)


def test_what_was_left_is_new_when_it_is_asked_again():
    cache = make()
    cache.begin(ONE, b"a", 100)
    cache.drop(ONE)
    assert cache.begin(ONE, b"a", 300) == (True, None)
    assert not cache.is_over(ONE, 299)


def test_a_reply_is_pending_over_the_connection_that_it_was_sent_over():
    cache, here, other = make(), b"\0her", b"\0oth"
    assert not cache.is_pending(ONE, here, now_ns=0)
    cache.keep(ONE, b"reply", now_ns=0)
    assert not cache.is_pending(ONE, here, now_ns=0)  # there was no space for it
    cache.on_sent(ONE, here, now_ns=0)
    assert cache.is_pending(ONE, here, now_ns=29 * 10**9)
    assert not cache.is_pending(ONE, here, now_ns=30 * 10**9)
    assert not cache.is_pending(ONE, other, now_ns=0)
    assert not cache.is_pending(OTHER, here, now_ns=0)


def test_a_request_never_says_0_which_is_no_limit_and_never_less_than_it_waits():
    assert [wait_ms_of(s) for s in (-1, 0, 1e-9, 0.0019, 5)] == [1, 1, 1, 2, 5001]
    assert wait_ms_of(1e9) == 2**32 - 1
