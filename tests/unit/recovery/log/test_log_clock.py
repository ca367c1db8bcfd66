"""Retention by age while the wall clock is wrong: it goes on, and deletes nothing too early."""

import pytest

from tests.unit.recovery.log.logs import T0, Log, S, read_all, segments

AGE_S = 100
DAY_S = 86_400


class Clocks:
    """A log whose wall clock is set to a wrong time; the monotonic clock goes on."""

    def __init__(self):
        self.log = Log(retention_age=AGE_S)
        self.steady_ns = self.started_ns = 0
        self.offset_s = 0
        self.begun_s = []

    def run(self, seconds, *, appends=True):
        """Append a frame a second, and have retention applied as often."""
        for _ in range(seconds):
            self.log.now_ns = T0 + self.steady_ns + self.offset_s * S
            if appends:
                self.log.append()
                self.begun_s.append(self.steady_ns // S)
            self.expire()
            self.steady_ns += S

    def expire(self):
        pending = self.log.writer.begin_expire(self.log.now_ns, self.steady_ns - self.started_ns)
        if pending is not None:
            pending.wait()
            self.log.writer.end_expire(pending)

    def restart(self):
        """Open it again; the monotonic clock begins at 0, as when the machine was started."""
        self.started_ns = self.steady_ns
        self.log.now_ns = T0 + self.steady_ns + self.offset_s * S
        self.log.reopen()

    def kept(self):
        """Return how many frames are kept."""
        reader = self.log.reader()
        try:
            return len(read_all(reader))
        finally:
            reader.close()

    def kept_s(self):
        """Return for how long the oldest frame has been kept, in seconds."""
        return self.steady_ns // S - self.begun_s[-self.kept()]

    def is_kept_in_bounds(self):
        return AGE_S <= self.kept_s() <= AGE_S + AGE_S // 5


@pytest.mark.parametrize("step_s", [-DAY_S, -150, -10, 10, 150, DAY_S])
def test_a_clock_that_was_wrong_for_a_moment_ends_no_retention(step_s):
    clocks = Clocks()
    clocks.run(30)
    clocks.offset_s = step_s
    clocks.run(3)
    clocks.offset_s = 0
    clocks.run(3 * AGE_S)
    assert clocks.is_kept_in_bounds()


@pytest.mark.parametrize("step_s", [-DAY_S, -150, -10])
def test_a_clock_that_is_set_back_permanently_deletes_no_less_and_no_more(step_s):
    clocks = Clocks()
    clocks.run(50)
    clocks.offset_s = step_s
    for _ in range(3 * AGE_S):
        clocks.run(1)
        assert clocks.kept() >= min(AGE_S, len(clocks.begun_s))
    assert clocks.is_kept_in_bounds()


def test_what_was_appended_ahead_of_the_clock_goes_where_nothing_follows():
    clocks = Clocks()
    clocks.offset_s = DAY_S
    clocks.run(30)
    clocks.offset_s = 0
    clocks.run(AGE_S - 30, appends=False)
    assert clocks.kept() == 30
    clocks.run(30 + AGE_S // 5, appends=False)
    assert clocks.kept() == 0
    assert len(segments(clocks.log.store)) == 1


def test_what_was_appended_ahead_of_the_clock_goes_though_restarts_are_frequent():
    clocks = Clocks()
    clocks.offset_s = DAY_S
    clocks.run(30)
    clocks.offset_s = 0
    for _ in range(3 * AGE_S // 20):
        clocks.restart()
        clocks.run(20)
    assert clocks.is_kept_in_bounds()


def test_a_clock_that_is_late_for_a_moment_after_a_restart_deletes_nothing():
    clocks = Clocks()
    clocks.run(50)
    clocks.offset_s = -DAY_S
    clocks.restart()
    clocks.run(3, appends=False)
    clocks.offset_s = 0
    clocks.run(40)
    assert clocks.kept() == 90
    clocks.run(AGE_S)
    assert clocks.is_kept_in_bounds()
