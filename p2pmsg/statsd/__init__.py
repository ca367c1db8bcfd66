"""A StatsD and DogStatsD server that existing clients use unchanged."""

from p2pmsg.statsd.dialect import DIALECTS, TAG_STYLES, Dialect
from p2pmsg.statsd.metric import BadLine, Event, Kind, Metric, ServiceCheck
from p2pmsg.statsd.parser import parse_line

__all__ = [
    "DIALECTS",
    "TAG_STYLES",
    "BadLine",
    "Dialect",
    "Event",
    "Kind",
    "Metric",
    "ServiceCheck",
    "parse_line",
]
