"""Ranges over real sockets, of groups and relays: exact and in order; what is missing is named."""

import time

import pytest

import p2pmsg
from p2pmsg import LogConfig, LossReport, Message, MessageBatch
from p2pmsg.errors import LossReason
from p2pmsg.message import Origin
from p2pmsg.reader import RangeReader
from p2pmsg.testing.proxy import TcpProxy
from tests.endpoints import free_port, lasting_endpoint
from tests.integration.peers import LOOPBACK, ROOT, eventually, take
from tests.integration.test_udp_multicast import GROUP
from tests.unit.p2pmsg.interrupts import interrupt_at


@pytest.fixture
def publisher():
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed") as publisher:
        yield publisher


@pytest.fixture
def reader(publisher):
    with RangeReader(publisher.endpoint) as reader:
        yield reader


def messages_of(items):
    found = []
    for item in items:
        assert isinstance(item, MessageBatch), item
        found += list(item)
    return found


def losses_of(items):
    return [
        (item.start, item.stop, item.reason) if isinstance(item, LossReport) else len(item)
        for item in items
    ]


def test_heads_name_the_publisher_and_its_streams(publisher, reader):
    assert reader.heads().streams == {}
    publisher.publish_many("a", [1, 2, 3])
    publisher.publish_many("b", [1])
    heads = reader.heads()

    assert (heads.publisher, heads.session) == ("feed", publisher.session)
    assert heads.recovery_endpoint == publisher.recovery_endpoint
    assert heads.streams == {
        "a": p2pmsg.reader.StreamHead(0, 3),
        "b": p2pmsg.reader.StreamHead(0, 1),
    }


def test_nobody_there_is_a_timeout():
    with RangeReader(lasting_endpoint(), timeout=0.3) as reader:
        with pytest.raises(TimeoutError, match="nobody is there"):
            reader.heads()
        with pytest.raises(TimeoutError, match="nobody is there"):
            reader.fetch("t", 0, 1)


def publisher_at(endpoint, **keywords):
    for _ in range(3000):
        try:
            return p2pmsg.Publisher(endpoint, **keywords)
        except p2pmsg.BindError:
            time.sleep(0.02)
    raise AssertionError(f"{endpoint} stays in use")


def test_a_range_comes_whole_and_in_order_with_all_columns(publisher, reader):
    for number in range(3000):
        publisher.publish("t", number, key=f"k{number}", timestamp_ns=number, headers={"n": number})
    publisher.flush()

    origin = Origin(publisher.session, "feed")
    assert messages_of(reader.fetch("t", 0, 3000)) == [
        Message("t", n, n, n, origin, f"k{n}", {"n": n}) for n in range(3000)
    ]


def test_frames_partly_outside_are_cut(publisher, reader):
    publisher.publish_many("t", list(range(100_000)))
    for start, stop in ((0, 1), (7, 7), (17, 93_011), (99_999, 100_000), (500, 1500)):
        batches = list(reader.fetch("t", start, stop))

        assert [m.sequence for m in messages_of(batches)] == list(range(start, stop))
        assert [m.value for m in messages_of(batches)] == list(range(start, stop))


def test_what_is_evicted_is_one_exact_loss():
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed", replay_bytes=64 * 1024) as publisher:
        for _ in range(50):
            publisher.publish_many("t", [bytes(1000)] * 100)
        with RangeReader(publisher.endpoint) as reader:
            head = reader.heads().streams["t"]
            assert 0 < head.earliest < head.next == 5000
            items = list(reader.fetch("t", 100, 5000))

    assert losses_of(items[:1]) == [(100, head.earliest, LossReason.EVICTED)]
    assert [m.sequence for m in messages_of(items[1:])] == list(range(head.earliest, 5000))
    assert (items[0].publisher, items[0].topic) == ("feed", "t")


def test_what_is_not_published_ends_by_the_deadline(publisher, reader):
    publisher.publish_many("t", [1, 2, 3])
    assert len(list(reader.fetch("t", 1, 3))) == 1  # it is connected
    begun = time.monotonic()
    items = list(reader.fetch("t", 1, 100_000, timeout=0.4))

    assert losses_of(items) == [2, (3, 100_000, LossReason.TIMEOUT)]
    assert time.monotonic() - begun >= 0.4


def test_another_session_has_gone(publisher, reader):
    publisher.publish_many("t", [1, 2, 3])
    items = reader.fetch("t", 0, 3, session=publisher.session ^ 1)

    assert losses_of(items) == [(0, 3, LossReason.PUBLISHER_GONE)]


