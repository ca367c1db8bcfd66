"""At which of its addresses a multicast's publisher is asked over the recovery channel."""

from itertools import pairwise
from random import Random

import pytest

from p2pmsg import wire
from p2pmsg.config import SubscriberConfig
from p2pmsg.control import Admitted, Head, Heads, Welcome
from p2pmsg.multicast import datagram
from p2pmsg.start import parse_start
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.effects import Action
from p2pmsg.subscriber.recovery_places import ADDRESSES_MAX, SILENT_NS, TRIAL_NS
from p2pmsg.wire import Frame, Kind
from tests.unit.p2pmsg import frames
from transports.endpoint import host_of

MS = 1_000_000
SESSION, TOKEN, LIFE = 77, 123, 5
A, B, STRANGER = ("10.91.0.1", 9), ("10.92.0.1", 9), ("10.66.6.6", 9)


class Lines:
    """A subscriber of an A and a B line that has joined a publisher over both."""

    def __init__(self, recovery="tcp://*:5", *, joins=True, token=TOKEN, lines=2):
        self.now_ns, self.trials, self.warnings = 1, [], []
        self.recovery, self.connected = recovery, {}
        self.core = SubscriberCore(
            topics=[], lines=lines, start=parse_start("latest"), subscriber=1, name="",
            config=SubscriberConfig(), wait_for_repair=True, rng=Random(1), now_ns=0,
            datagram_lines=range(lines),
        )  # fmt: skip
        self.announce(0, A)
        if joins:
            probe = self.peer.probe
            echo = wire.control_frame(Kind.ECHO, probe, Heads("p", [Head("t", 0, 0)]))
            for line, place in enumerate((A, B)[:lines]):
                self.give(line, place, echo)
        if token:
            self.reply(SESSION, token)
        self.take()

    @property
    def peer(self):
        return self.core.peers[SESSION]

    @property
    def host(self):
        """Where the recovery channel is connected to."""
        return self.connected[SESSION]

    def announce(self, line, place):
        body = Welcome("p", self.recovery, 1.0, 1, life=LIFE)
        self.give(line, place, wire.control_frame(Kind.WELCOME, SESSION, body))

    def give(self, line, place, frame):
        made = memoryview(datagram.with_checksum(frame))
        self.core.receive_datagrams(line, made, len(made), place, now_ns=self.now_ns)

    def reply(self, key, token=TOKEN, life=LIFE):
        frame = wire.control_frame(Kind.ADMITTED, SESSION, Admitted(token, life, 0))
        self.core.receive_reply(key, frame, now_ns=self.now_ns)

    def take(self):
        """Do what is to be done; returns what was sent, by the key of its channel."""
        for one in self.core.commands:
            if one.what is Action.CONNECT:
                address = self.core.member.sources[one.session][1]
                self.connected[one.session] = host_of(address)
                if one.session != SESSION:
                    self.trials.append((self.now_ns, one.session))
            elif one.what is Action.DISCONNECT:
                self.connected.pop(one.session, None)
            elif one.what is Action.WARN:
                self.warnings.append(one.text)
        self.core.commands.clear()
        sent = [(key, Frame(frame)) for key, frame in self.core.requests]
        self.core.requests.clear()
        assert all(key in self.connected for key, _ in sent)
        return sent

    def run(self, seconds, *announced, heard=(), answers=None):
        """Pass time, with announcements each 200 ms from (line, place), and data from `heard`.

        `answers` is called with the key of a channel and a frame that was sent there.
        """
        for _ in range(int(seconds * 5)):
            self.now_ns += 200 * MS
            for line, place in announced:
                self.announce(line, place)
            for line, place in heard:
                beat = frames.heartbeat(0, session=SESSION)
                self.give(line, place, beat)
            self.core.handle_timer(now_ns=self.now_ns)
            for key, frame in self.take():
                if answers is not None:
                    answers(key, frame)


def knows(lines, *keys, token=TOKEN, life=LIFE):
    """Return what answers JOINED at the session's channel (`keys`), or at others (no `keys`)."""

    def answer(key, frame):
        is_other = key != SESSION
        if frame.kind == Kind.JOINED and (key in keys or (not keys and is_other)):
            lines.reply(key, token, life)
        if frame.kind == Kind.HEADS_REQUEST and key in keys:
            body = Heads("p", [Head("t", 0, 0)], life=life)
            made = wire.control_frame(Kind.HEADS, SESSION, body, sequence=frame.sequence)
            lines.core.receive_reply(key, made, now_ns=lines.now_ns)

    return answer


def test_where_a_line_dies_the_publisher_is_asked_at_its_address_of_the_other_one():
    lines = Lines()
    lines.run(20, (1, B), heard=[(1, B)], answers=knows(lines))
    assert lines.host == B[0]
    assert list(lines.connected) == [SESSION]
    (text,) = [text for text in lines.warnings if "recovery endpoint" in text]
    assert "(10.91.0.1) for 3 s" in text
    assert "10.92.0.1" in text
    assert lines.core.invalid == {}


