"""Settings of the aggregation, with the reason for each default."""

import math
from dataclasses import dataclass
from itertools import pairwise

from p2pmsg.checks import check, check_fields
from p2pmsg.statsd.dialect import STRICT, Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateConfig:
    """How metrics are added up. Raises `ConfigError` for a value out of its limits."""

    dialect: Dialect = STRICT
    """How lines are read."""

    interval: float = 10.0
    """Time between flushes, in seconds. 10.0 as with statsd and DataDog."""

    percentiles: tuple[float, ...] = (90.0,)
    """Percentiles of timers, 0 to 100; below 0 for the top ones: -10 is the mean, sum and lower
    bound of the uppermost tenth. 0 gives fields for timers with one value only, as with statsd.
    90 as with statsd."""

    histogram: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """Bins of timers, as in statsd: pairs of a part of a name and ascending upper bounds (`inf` may
    be one); the first pair whose part is in the name applies. None by default."""

    delete_counters: bool = False
    """Whether a counter that was idle is forgotten instead of sent as 0."""

    delete_timers: bool = False
    """The same for timers, histograms and distributions."""

    delete_sets: bool = False
    """The same for sets."""

    delete_gauges: bool = False
    """Whether a gauge that was idle for `gauge_age_max` flushes is forgotten."""

    gauge_age_max: int = 1
    """Flushes in which an idle gauge is still sent, with `delete_gauges`. 1 as with statsd."""

    names_max: int = 200_000
    """How many names, with their tags, are kept; further ones are dropped, counted, and ten of them
    named. Twice what one collector usually sees, and some 100 MB."""

    set_values_max: int = 1_000_000
    """How many distinct values all sets together hold between two flushes; further ones are dropped
    and counted. Some 100 MB."""

    values_max: int = 4_000_000
    """How many values of timers are kept between two flushes. Beyond it they go into the bins of a
    sketch (1 % off at most); count, sum and extremes stay exact. 48 MB."""

    prefix_stats: str = "statsd"
    """First part of the names of the collector's own metrics."""

    def __post_init__(self) -> None:
        check_fields(
            self, interval=0.01, percentiles=(-100, 100), histogram=(-math.inf, math.inf),
            gauge_age_max=1, names_max=1, set_values_max=1, values_max=1,
        )  # fmt: skip
        for _, bounds in self.histogram:
            rising = all(a < b for a, b in pairwise(bounds))
            check("histogram", bounds, rising, "pairs of a name's part and ascending bounds")
