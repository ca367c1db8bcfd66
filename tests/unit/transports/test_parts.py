"""Parts that need no socket: waits, progress, errors, and the network in memory."""

from itertools import pairwise

import pytest
import zmq

from transports import errors
from transports.busy_wait import BusyWait, Turn
from transports.platform import TcpState
from transports.progress import ByteProgress

WINDOW_US = 200


LOOK_NS = 2_000


class Bench:
    """A clock that moves while somebody looks or sleeps, and what comes at a time."""

    def __init__(self, window_us=WINDOW_US, **options):
        self.now_ns, self.comes_ns = 0, 0
        self.looks = self.yields = 0
        self.turn = Turn()
        options.setdefault("yield_core", self.leave_core)
        self.wait = BusyWait(
            window_us, self.has_come, turn=self.turn, now_ns=lambda: self.now_ns, **options
        )

    def has_come(self):
        self.looks += 1
        self.now_ns += LOOK_NS
        return self.now_ns >= self.comes_ns

    def leave_core(self):
        self.yields += 1

    def receive(self, after_us, *, spoke=True, asleep_us=0):
        """Wait for what comes so many microseconds from now; return how often it looked.

        With `asleep_us` it comes that late where nobody looks.
        """
        before = self.looks
        self.comes_ns = self.now_ns + after_us * 1000
        self.turn.is_theirs = spoke
        self.wait.begin()
        if self.looks == before and asleep_us:
            self.comes_ns += (asleep_us - after_us) * 1000
        self.now_ns = max(self.now_ns, self.comes_ns)
        self.wait.end()
        return self.looks - before


def test_the_first_wait_sleeps_and_one_after_a_short_wait_looks_until_the_answer_is_there():
    bench = Bench()
    assert bench.receive(100) == 0
    assert bench.receive(100) == 100_000 / LOOK_NS
    assert bench.yields == bench.looks - 1  # the core is left to others between two looks


def test_after_each_look_in_vain_twice_as_many_waits_sleep_up_to_sixteen():
    bench = Bench()
    looked = [n for n in range(70) if bench.receive(5000)]
    assert [after - before - 1 for before, after in pairwise(looked)] == [2, 4, 8, 16, 16, 16]


def test_two_ends_that_both_sleep_come_back_to_looking_though_no_slept_wait_is_short():
    bench = Bench()
    bench.receive(100)
    bench.receive(5000)  # something held the other end up, and now both sleep
    looks = [bench.receive(100, asleep_us=350) for _ in range(10)]
    assert looks == [0] + [100_000 / LOOK_NS] * 9


def test_a_look_in_vain_ends_with_the_window():
    bench = Bench()
    bench.receive(10)
    assert bench.receive(1_000_000) == WINDOW_US * 1000 / LOOK_NS


@pytest.mark.parametrize("options", [{"window_us": 0}, {"yield_core": None}])
def test_it_never_looks_where_that_is_switched_off_or_the_system_cannot(options):
    bench = Bench(**options)
    assert [bench.receive(10) for _ in range(3)] == [0, 0, 0]


MS = 1_000_000


ONE, OTHER = (("a", 1), ("b", 2)), (("a", 3), ("b", 2))


def test_bytes_that_come_between_two_looks_count_when_there_are_enough():
    progress = ByteProgress()
    assert progress.note(TcpState(ONE, 0, 5000), 0) is None  # they may be long past
    assert progress.note(TcpState(ONE, 10, 6023), 100 * MS) is None
    assert progress.note(TcpState(ONE, 20, 6024), 200 * MS) == 180 * MS
    assert progress.note(TcpState(ONE, 120, 6024), 300 * MS) == 180 * MS
    assert progress.note(TcpState(ONE, 0, 7048), 400 * MS) == 400 * MS


def test_signs_of_life_are_too_few():
    progress = ByteProgress()
    for look in range(1000):
        assert progress.note(TcpState(ONE, 0, 10 * look), look * 100 * MS) is None


def test_a_slow_frame_counts():
    progress = ByteProgress()
    found = [progress.note(TcpState(ONE, 0, 60 * look), look * 100 * MS) for look in range(100)]
    assert found[18] == found[30] == 1800 * MS
    assert found[-1] == 9000 * MS


def test_a_connection_that_was_made_again_begins_again():
    """Its handshake is no frame."""
    progress = ByteProgress()
    progress.note(TcpState(ONE, 0, 0), 0)
    assert progress.note(TcpState(ONE, 0, 9000), 100 * MS) == 100 * MS
    assert progress.note(TcpState(OTHER, 0, 9000), 200 * MS) is None
    assert progress.note(TcpState(OTHER, 0, 9200), 300 * MS) is None
    assert progress.note(None, 400 * MS) is None
    assert progress.note(TcpState(OTHER, 0, 99_000), 500 * MS) is None
    assert progress.note(TcpState(OTHER, 0, 99_000), 600 * MS) is None


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (zmq.ETERM, errors.ClosedError),
        (zmq.ENOTSOCK, errors.ClosedError),
        (zmq.EINVAL, errors.TransportError),
    ],
)
def test_zmq_errors_are_translated(number, kind):
    assert type(errors.translate(zmq.ZMQError(number), "inproc://x")) is kind