def test_that_needs_some_seconds_without_an_answer():
    lines = Lines()
    lines.run(20, (1, B), heard=[(1, B)])
    (first, _), *_ = lines.trials
    assert first >= SILENT_NS
    lines = Lines()
    lines.run(60, (1, B), (0, A), heard=[(0, A), (1, B)], answers=knows(lines, SESSION))
    assert (lines.trials, lines.host) == ([], A[0])


def test_a_stranger_is_asked_now_and_then_and_the_former_channel_stays():
    lines = Lines(lines=1)
    lines.run(130, (0, STRANGER), answers=knows(lines, token=TOKEN + 1, life=LIFE + 1))
    assert lines.host == A[0]
    times = [at for at, _ in lines.trials]
    assert 3 <= len(times) < 12
    gaps = [after - before for before, after in pairwise(times)]
    assert min(gaps) >= SILENT_NS
    assert gaps[-1] >= 30_000 * MS
    assert lines.warnings
    assert all("10.66.6.6" in text for text in lines.warnings)
    assert len(lines.warnings) <= 3
    assert lines.peer.group.places == {0: A}


def test_one_that_answers_nothing_is_left_after_a_moment():
    lines = Lines(lines=1)
    while not lines.trials:
        lines.run(0.2, (0, STRANGER))
    assert len(lines.connected) == 2
    lines.run(TRIAL_NS / 1e9 + 0.4, (0, STRANGER))
    assert list(lines.connected) == [SESSION]
    assert len(lines.core.member.sources) == 1


def test_an_address_that_has_changed_is_believed_once_it_knows_the_token():
    lines = Lines(lines=1)
    lines.run(15, (0, B), heard=[(0, B)], answers=knows(lines))
    assert lines.host == B[0]
    assert lines.core.invalid["source"] > 0
    assert lines.peer.probe is not None  # its echo shows where datagrams come from
    echo = wire.control_frame(Kind.ECHO, lines.peer.probe, Heads("p", [Head("t", 0, 0)]))
    lines.give(0, B, echo)
    assert lines.peer.group.places == {0: B}


@pytest.mark.parametrize("life", [LIFE, LIFE + 1])
def test_one_that_has_forgotten_us_is_believed_where_the_former_address_is_long_silent(life):
    lines = Lines(lines=1)
    lines.run(29, (0, B), answers=knows(lines, token=TOKEN + 1, life=life))
    assert lines.host == A[0]
    lines.run(70, (0, B), answers=knows(lines, token=TOKEN + 1, life=life))
    assert lines.host == (B[0] if life == LIFE else A[0])


def test_an_endpoint_that_names_a_host_stays_what_it_is():
    lines = Lines("tcp://10.91.0.1:5")
    lines.run(60, (1, B), heard=[(1, B)])
    assert lines.trials == []
    assert lines.host == A[0]


def test_before_it_is_joined_its_addresses_are_taken_in_turn():
    lines = Lines(joins=False, token=0)
    hosts = []
    for _ in range(45):
        lines.run(0.2, (0, A), (1, B))
        hosts.append(lines.host)
    assert lines.trials == []
    assert hosts[0] == A[0]
    assert B[0] in hosts


def test_of_many_forged_addresses_few_are_remembered():
    lines = Lines()
    for number in range(100):
        lines.announce(0, (f"10.7.0.{number}", 9))
    announced = lines.core.member.recovery_places._found[SESSION].announced
    assert len(announced) == ADDRESSES_MAX
    assert (0, A) in announced


def test_a_line_over_which_nothing_comes_is_not_connected():
    lines = Lines()
    joiner = lines.core.joiner
    answers = knows(lines, SESSION)
    lines.run(10, (0, A), (1, B), heard=[(0, A), (1, B)], answers=answers)
    assert [joiner.is_connected(line, lines.now_ns) for line in (0, 1)] == [True, True]
    lines.run(10, (1, B), heard=[(1, B)], answers=answers)
    assert [joiner.is_connected(line, lines.now_ns) for line in (0, 1)] == [False, True]


def test_a_publisher_that_is_heard_over_another_line_is_not_probed_all_the_time():
    lines, probes = Lines(), []
    answer = knows(lines, SESSION)

    def echo(key, frame):
        answer(key, frame)
        if frame.kind == Kind.PROBE:
            probes.append(lines.now_ns)
            made = wire.control_frame(Kind.ECHO, lines.peer.probe, Heads("p", [Head("t", 0, 0)]))
            lines.give(1, B, made)

    lines.run(30, (1, B), heard=[(1, B)], answers=echo)
    assert len(probes) <= 1
