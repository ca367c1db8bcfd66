"""Streams that begin, settle, go back and are forgotten, without a subscriber's core."""

from random import Random

import pytest

from p2pmsg import control
from p2pmsg.config import SubscriberConfig
from p2pmsg.start import Start
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.resume import WentBack, find_below, find_rewound, note_probed
from p2pmsg.subscriber.streams import FORMER_MAX, StreamTable
from p2pmsg.wire import Frame
from recovery import NackConfig, ReceiverConfig, Rewound
from tests.unit.p2pmsg import subscriber_talk
from tests.unit.p2pmsg.subscriber_talk import data, head

CONFIG = SubscriberConfig(streams_max=2)


class Table(StreamTable):
    """A table whose deliveries are kept."""

    def __init__(self, *, policy="wait"):
        receiver = ReceiverConfig(nack=NackConfig(jitter=0.0))
        self.delivered = []
        super().__init__(
            CONFIG, receiver, start=Start("latest"), policy=GapPolicy(policy),
            cursor=None, tally=None, rng=Random(1),
            deliver=lambda stream, output: self.delivered.append((stream.topic, output)),
        )  # fmt: skip

    def take(self, stream, sequence):
        frame = Frame(data(sequence, topic=stream.topic))
        stream.receiver.receive(sequence, 1, len(frame.data), frame, now_ns=0)
        self.settle(stream)


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def session():
    return subscriber_talk.session()


def test_what_is_in_order_is_delivered_and_the_rest_is_a_gap(table, session):
    stream = table.add(session, "t")
    table.begin(stream, 0, now_ns=0)

    table.take(stream, 0)
    table.take(stream, 2)

    assert [output.sequence for _, output in table.delivered] == [0]
    assert list(table.gaps) == [stream]
    assert session.gaps == 1

    table.take(stream, 1)

    assert [output.sequence for _, output in table.delivered] == [0, 1, 2]
    assert (len(table.gaps), session.gaps) == (0, 0)


def test_there_are_no_more_streams_than_there_may_be(table, session):
    first, _ = table.add(session, "t"), table.add(session, "u")
    assert table.is_full
    table.drop(first)
    assert not table.is_full
    assert list(session.streams) == ["u"]


def test_the_counters_of_forgotten_streams_are_kept(table, session):
    stream = table.add(session, "t")
    table.begin(stream, 0, now_ns=0)
    table.take(stream, 0)
    table.forget(session)
    assert table.forgotten["delivered"] == 1
    assert table.count == 0


def test_a_stream_whose_publisher_went_back_begins_again(table, session):
    stream = table.add(session, "t")
    table.begin(stream, 0, now_ns=0)
    for sequence in range(5):
        table.take(stream, sequence)
    session.joined = True
    note_probed(session, 0)

    (back,) = find_rewound(session, control.Heads("feed", [head(3)]), 0)
    assert back == WentBack(stream, 3, 3)
    table.rewind(back, 0)

    new = session.streams["t"]
    assert (new.receiver.start, stream.retired, session.former) == (3, True, [stream])
    assert (table.delivered[-1][1].start, table.delivered[-1][1].stop) == (3, 5)
    assert isinstance(table.delivered[-1][1], Rewound)
    assert table.rewound == 1


def test_of_streams_that_go_back_again_and_again_the_last_are_remembered(table, session):
    table.begin(table.add(session, "t"), 0, now_ns=0)
    for _ in range(FORMER_MAX + 3):
        table.rewind(WentBack(session.streams["t"], 0, 0), 0)
    assert len(session.former) == FORMER_MAX
    assert table.count == FORMER_MAX + 1


def test_what_was_committed_and_is_gone_is_found_and_reported(table, session):
    heads = control.Heads("feed", [head(3)])
    (back,) = find_below(heads, {"t": 8, "other": 9}, ["t"], 0)
    assert (back.topic, back.began, back.committed) == ("t", 3, 8)

    table.rewind_committed(session, back._replace(began=2), 0)

    assert session.streams["t"].receiver.start == 2
    assert [(output.start, output.stop) for _, output in table.delivered] == [(2, 8)]


def test_a_position_that_was_only_asked_for_shows_nothing():
    heads = control.Heads("feed", [head(3)])
    assert list(find_below(heads, {"t": 8}, ["*"], 8)) == []
