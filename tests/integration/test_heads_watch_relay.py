"""Following the heads of all sessions that a relay serves."""

import os

import pytest

import p2pmsg
from p2pmsg import HeadsWatch
from tests.integration.peers import LOOPBACK, eventually
from tests.places import lasting_place


@pytest.fixture
def make_relay(opened):
    def make(upstreams, endpoint=LOOPBACK, **options):
        made = p2pmsg.Relay(upstreams, endpoint, **options)
        opened.callback(made.close, timeout=0.0)
        return made

    return make


@pytest.fixture
def follow(opened):
    return lambda *places, **options: opened.enter_context(
        HeadsWatch([place.endpoint for place in places], **options)
    )


def nexts(watch, place, topic="t"):
    """The next sequence by publisher."""
    found = watch.sessions()[place.endpoint] or ()
    streams = [(heads.publisher, heads.streams.get(topic)) for heads in found]
    return {name: -1 if stream is None else stream.next for name, stream in streams}


@pytest.mark.parametrize("topics", [None, ["t"]])
def test_every_session_of_a_relay_is_followed(make_publisher, make_relay, follow, topics):
    publishers = [make_publisher(name=f"p{at}") for at in range(3)]
    relay = make_relay([each.endpoint for each in publishers])
    for count, publisher in enumerate(publishers, 1):
        publisher.publish_many("t", [b"x"] * count)
    watch = follow(relay, topics=topics)
    eventually(lambda: nexts(watch, relay) == {"p0": 1, "p1": 2, "p2": 3})
    assert watch.wait_until_asked(10)
    assert watch.is_relay(relay.endpoint)
    assert watch.heads() == {relay.endpoint: None}  # which one is not said

    publishers[1].publish_many("t", [b"x"] * 40)
    eventually(lambda: nexts(watch, relay) == {"p0": 1, "p1": 42, "p2": 3})
    publishers[0].close()  # the relay keeps what it had
    publishers[2].publish_many("t", [b"x"] * 50)
    eventually(lambda: nexts(watch, relay) == {"p0": 1, "p1": 42, "p2": 53})


def test_a_session_that_comes_later_is_taken_up(make_publisher, make_relay, follow):
    endpoint = lasting_place()
    first = make_publisher(endpoint, name="first")
    first.publish_many("t", [b"x"] * 10)
    relay = make_relay(endpoint)
    watch = follow(relay, topics=["t"])
    eventually(lambda: nexts(watch, relay) == {"first": 10})
    assert watch.heads()[relay.endpoint].session == first.session
    first.close()
    second = eventually(lambda: again_at(make_publisher, endpoint))
    second.publish_many("t", [b"x"] * 5)
    eventually(lambda: nexts(watch, relay) == {"first": 10, "second": 5})


def again_at(make_publisher, endpoint):
    try:
        return make_publisher(endpoint, name="second")
    except p2pmsg.BindError:
        return None


def test_a_relay_without_a_session_is_there_all_the_same(make_relay, make_publisher, follow):
    relay = make_relay("tcp://127.0.0.1:1")
    watch = follow(relay)
    assert watch.wait_until_asked(10)
    assert watch.sessions() == {relay.endpoint: ()}
    assert watch.heads() == {relay.endpoint: None}
    eventually(lambda: watch.is_reachable(relay.endpoint))


def test_a_relay_begun_anew_has_what_it_has_now(make_publisher, make_relay, follow):
    gone, publisher = make_publisher(name="gone"), make_publisher(name="feed")
    for each in (gone, publisher):
        each.publish_many("t", [b"x"] * 10)
    relay = make_relay([gone.endpoint, publisher.endpoint], lasting_place())
    watch = follow(relay, topics=["t"])
    eventually(lambda: nexts(watch, relay) == {"gone": 10, "feed": 10})
    gone.close()
    relay.close(timeout=0.0)
    make_relay(publisher.endpoint, relay.endpoint)
    eventually(lambda: nexts(watch, relay) == {"feed": 10})


def test_a_watch_in_a_forked_child_is_closed(make_publisher, follow):
    publisher = make_publisher()
    watch = follow(publisher)
    assert watch.wait_until_asked(10)
    child = os.fork()
    if not child:
        try:
            watch.heads()
        except p2pmsg.ClosedError:
            os._exit(7)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    # The end of the child has not touched the sockets of the parent.
    publisher.publish("t", 1)
    eventually(lambda: nexts(watch, publisher) == {publisher.name: 1})