def test_an_executor_connects_straight_and_sees_that_the_publisher_has_gone():
    with p2pmsg.Publisher(lasting_endpoint(), name="feed") as publisher:
        endpoint = publisher.endpoint
        publisher.publish_many("t", [1, 2, 3])
        reader = RangeReader(
            endpoint,
            recovery_endpoint=publisher.recovery_endpoint,
            session=publisher.session,
            publisher="feed",
        )
        assert len(messages_of(reader.fetch("t", 0, 3))) == 3
    with publisher_at(endpoint, name="second") as second, reader:
        # Longer than a test may take: it is said, and does not wait.
        items = list(reader.fetch("t", 0, 3, session=publisher.session, timeout=1000.0))

        assert losses_of(items) == [(0, 3, LossReason.PUBLISHER_GONE)]
        assert reader.heads().session == second.session


def test_a_reader_that_is_kept_does_not_take_a_publisher_that_has_ended_for_its_successor():
    with p2pmsg.Publisher(lasting_endpoint()) as first:
        reader = RangeReader(first.endpoint)
        assert [each.session for each in reader.sessions()] == [first.session]
    with reader:
        items = list(reader.fetch("t", 0, 3, session=first.session ^ 1, timeout=0.3))
        assert losses_of(items) == [(0, 3, LossReason.TIMEOUT)]
        with pytest.raises(TimeoutError):
            reader.sessions(0.3)


def test_a_connection_cut_again_and_again_costs_nothing():
    count = 200_000
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed") as publisher:
        publisher.publish_many("t", list(range(count)))
        with TcpProxy(publisher.recovery_endpoint) as proxy:
            reader = RangeReader(
                publisher.endpoint, recovery_endpoint=proxy.endpoint, session=publisher.session
            )
            got = []
            with reader:
                for turn, item in enumerate(reader.fetch("t", 0, count)):
                    got += [m.value for m in item]
                    if turn % 30 == 10:
                        proxy.cut()

    assert got == list(range(count))


def test_closing_twice_and_using_it_afterwards(publisher):
    reader = RangeReader(publisher.endpoint)
    publisher.publish_many("t", [1])
    items = reader.fetch("t", 0, 1)
    reader.close()
    reader.close()

    for use in (reader.heads, lambda: reader.fetch("t", 0, 1), lambda: next(items)):
        with pytest.raises(p2pmsg.ClosedError):
            use()


@pytest.mark.rounds(20, 1500)
def test_ctrl_c_anywhere_neither_loses_nor_doubles(publisher, reader, rounds):
    for start in range(0, 3000, 500):
        publisher.publish_many("t", list(range(start, start + 500)))
        publisher.flush()
    ours = str(ROOT / "p2pmsg")

    for step in range(0, 1500, 1500 // rounds):
        items = reader.fetch("t", 0, 3000, timeout=60.0)
        found = []

        def read(items=items, found=found):
            for item in items:
                found.extend(item.values)

        struck = interrupt_at(step, read, lambda code: code.co_filename.startswith(ours))
        read()
        assert found == list(range(3000)), struck


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"timeout": 0}, "timeout"),
        ({"recovery_endpoint": "tcp://h:1"}, "given where recovery_endpoint is"),
        ({"session": -1, "recovery_endpoint": "tcp://h:1"}, "session"),
        ({"session": 1, "recovery_endpoint": "nowhere"}, "nowhere"),
    ],
)
def test_bad_arguments_are_refused_by_name(keywords, message):
    with pytest.raises(p2pmsg.ConfigError, match=message):
        RangeReader("tcp://127.0.0.1:1", **keywords)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 2**63), ("0", 1)])
def test_bad_ranges_are_refused(reader, start, stop):
    with pytest.raises(p2pmsg.ConfigError, match="start and stop"):
        reader.fetch("t", start, stop)


COUNT = 2000


@pytest.fixture
def place():
    return GROUP.format(150, free_port())


@pytest.fixture
def publishers(make_publisher, place):
    made = {name: make_publisher(place, name=name) for name in ("a", "b", "c")}
    for name, publisher in made.items():
        publisher.publish_many("t", [f"{name}{number}" for number in range(COUNT)])
        publisher.publish("of " + name, 0)
    return made


def values_of(items):
    found = []
    for item in items:
        assert not isinstance(item, LossReport), item
        found += item.values
    return found


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_the_session_that_is_asked_for_is_found(publishers, place, name):
    session = publishers[name].session
    with p2pmsg.reader.RangeReader(place, session=session) as reader:
        for _ in range(3):
            heads = reader.heads(timeout=60)
            assert (heads.session, heads.publisher) == (session, name)
            assert set(heads.streams) == {"t", "of " + name}
        assert values_of(reader.fetch("t", 10, COUNT)) == [f"{name}{n}" for n in range(10, COUNT)]


