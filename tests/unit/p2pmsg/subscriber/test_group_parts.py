"""Datagrams and what is believed of them, without a subscriber's core."""

from collections import Counter
from random import Random

import pytest

from p2pmsg import control, wire
from p2pmsg.config import SubscriberConfig
from p2pmsg.multicast import datagram
from p2pmsg.start import Start
from p2pmsg.subscriber.confirmation import ANSWER_NS
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.group import MulticastReceiver
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.sessions import GroupState, Session
from p2pmsg.subscriber.settings import Settings
from p2pmsg.subscriber.streams import StreamTable
from p2pmsg.wire import FLAG_PLAIN, Frame, Kind
from recovery import ReceiverConfig
from tests.unit.p2pmsg import frames

SESSION = 77
SOURCE, ELSEWHERE = ("10.0.0.1", 9), ("10.6.6.6", 9)


class Around:
    """Stands for what joins sessions; notes what it is given."""

    def __init__(self):
        self.joined_again = []
        self.due_ns = 2**62

    def send_probe(self, peer, line, now_ns):
        pass

    def send_joined(self, peer, now_ns):
        pass

    def begin_again(self, peer, now_ns):
        self.joined_again.append(peer.session)

    def end_peer(self, peer, now_ns):
        pass

    def forget_peer(self, session):
        pass

    def hurry(self, due_ns):
        self.due_ns = min(self.due_ns, due_ns)


class Receiver(MulticastReceiver):
    """A receiver that has joined one session, with one stream."""

    def __init__(self):
        config, start, rng = SubscriberConfig(), Start("latest"), Random(1)
        settings = Settings(subscriber=1, name="s", topics=[], start=start, config=config)
        self.table = StreamTable(
            config, ReceiverConfig(nack=config.nack), start=start, policy=GapPolicy("wait"),
            cursor=None, tally=None, rng=rng, deliver=lambda stream, output: None,
        )  # fmt: skip
        welcome = control.Welcome("feed", "tcp://127.0.0.1:1", -1.0)
        self.peer = Session(SESSION, welcome, returning=False, now_ns=0)
        self.peer.joined = self.peer.direct = True
        self.peer.group = GroupState(0)
        self.peer.group.places[0] = SOURCE
        self.peer.feedback = None
        self.effects, self.invalid, self.around = Effects(), Counter(), Around()
        super().__init__(
            settings, self.table, self.around, lines=[Connection()],
            peers={SESSION: self.peer}, effects=self.effects, invalid=self.invalid, rng=rng,
        )  # fmt: skip
        self.stream = self.table.add(self.peer, "t")
        self.table.begin(self.stream, 0, now_ns=0)

    def hear(self, *made, address=SOURCE):
        train = [datagram.seal(frame) for frame in made]
        data = memoryview(b"".join(train))
        return list(self.decode(0, data, len(train[0]), address, now_ns=1))

    def asked(self):
        found = [Kind(Frame(data).kind).name for _, data in self.effects.requests]
        self.effects.requests.clear()
        return found

    def answer(self, *heads):
        request = self.peer.group.request
        body = control.Heads("feed", list(heads))
        frame = wire.control_frame(Kind.HEADS, SESSION, body, sequence=request)
        assert self.receive_reply(self.peer, Frame(frame), 2)


@pytest.fixture
def receiver():
    return Receiver()


def plain(sequence):
    made = frames.data([1, 2], topic="t", session=SESSION, sequence=sequence)
    return datagram.with_flags(made, add=FLAG_PLAIN)


def test_a_datagram_becomes_a_frame(receiver):
    assert receiver.hear(plain(0)) == [plain(0)]


def test_a_train_of_the_last_stream_becomes_one_frame(receiver):
    receiver.last_stream = receiver.stream
    ((frame, datagrams, _),) = receiver.hear(plain(0), plain(2), plain(4))
    assert (frame.sequence, frame.count, datagrams) == (0, 6, 3)


def test_a_datagram_from_elsewhere_is_dropped_and_counted(receiver):
    assert receiver.hear(plain(0), address=ELSEWHERE) == []
    assert receiver.invalid["source"] == 1


def test_a_repair_is_taken_as_one(receiver):
    sent_again = datagram.with_flags(plain(0), add=wire.FLAG_RETRANSMISSION)
    nothing, (stream, frame, is_sent) = receiver.hear(sent_again)
    assert nothing is None
    assert (stream, frame.sequence, is_sent) == (receiver.stream, 0, True)


def test_a_hint_of_a_head_is_asked_of_the_publisher_once_at_a_time(receiver):
    receiver.confirmation.want(receiver.peer, "t", 1, head=5)
    receiver.confirmation.want(receiver.peer, "t", 2, head=6)
    assert receiver.asked() == ["HEADS_REQUEST"]
    assert receiver.around.due_ns <= 2 + ANSWER_NS

    receiver.confirmation.check(1 + ANSWER_NS)  # nobody answered
    assert receiver.asked() == ["HEADS_REQUEST"]


def test_a_head_that_the_publisher_confirms_is_believed(receiver):
    receiver.confirmation.want(receiver.peer, "t", 1, head=5)
    receiver.answer(control.Head("t", 0, 5))
    assert (receiver.stream.confirmed, receiver.stream.receiver.head) == (5, 5)
    assert receiver.invalid["forged"] == 0


def test_a_head_that_it_denies_was_forged(receiver):
    receiver.confirmation.want(receiver.peer, "t", 1, head=5)
    receiver.answer(control.Head("t", 0, 2))
    assert receiver.stream.receiver.head == 2
    assert receiver.invalid["forged"] == 1


def test_another_life_of_the_publisher_is_joined_again(receiver):
    for life in (3, 3, 4):
        frame = wire.control_frame(Kind.ADMITTED, SESSION, control.Admitted(1, life, 0))
        assert receiver.receive_reply(receiver.peer, Frame(frame), 1)
    assert receiver.around.joined_again == [SESSION]
