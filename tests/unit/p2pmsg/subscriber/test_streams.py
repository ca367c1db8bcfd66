"""Streams that begin, drain, go back and are forgotten, without a subscriber's core."""

import pytest

from p2pmsg.config import SubscriberConfig
from p2pmsg.start import Start
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.resume import WentBack
from p2pmsg.subscriber.streams import FORMER_MAX, StreamTable
from recovery import ReceiverConfig
from tests.still import Still
from tests.unit.p2pmsg import subscriber_talk

CONFIG = SubscriberConfig(streams_max=2)


class Table(StreamTable):
    """A table whose deliveries are kept."""

    def __init__(self, *, policy="wait"):
        receiver = ReceiverConfig()
        self.delivered = []
        super().__init__(
            CONFIG, receiver, start=Start("latest"), policy=GapPolicy(policy),
            cursor=None, by_line=None, rng=Still(1),
            deliver=lambda stream, output: self.delivered.append((stream.topic, output)),
        )  # fmt: skip


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def session():
    return subscriber_talk.session()


def test_of_streams_that_go_back_again_and_again_the_last_are_remembered(table, session):
    table.begin(table.add(session, "t"), 0, now_ns=0)
    for _ in range(FORMER_MAX + 3):
        table.rewind(session, WentBack("t", 0, 0, 0), 0)
    assert len(session.former) == FORMER_MAX
    assert table.count == FORMER_MAX + 1
