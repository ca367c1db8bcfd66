"""Settings of the aggregation, with the reason for each default."""

from dataclasses import dataclass

from p2pmsg.statsd.dialect import STRICT, Dialect
from p2pmsg.toolkit import check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateConfig:
    """How metrics are added up. Raises `ConfigError` for a value out of its limits."""

    dialect: Dialect = STRICT
    """How lines are read."""

    percentiles: tuple[float, ...] = (90.0,)
    """Percentiles of timers, 0 to 100; below 0 for the top ones: -10 is the mean, sum and lower
    bound of the uppermost tenth. 0 gives fields for timers with one value only, as with statsd.
    90 as with statsd."""

    delete_idle: bool = False
    """Whether a metric that was idle for an interval is forgotten instead of sent as 0, or, for a
    gauge, as it was. Off as with statsd."""

    names_max: int = 200_000
    """How many names, with their tags, are kept; further ones are dropped, counted, and ten of them
    named. Twice what one collector usually sees, and some 100 MB."""

    def __post_init__(self) -> None:
        check_fields(self, percentiles=(-100, 100), names_max=1)
