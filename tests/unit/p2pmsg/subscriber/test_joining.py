"""Sessions that are joined and end, without a subscriber's core."""

from collections import Counter
from random import Random

import pytest

from p2pmsg import control
from p2pmsg.config import SubscriberConfig
from p2pmsg.start import Start
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.joining import SessionJoiner
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.settings import Settings
from p2pmsg.subscriber.streams import StreamTable
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import ReceiverConfig
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.frames import SESSION
from tests.unit.p2pmsg.subscriber_talk import MS, head

OTHER = SESSION + 1


class Joiner(SessionJoiner):
    """A joiner with one connection, whose publisher is played by hand."""

    def __init__(self):
        config, start, rng = SubscriberConfig(), Start("latest"), Random(1)
        settings = Settings(subscriber=1, name="s", topics=[], start=start, config=config)
        self.delivered, self.forgotten = [], 0
        table = StreamTable(
            config, ReceiverConfig(nack=config.nack), start=start, policy=GapPolicy("wait"),
            cursor=None, tally=None, rng=rng,
            deliver=lambda stream, output: self.delivered.append(output),
        )  # fmt: skip
        super().__init__(
            settings, table, [Connection()], relay=None, invalid=Counter(),
            forget_last=self.count_forgotten, rng=rng, now_ns=0,
        )  # fmt: skip

    def count_forgotten(self):
        self.forgotten += 1

    def welcome(self, session=SESSION, now_ns=0):
        self.receive_welcome(0, Frame(frames.welcome(session, name="feed")), now_ns)

    def echo(self, *heads, now_ns=1):
        peer = next(peer for peer in self.peers.values() if peer.probe is not None)
        return self.receive_echo(Frame(frames.echo(peer.probe, *heads)), now_ns)

    def asked(self):
        found = [(Kind(Frame(data).kind).name, session) for session, data in self.effects.requests]
        self.effects.requests.clear()
        return found

    def commanded(self):
        found = [command.what for command in self.effects.commands]
        self.effects.commands.clear()
        return found


@pytest.fixture
def joiner():
    return Joiner()


def test_a_welcome_is_answered_by_a_probe_and_its_echo_by_joining(joiner):
    joiner.welcome()
    assert joiner.commanded() == ["connect", "subscribe"]
    assert joiner.asked() == [("PROBE", SESSION)]

    assert joiner.echo(head(5))

    assert joiner.asked() == [("JOINED", SESSION)]
    assert joiner.commanded() == ["unsubscribe"]
    assert joiner.peers[SESSION].streams["t"].receiver.start == 5


def test_an_echo_that_was_not_asked_for_is_for_somebody_else(joiner):
    joiner.welcome()
    assert not joiner.receive_echo(Frame(frames.echo(12345, head(5))), 1)
    assert not joiner.peers[SESSION].joined


def test_a_probe_is_repeated_until_its_echo_comes(joiner):
    joiner.welcome()
    joiner.asked()
    joiner.check(now_ns=10 * MS)
    assert joiner.asked() == [("PROBE", SESSION)]


def test_another_session_at_the_same_place_ends_the_former(joiner):
    joiner.welcome()
    joiner.echo(head(5))
    joiner.commanded()
    joiner.welcome(OTHER, now_ns=2)
    assert joiner.peers[SESSION].gone
    assert "disconnect" in joiner.commanded()
    assert not joiner.peers[OTHER].gone


def test_a_silent_connection_is_made_again(joiner):
    joiner.welcome()
    joiner.echo(head(5))
    joiner.commanded()
    joiner.check(now_ns=int(SubscriberConfig().publisher_timeout_ms * MS) + 2)
    assert "reconnect" in joiner.commanded()


def test_what_is_forgotten_is_not_remembered_as_the_last_stream(joiner):
    joiner.welcome()
    joiner.echo(head(5))
    joiner.forget_peer(SESSION)
    assert joiner.forgotten == 1
    assert joiner.stream_table.count == 0


def test_a_stop_of_the_process_is_no_silence_of_the_publisher(joiner):
    joiner.welcome()
    joiner.echo(head(5))
    joiner.commanded()
    stopped_ns = 60_000 * MS
    joiner.note_stopped(stopped_ns, stopped_ns)
    joiner.check(now_ns=stopped_ns)
    assert "reconnect" not in joiner.commanded()


def test_a_body_that_cannot_be_read_joins_nothing(joiner):
    broken = bytearray(frames.welcome(SESSION))
    broken[-1] ^= 0xFF
    with pytest.raises(FrameError):
        joiner.receive_welcome(0, Frame(bytes(broken[:-1])), 0)
    assert joiner.peers == {}


def test_leaving_is_said_to_those_that_were_joined(joiner):
    joiner.welcome()
    joiner.leave()
    assert ("LEAVE", SESSION) not in joiner.asked()
    joiner.echo(control.Head("t", 0, 5, 5))
    joiner.leave()
    assert ("LEAVE", SESSION) in joiner.asked()
