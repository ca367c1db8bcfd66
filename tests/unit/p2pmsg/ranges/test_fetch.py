"""One fetch without sockets: order, losses, what is asked again, and what nobody asked for."""

from random import Random

import pytest

import transports
from p2pmsg import control, wire
from p2pmsg.errors import AccessDeniedError, LossReason
from p2pmsg.publisher.packing import pack_slice
from p2pmsg.ranges.fetch import RangeFetch, take_reply
from p2pmsg.ranges.place import Place, Presence
from p2pmsg.wire import Frame, Kind

SESSION, TOPIC = 7, "t"
MS = 1_000_000
AT = transports.parse_endpoint("tcp://127.0.0.1:1")


@pytest.fixture
def place():
    return Place(AT, known=Presence(SESSION, "feed", AT))


def fetch_of(place, start, stop):
    return RangeFetch(place, TOPIC, start, stop, SESSION, 1000 * MS, rng=Random(1), now_ns=0)


def answer(fetch, start, count, now_ns=0, size=8):
    values = [(b"%d" % number).ljust(size) for number in range(start, start + count)]
    prefix = wire.stream_prefix(TOPIC, SESSION)
    data = pack_slice(prefix, start, 0, values, None, None, bytearray())[0]
    take_reply({(SESSION, TOPIC): fetch}, Frame(bytes(data)), now_ns)


def refuse(fetch, start, stop, reason):
    body = control.Refused(TOPIC, [(start, stop)], reason.value)
    frame = Frame(wire.control_frame(Kind.REFUSED, SESSION, body))
    take_reply({(SESSION, TOPIC): fetch}, frame, 0)


def asked(place):
    """What is asked for, and is not asked for any more then."""
    ranges = []
    while place.outbox:
        ranges += control.read_body(Frame(place.outbox.popleft()[1]), control.Nack).ranges
    return [tuple(one) for one in ranges]


def taken(fetch, now_ns=0):
    found = []
    while (item := fetch.next_item(now_ns)) is not None:
        is_loss = hasattr(item, "reason")
        found.append(
            (item.start, item.stop, item.reason)
            if is_loss
            else [int(each[:8]) for each in item.values]
        )
    return found


def test_a_refusal_says_nothing_of_what_came_before_it_and_is_one_loss(place):
    fetch = fetch_of(place, 0, 30)
    answer(fetch, 0, 10)
    refuse(fetch, 0, 15, LossReason.EVICTED)
    refuse(fetch, 15, 20, LossReason.EVICTED)
    answer(fetch, 20, 10)
    assert taken(fetch) == [[*range(10)], (10, 20, LossReason.EVICTED), [*range(20, 30)]]


def test_what_is_denied_is_raised_and_asked_for_again(place):
    fetch = fetch_of(place, 0, 10)
    asked(place)
    refuse(fetch, 0, 10, LossReason.DENIED)
    with pytest.raises(AccessDeniedError, match="'feed' gives us no right"):
        fetch.next_item(0)
    now_ns = fetch.ask(500 * MS)
    fetch.ask(now_ns)
    assert (0, 10) in asked(place)
    answer(fetch, 0, 10, now_ns)
    assert taken(fetch, now_ns) == [[*range(10)]]


def test_what_nobody_asked_for_takes_no_more_than_16_mib(place):
    fetch = fetch_of(place, 0, 10_000)
    for number in range(40):
        answer(fetch, number, 1, size=2**20)
    found = taken(fetch)
    assert found == [[number] for number in range(len(found))]
    assert 10 < len(found) <= 16
