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
        output._values.clear(), output._fallen.clear(), output._others.clear()
        output._kinds.clear(), output._keys.clear(), output._series.clear()
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


@given(changes)
def test_a_counter_is_exposed_as_the_greatest_sum_of_a_flush_so_far(port, changes):
    exposed, value, greatest, negative, is_known = Exposed(port), 0, 0, 0, False
    for change, exactly, flushes in changes:
        exposed.count(change, exactly=exactly)
        is_known = True
        value += change
        if flushes and is_known:
            negative += value < greatest
            greatest = max(greatest, value)
            assert exposed.flush() == greatest
    assert port.negative - exposed.counted == negative


@given(changes)
def test_where_flushes_fall_does_not_matter_once_a_counter_has_more_than_ever(port, changes):
    finals = []
    for flushes_often in (False, True):
        exposed = Exposed(port)
        for change, exactly, _ in changes:
            exposed.count(change, exactly=exactly)
            if flushes_often:
                exposed.flush()
        exposed.count(1000, exactly=False)
        finals.append(exposed.flush())
    assert finals == [1000 + sum(change for change, _, _ in changes)] * 2
