"""Following the heads of many publishers, and of all sessions that a relay serves."""

import threading

import pytest

import p2pmsg
from p2pmsg.reader import HeadsWatch
from tests.endpoints import free_port, lasting_endpoint
from tests.integration.peers import ROOT, eventually
from tests.integration.test_udp_multicast import GROUP
from tests.unit.p2pmsg.interrupts import interrupt_at


def next_of(watch, endpoint, topic="t"):
    heads = watch.heads()[endpoint].only
    return -1 if heads is None or topic not in heads.streams else heads.streams[topic].next


def test_heads_of_many_publishers_are_followed_in_one_thread():
    peers = [p2pmsg.Publisher("tcp://127.0.0.1:0", name=f"p{at}") for at in range(20)]
    before = set(threading.enumerate())
    try:
        with HeadsWatch([peer.endpoint for peer in peers], topics=["t"]) as watch:
            assert watch.wait_until_asked(60)
            assert len(set(threading.enumerate()) - before) == 1
            for round_ in range(1, 4):
                for peer in peers:
                    peer.publish_many("t", [b"x"] * 5)
                    peer.publish("other", b"x")
                eventually(lambda r=round_: all(next_of(watch, p.endpoint) == 5 * r for p in peers))
            assert all(watch.heads()[peer.endpoint].reachable for peer in peers)
            assert "other" not in watch.heads()[peers[0].endpoint].only.streams
        with pytest.raises(p2pmsg.ClosedError):
            watch.heads()
    finally:
        for peer in peers:
            peer.close(0)


def test_heartbeats_report_changes_between_two_questions():
    with p2pmsg.Publisher("tcp://127.0.0.1:0") as publisher:
        publisher.publish("t", 1)
        with HeadsWatch([publisher.endpoint], topics=["t"], refresh=3600.0) as watch:
            eventually(lambda: next_of(watch, publisher.endpoint) == 1)
            for count in range(2, 6):
                publisher.publish("t", 1)
                eventually(lambda n=count: next_of(watch, publisher.endpoint) == n)


def test_a_publisher_that_goes_and_one_that_comes_in_its_place():
    endpoint = lasting_endpoint()
    with p2pmsg.Publisher(endpoint, name="first") as first:
        first.publish("t", 1)
        watch = HeadsWatch([endpoint], topics=["t"])
        eventually(lambda: next_of(watch, endpoint) == 1)
    with watch:
        eventually(lambda: not watch.heads()[endpoint].reachable)
        assert watch.heads()[endpoint].only.publisher == "first"
        with p2pmsg.Publisher(endpoint, name="second") as second:
            eventually(lambda: watch.heads()[endpoint].only.publisher == "second")
            view = watch.heads()[endpoint]
            assert (view.only.session, view.reachable) == (second.session, True)
            assert [heads.publisher for heads in view.former.values()] == ["first"]
            assert view.former[first.session].streams["t"].next == 1


def test_endpoints_that_come_and_go():
    with p2pmsg.Publisher("tcp://127.0.0.1:0") as first:
        with p2pmsg.Publisher("tcp://127.0.0.1:0") as second:
            with HeadsWatch([first.endpoint]) as watch:
                assert watch.wait_until_asked(60)
                known = watch.heads()[first.endpoint].only
                watch.set_endpoints([first.endpoint, second.endpoint])
                assert watch.wait_until_asked(60)
                assert watch.heads()[first.endpoint].only == known
                watch.set_endpoints([second.endpoint])
                assert list(watch.heads()) == [second.endpoint]
                watch.set_endpoints([])
                assert watch.heads() == {}