def test_several_are_read_at_the_same_time_by_one_reader(publishers, place):
    with p2pmsg.reader.RangeReader(place) as reader:
        fetches = {
            name: reader.fetch("t", 0, COUNT, session=publisher.session)
            for name, publisher in publishers.items()
        }
        found = {name: [] for name in fetches}
        while fetches:
            for name, fetch in list(fetches.items()):
                batch = next(fetch, None)
                if batch is None:
                    del fetches[name]
                else:
                    found[name] += values_of([batch])
    for name, values in found.items():
        assert values == [f"{name}{number}" for number in range(COUNT)]


@pytest.fixture
def read(opened):
    return lambda place, **options: opened.enter_context(RangeReader(place.endpoint, **options))


def values(items):
    return [value for batch in items for value in batch.values]


def filled(make_publisher, make_relay, count=1):
    """Publishers that have published a thousand messages each, and are gone; and their relay."""
    publishers = [make_publisher(name=f"p{index}") for index in range(count)]
    relay = make_relay([publisher.endpoint for publisher in publishers])
    for index, publisher in enumerate(publishers):
        publisher.publish_many("t", list(range(1000 * index, 1000 * index + 1000)))
    eventually(lambda: list(relay.stats().streams.values()) == [(0, 1000)] * count)
    for publisher in publishers:
        publisher.close()
    return publishers, relay


def test_the_only_session_of_a_relay_is_taken(make_publisher, make_relay, read):
    (publisher,), relay = filled(make_publisher, make_relay)
    reader = read(relay)
    heads = reader.heads()
    assert (heads.session, heads.publisher) == (publisher.session, "p0")
    assert heads.recovery_endpoint == relay.recovery_endpoint
    assert heads.streams == {"t": p2pmsg.reader.StreamHead(0, 1000)}
    assert values(reader.fetch("t", 100, 900)) == list(range(100, 900))
    assert reader.sessions() == [p2pmsg.reader.SessionEntry(publisher.session, "p0", 1)]


def test_of_several_one_must_be_named(make_publisher, make_relay, read):
    publishers, relay = filled(make_publisher, make_relay, 3)
    with pytest.raises(p2pmsg.ConfigError, match=r"session must be given: .* serves 3 sessions"):
        read(relay).heads()
    listed = {(each.session, each.publisher) for each in read(relay).sessions()}
    assert listed == {(publisher.session, publisher.name) for publisher in publishers}
    for index, publisher in enumerate(publishers):
        reader = read(relay, session=publisher.session)
        assert reader.heads().publisher == publisher.name
        got = values(reader.fetch("t", 0, 1000))
        assert got == list(range(1000 * index, 1000 * index + 1000))


def test_a_relay_that_is_restarted_is_met_again(make_publisher, make_relay, read):
    publisher = make_publisher()
    publisher.publish_many("t", list(range(1000)))
    relay = make_relay(publisher.endpoint, lasting_endpoint())
    relay.wait_for_streams(1, timeout=60)
    reader = read(relay)
    eventually(lambda: reader.heads().streams == {"t": p2pmsg.reader.StreamHead(0, 1000)})
    relay.close(timeout=0.0)
    again = make_relay(publisher.endpoint, relay.endpoint)
    again.wait_for_streams(1, timeout=60)
    assert reader.heads(timeout=60).recovery_endpoint == again.recovery_endpoint
    assert values(reader.fetch("t", 0, 1000)) == list(range(1000))


def test_a_relays_log_is_refused_by_publishers_and_stays_the_relays(
    tmp_path, make_publisher, make_relay, make_subscriber
):
    publisher = make_publisher()
    relay = make_relay(publisher.endpoint, log=LogConfig(tmp_path))
    publisher.publish_many("t", list(range(100)))
    eventually(lambda: [head[1] for head in relay.stats().streams.values()] == [100])
    relay.close(timeout=0.0)
    with pytest.raises(p2pmsg.ConfigError, match="this is a relay's"):
        p2pmsg.Publisher(LOOPBACK, log=LogConfig(tmp_path))
    publisher.close(timeout=0.0)
    again = make_relay(publisher.endpoint, log=LogConfig(tmp_path))
    messages = take(make_subscriber(again.endpoint, start="earliest"), 100)
    assert [message.value for message in messages] == list(range(100))
