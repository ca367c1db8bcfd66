"""Whether a publisher is reached by UDP, and what is done where it is not."""

from p2pmsg.subscriber.effects import Action
from p2pmsg.subscriber.group import BY_UDP_NS
from p2pmsg.subscriber.sessions import VAIN_MAX
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.subscriber.test_group import SESSION, SIZE, Member


class Gaps(Member):
    """A member that misses every other message, one at a time."""

    def __init__(self):
        super().__init__()
        self.message(0)
        self.read()
        self.warnings = []

    def asked(self):
        made = super().asked()
        while (command := self.core.table.effects.commands) and (one := command.popleft()):
            if one.what is Action.WARN:
                self.warnings.append(one.text)
        return made

    def miss(self):
        """Miss one more message; returns its sequence."""
        missing = self.stream.receiver.head
        self.message(missing + 1)
        self.read()
        return missing

    def repair_over_recovery(self, sequence):
        made = frames.data([b"x" * SIZE], topic="t", session=SESSION, sequence=sequence)
        self.core.receive_reply(SESSION, made, now_ns=self.now_ns)
        self.read()

    def questions(self, missing):
        """Return how often a message is asked for by UDP before it is over recovery."""
        for count in range(10):
            _, far = self.first_asked()
            if far:
                assert far == [(missing, missing + 1)]
                return count
        raise AssertionError("it was never asked for over the recovery channel")

    def first_asked(self):
        """Return what was asked for, once anything was: other deadlines may come before."""
        for _ in range(100):
            near, far = self.asked()
            if near or far:
                return near, far
        raise AssertionError("nothing was asked for")

    def lose(self, count=VAIN_MAX):
        """Have gaps that only the recovery channel repairs; returns how each was asked for."""
        made = []
        for _ in range(count):
            missing = self.miss()
            made.append(self.questions(missing))
            self.repair_over_recovery(missing)
        return made

    @property
    def line(self):
        self.core.check(self.now_ns)
        return self.core.lines[0]


def test_after_gaps_in_vain_the_recovery_channel_is_asked_at_once_and_it_is_said_once():
    member = Gaps()
    assert member.lose(VAIN_MAX) == [4] * VAIN_MAX
    assert member.lose(10) == [0] * 10
    text = member.line.one_way
    member.asked()
    assert member.warnings == [text]
    assert "10.0.0.1:9" in text
    assert "tcp://h:1" in text
    assert member.stream.receiver.lost == 0


def test_udp_is_tried_again_after_a_minute_and_once_it_answers_it_is_as_before():
    member = Gaps()
    member.lose(VAIN_MAX + 1)
    member.now_ns += BY_UDP_NS
    assert member.lose(2) == [4, 0]  # still in vain

    member.now_ns += BY_UDP_NS
    missing = member.miss()
    assert member.first_asked() == ([(missing, missing + 1)], [])
    member.message(missing, repair=True)
    member.read()
    assert not member.line.one_way
    assert member.lose(VAIN_MAX) == [4] * VAIN_MAX
    assert len(member.warnings) <= 2  # once a minute while it lasts


def test_history_over_the_recovery_channel_counts_for_nothing():
    member = Gaps()
    for _ in range(2 * VAIN_MAX):
        missing = member.miss()
        member.stream.repairs.history = missing + 1
        assert member.questions(missing) == 0
        member.repair_over_recovery(missing)
    assert member.lose(1) == [4]
