"""What Prometheus gets of counters that rise and fall."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.statsd import PrometheusOutput
from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.metric import Kind, Metric

KEY = "seats"


@pytest.fixture(scope="module")
def port():
    """Keep one output open, so that no example has to open and close one."""
    output = PrometheusOutput(port=0)
    yield output
    output.close(10.0)


class Exposed:
    """What is exposed after each flush."""

    def __init__(self, output):
        self.aggregator, self.output = Aggregator(seed=1), output
        self.total, self.times = 0, itertools.count()
        for table in ("_values", "_others", "_kinds", "_uses", "_series", "_seen"):
            getattr(output, table).clear()
        self.counted = output.negative

    def count(self, change, *, exactly):
        if exactly:
            self.total += change
            self.aggregator.exact_totals = {KEY: self.total}
            self.aggregator.take([Metric(Kind.COUNTER, KEY, (float(change),), ())])
        else:
            self.aggregator.feed(b"%s:%d|c" % (KEY.encode(), change))

    def flush(self):
        snapshot = self.aggregator.flush(float(next(self.times)))
        self.output.begin(snapshot)
        for row in itertools.chain.from_iterable(snapshot.rows()):
            if row.key == KEY:
                self.output.write(row)
        self.output.end(snapshot)
        return self.output._values.get(KEY)


changes = st.lists(st.tuples(st.integers(-9, 9), st.booleans(), st.booleans()), max_size=20)


@given(changes, st.sampled_from([None, True, False]))
def test_a_counter_never_falls_and_each_fall_is_counted(port, changes, kind):
    """One that exact clients count is at its greatest sum; of lines a fall is left out."""
    exposed, value, negative, before = Exposed(port), 0, 0, 0
    greatest = 0
    for change, exactly, flushes in changes:
        exactly = exactly if kind is None else kind
        exposed.count(change, exactly=exactly)
        value += change
        if flushes:
            found = exposed.flush()
            assert found >= greatest
            if kind is True:
                negative += value < greatest
                assert found == max(greatest, value)
            elif kind is False:
                negative += value < before
                assert found == greatest + max(0, value - before)
            greatest, before = found, value
    if kind is not None:
        assert port.negative - exposed.counted == negative
