"""Each way to publish gives the same messages: fast, slow, alone, and many in one call."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import p2pmsg
from p2pmsg import PublisherConfig
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.wire import Frame, decode_columns
from tests.kept import kept_frames
from tests.unit.p2pmsg.publisher.served import take_sent

WALL_NS, SECOND = 1_700_000_000 * 10**9, 10**9
NUMBERS = count()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(max_size=20) | st.binary(max_size=300) | st.datetimes(timezones=st.timezones()),
    lambda inner: st.lists(inner, max_size=5)
    | st.dictionaries(st.text(max_size=3), inner, max_size=5),
    max_leaves=8,
)  # fmt: skip
MESSAGES = st.tuples(
    VALUES,
    st.none() | st.text(max_size=5),
    st.none() | st.integers(WALL_NS, WALL_NS + SECOND),
    st.none() | st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2),
)


def kept(core, topic):
    """Return all messages of a topic, as its frames have them; the time only where it was given."""
    found = []
    for row in kept_frames(core.replay, topic):
        frame = Frame(bytes(row.frame))
        values, times, keys, headers = decode_columns(frame)
        for at, value in enumerate(values):
            time_ns = times[at] if times else frame.base_timestamp_ns
            is_given = WALL_NS <= time_ns <= WALL_NS + SECOND
            columns = keys and keys[at], is_given and time_ns, headers and headers[at]
            found.append((value, *columns))
    return found


def alone(messages, exact):
    """Publish each message in a frame of its own, as of a stream that is idle."""
    config = PublisherConfig(exact_types=exact)
    core = PublisherCore(name="p", session=1, recovery="memory://r", config=config, now_ns=0)
    core.publish("t", 0, None, None, None, now_ns=0, wall_ns=1)
    core.flush(now_ns=0)
    for number, message in enumerate(messages, 1):
        take_sent(core)
        at_ns = number * SECOND
        if core.publish_alone("t", *message, at_ns, 1) < 0:
            core.publish("t", *message, now_ns=at_ns, wall_ns=1)
            core.flush(now_ns=at_ns)
    return kept(core, "t")[1:]


@pytest.mark.parametrize("exact", [None, True, False])
@settings(max_examples=15, deadline=None)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=30))
def test_all_ways_give_the_same(exact, messages):
    config = PublisherConfig(exact_types=exact, linger=1000.0, gather_within=1.0)
    publisher = p2pmsg.Publisher(f"inproc://ways-{next(NUMBERS)}", config=config)
    driver, peer = publisher._driver, publisher._peer
    with publisher:
        for topic in ("fast", "slow"):
            while topic not in peer.core.open_batches:  # it gathers from now on
                publisher.publish(topic, 0)
        for value, key, timestamp_ns, headers in messages:
            publisher.publish("fast", value, key, timestamp_ns, headers)
            driver.section.run(
                lambda *message: peer.publish("slow", *message, bounded=False),
                value, key, timestamp_ns, headers,
            )  # fmt: skip
        publisher.flush()
        expected = kept(peer.core, "slow")[-len(messages) :]
        assert kept(peer.core, "fast")[-len(messages) :] == expected
        assert alone(messages, exact) == expected
        values, keys, _, _ = zip(*messages, strict=True)
        publisher.publish_many("many", values, keys)
        many = kept(peer.core, "many")
        assert [one[:2] for one in many] == [one[:2] for one in expected]
