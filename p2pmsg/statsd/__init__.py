"""A StatsD and DogStatsD server that existing clients use unchanged.

The parser needs nothing else; the collector and its outputs need `pip install 'p2pmsg[statsd]'`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from p2pmsg.errors import MissingExtraError
from p2pmsg.statsd.grammar import DIALECTS, TAG_STYLES, Dialect, parse_line
from p2pmsg.statsd.listen import ListenEndpoint, parse_listen
from p2pmsg.statsd.metric import (
    BadLine,
    Event,
    Kind,
    Metric,
    ServiceCheck,
    make_key,
    number_text,
    split_key,
)
from p2pmsg.statsd.totals import (
    DELTAS_TOPIC,
    DELTAS_VERSION,
    ExactTotals,
    LostDeltas,
    UnfinishedClient,
)

if TYPE_CHECKING:
    from p2pmsg.statsd.collector import Collector, CollectorStats
    from p2pmsg.statsd.outputs.base import Output
    from p2pmsg.statsd.outputs.console import ConsoleOutput
    from p2pmsg.statsd.outputs.graphite import GraphiteNames, GraphiteOutput
    from p2pmsg.statsd.outputs.prometheus import PrometheusOutput
    from p2pmsg.statsd.outputs.stream import StreamOutput
    from p2pmsg.statsd.snapshot import AggregateConfig, Row, Snapshot, read_sketch

__all__ = [
    "DELTAS_TOPIC",
    "DELTAS_VERSION",
    "DIALECTS",
    "TAG_STYLES",
    "AggregateConfig",
    "BadLine",
    "Collector",
    "CollectorStats",
    "ConsoleOutput",
    "Dialect",
    "Event",
    "ExactTotals",
    "GraphiteNames",
    "GraphiteOutput",
    "Kind",
    "ListenEndpoint",
    "LostDeltas",
    "Metric",
    "Output",
    "PrometheusOutput",
    "Row",
    "ServiceCheck",
    "Snapshot",
    "StreamOutput",
    "UnfinishedClient",
    "make_key",
    "number_text",
    "parse_line",
    "parse_listen",
    "read_sketch",
    "split_key",
]

_LATER = {
    "Collector": "collector", "CollectorStats": "collector", "AggregateConfig": "snapshot",
    "GraphiteNames": "outputs.graphite", "ConsoleOutput": "outputs.console",
    "GraphiteOutput": "outputs.graphite", "Output": "outputs.base",
    "PrometheusOutput": "outputs.prometheus", "StreamOutput": "outputs.stream",
    "Row": "snapshot", "Snapshot": "snapshot", "read_sketch": "snapshot",
}  # fmt: skip
"""Module of each name that needs an extra package."""
_EXTRA = ("numpy", "ddsketch", "prometheus_client", "rich")


def __getattr__(name: str) -> Any:
    """Import a name that needs an extra package on first use.

    `ModuleNotFoundError` names the extra without it, also in `from p2pmsg.statsd import Collector`,
    which would look for a module after an `AttributeError`.
    """
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"p2pmsg.statsd.{_LATER[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        missing = MissingExtraError(f"p2pmsg.statsd.{name}", str(error.name), "statsd")
        raise ModuleNotFoundError(str(missing), name=error.name) from error
