"""The receiver of a sealed group: which address it takes for its publisher's."""

from random import Random

import pytest

from p2pmsg import control, wire
from p2pmsg.config import SubscriberConfig
from p2pmsg.control import Head, Heads, Nack, Welcome
from p2pmsg.multicast import datagram
from p2pmsg.multicast.group_keys import GroupKeys
from p2pmsg.multicast.keys import KeysHeld, source_of
from p2pmsg.multicast.seal import AES
from p2pmsg.start import Start
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.effects import Action
from p2pmsg.wire import Frame, Kind
from tests.unit.p2pmsg import frames

pytest.importorskip("cryptography")

SESSION, INCARNATION, SECOND = 77, 5, 10**9
SOURCE, MOVED, ELSEWHERE = ("10.0.0.1", 9), ("10.0.0.1", 10), ("10.6.6.6", 9)


class SealedMember:
    """A receiver that was sent the keys of a group, and has a probe out."""

    def __init__(self, sources):
        self.now_ns = SECOND
        self.sources = sources
        self.keys = GroupKeys(
            SESSION,
            INCARNATION,
            AES,
            Random(1),
            now_ns=1,
            sources=lambda: [*map(source_of, self.sources)],
        )
        self.core = SubscriberCore(
            topics=[], lines=1, start=Start("earliest"), subscriber=1, name="",
            config=SubscriberConfig(), rng=Random(1), now_ns=0,
            datagram_lines=[0],
        )  # fmt: skip
        self.core.use_seal()
        welcome = wire.control_frame(Kind.WELCOME, SESSION, Welcome("p", "tcp://h:1", 1.0, 1))
        self.give(datagram.with_checksum(datagram.with_flags(welcome, add=wire.FLAG_SEALED)))
        self.take_keys()

    @property
    def peer(self):
        return self.core.peers[SESSION]

    @property
    def places(self):
        return self.peer.group.sources

    @property
    def invalid(self):
        return self.core.invalid

    def give(self, made, address=SOURCE):
        view = memoryview(made)
        self.core.receive_datagrams(0, view, len(view), address, now_ns=self.now_ns)

    def take_keys(self):
        body = KeysHeld(1, self.core.multicast.keys.keyring.ids(SESSION), True)
        held = Frame(wire.control_frame(Kind.KEYS_HELD, SESSION, body))
        made = self.keys.receive_held(b"1", held, now_ns=self.now_ns) or self.keys._keys_of()
        self.core.receive_reply(SESSION, made, now_ns=self.now_ns)

    def echo(self):
        """Return the sealed answer to the probe that is out, which begins at sequence 0."""
        body = Heads("p", [Head("t", 0, 0)])
        return self.keys.group.seal(wire.control_frame(Kind.ECHO, self.peer.probe, body))

    def message(self, sequence):
        return self.keys.group.seal(
            frames.data([b"x"], topic="t", session=SESSION, sequence=sequence)
        )

    def ask(self):
        """Let time pass; returns where what is missing was asked for."""
        found = []
        for _ in range(50):
            self.now_ns += SECOND // 100
            self.core.handle_timer(now_ns=self.now_ns)
            found += [address for _, address, _ in self.core.multicast.outgoing]
            found += [
                "recovery"
                for _, data in self.core.requests
                if Frame(data).kind == Kind.NACK
                and control.read_body(Frame(data), Nack).ranges == [(1, 2)]
            ]
            self.core.multicast.outgoing.clear()
            self.core.requests.clear()
        return set(found)

    def warnings(self):
        return [one.text for one in self.core.commands if one.what == Action.WARN]


def test_an_echo_from_where_the_publisher_said_shows_where_answers_go():
    member = SealedMember([SOURCE])
    member.give(member.echo())
    assert member.peer.joined
    assert member.places == {0: SOURCE}
    member.give(member.message(0))
    member.give(member.message(2))
    assert SOURCE in member.ask()
    member.give(member.message(1), ELSEWHERE)
    assert member.invalid["source"] == 1
    assert not member.invalid["place"]
    assert not member.warnings()


def test_who_repeats_an_echo_before_it_comes_gets_no_answer_and_silences_nobody():
    member = SealedMember([SOURCE])
    copied = member.echo()
    member.give(copied, ELSEWHERE)
    assert member.peer.joined  # it is what the publisher said
    assert member.places == {}
    assert member.invalid["place"] == 1
    (said,) = member.warnings()
    assert "10.6.6.6:9" in said
    assert "did not say so" in said
    member.give(copied)
    assert member.invalid["replayed"] == 1
    member.give(member.message(0))
    member.give(member.message(2))
    assert member.ask() == {"recovery"}
    member.give(member.message(1))
    assert not member.invalid["source"]
    assert member.core.streams[0].receiver.expected == 3


def test_nothing_is_sent_where_the_publisher_says_no_address():
    member = SealedMember([])
    member.give(member.echo())
    member.give(member.message(0))
    member.give(member.message(2))
    assert member.places == {}
    assert member.ask() == {"recovery"}


def test_another_address_is_believed_once_the_publisher_has_said_it():
    member = SealedMember([SOURCE])
    member.give(member.echo())
    member.sources = [SOURCE, MOVED]
    member.take_keys()
    member.core.table.send_probe(member.peer, 0, member.now_ns)
    member.give(member.echo(), MOVED)
    assert member.places == {0: MOVED}
    member.core.table.send_probe(member.peer, 0, member.now_ns)
    member.give(member.echo(), ELSEWHERE)
    assert member.places == {}


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (("10.0.0.1", 9), "10.0.0.1:9"),
        (("fe80::1%eth0", 9, 0, 2), "fe80::1:9"),
        (("fe80::1", 9, 0, 2), "fe80::1:9"),
        ("memory://p0", "memory://p0"),
    ],
)
def test_the_text_of_an_address_has_no_zone(address, text):
    assert source_of(address) == text