@pytest.mark.rounds(15, 400)
def test_ctrl_c_anywhere_leaves_it_at_work(rounds):
    ours = str(ROOT / "p2pmsg")
    with p2pmsg.Publisher("tcp://127.0.0.1:0") as publisher:
        with HeadsWatch([publisher.endpoint], topics=["t"]) as watch:

            def use():
                watch.set_endpoints([publisher.endpoint])
                watch.wait_until_asked(0.001)
                watch.heads()

            for step in range(0, 400, 400 // rounds):
                sequence = publisher.publish("t", 1)
                interrupt_at(step, use, lambda code: code.co_filename.startswith(ours))
                eventually(lambda n=sequence + 1: next_of(watch, publisher.endpoint) == n)
            assert watch.heads()[publisher.endpoint].reachable


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"endpoints": ["nowhere"]}, "nowhere"),
        ({"endpoints": ["tcp://127.0.0.1:1"], "refresh": 0}, "refresh"),
    ],
)
def test_bad_arguments_are_refused(arguments, field):
    with pytest.raises(p2pmsg.ConfigError, match=field):
        HeadsWatch(**arguments)


def test_a_multicast_publisher_is_asked_and_its_heartbeats_are_heard():
    place = GROUP.format(210, free_port())
    with p2pmsg.Publisher(place) as publisher:
        publisher.publish("t", 1)
        with HeadsWatch([place], topics=["t"], refresh=30.0) as watch:
            assert watch.wait_until_asked(60)
            publisher.publish("t", 2)
            eventually(lambda: next_of(watch, place) == 2)
            assert watch.heads()[place].reachable


@pytest.fixture
def follow(opened):
    return lambda *places, **options: opened.enter_context(
        HeadsWatch([place.endpoint for place in places], **options)
    )


def nexts(watch, place, topic="t"):
    """The next sequence by publisher."""
    found = watch.heads()[place.endpoint].sessions.values()
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
    assert watch.wait_until_asked(60)
    view = watch.heads()[relay.endpoint]
    assert (view.is_relay, view.only) == (True, None)  # which one is not said

    publishers[1].publish_many("t", [b"x"] * 40)
    eventually(lambda: nexts(watch, relay) == {"p0": 1, "p1": 42, "p2": 3})
    publishers[0].close()  # the relay keeps what it had
    publishers[2].publish_many("t", [b"x"] * 50)
    eventually(lambda: nexts(watch, relay) == {"p0": 1, "p1": 42, "p2": 53})


def test_every_publisher_of_a_group_is_followed(make_publisher, follow):
    place = GROUP.format(211, free_port())
    publishers = [make_publisher(place, name=f"p{at}") for at in range(3)]
    for count, publisher in enumerate(publishers, 1):
        publisher.publish_many("t", [b"x"] * count)
    watch = follow(publishers[0], topics=["t"])
    place = publishers[0]
    assert watch.wait_until_asked(60)
    eventually(lambda: nexts(watch, place) == {"p0": 1, "p1": 2, "p2": 3})
    publishers[2].publish_many("t", [b"x"] * 50)
    eventually(lambda: nexts(watch, place) == {"p0": 1, "p1": 2, "p2": 53})
    publishers[0].close(0)
    publishers[1].publish_many("t", [b"x"] * 40)
    eventually(lambda: nexts(watch, place) == {"p0": 1, "p1": 42, "p2": 53})
    make_publisher(place.endpoint, name="p0").publish_many("t", [b"x"] * 5)
    eventually(lambda: nexts(watch, place) == {"p0": 5, "p1": 42, "p2": 53})
    at = place.endpoint
    eventually(lambda: [one.publisher for one in watch.heads()[at].former.values()] == ["p0"])


def test_a_relay_begun_again_has_what_it_has_now(make_publisher, make_relay, follow):
    gone, publisher = make_publisher(name="gone"), make_publisher(name="feed")
    for each in (gone, publisher):
        each.publish_many("t", [b"x"] * 10)
    relay = make_relay([gone.endpoint, publisher.endpoint], lasting_endpoint())
    watch = follow(relay, topics=["t"])
    eventually(lambda: nexts(watch, relay) == {"gone": 10, "feed": 10})
    gone.close()
    relay.close(timeout=0.0)
    make_relay(publisher.endpoint, relay.endpoint)
    eventually(lambda: nexts(watch, relay) == {"feed": 10})


def test_a_watch_that_is_closed_while_somebody_waits_has_no_answers():
    watch = HeadsWatch(["tcp://127.0.0.1:9"])
    closer = threading.Timer(0.2, watch.close)
    closer.start()
    assert not watch.wait_until_asked(60)
    closer.join()
