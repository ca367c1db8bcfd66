"""A StatsD and DogStatsD server that existing clients use unchanged.

The parser needs nothing else; the collector and its outputs need `pip install 'p2pmsg[statsd]'`.
"""

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from p2pmsg.errors import MissingExtraError
from p2pmsg.statsd.dialect import DIALECTS, TAG_STYLES, Dialect
from p2pmsg.statsd.listen import ListenEndpoint, parse_listen
from p2pmsg.statsd.metric import (
    BadLine,
    Event,
    Kind,
    Metric,
    ServiceCheck,
    make_key,
    split_key,
)
from p2pmsg.statsd.numbers import number_text
from p2pmsg.statsd.parser import parse_line
from p2pmsg.statsd.totals import (
    DELTAS_TOPIC,
    DELTAS_VERSION,
    ExactTotals,
    LostDeltas,
    UnfinishedClient,
)

if TYPE_CHECKING:
    from p2pmsg.statsd.collector import Collector, CollectorStats
    from p2pmsg.statsd.config import AggregateConfig
    from p2pmsg.statsd.outputs.base import Output
    from p2pmsg.statsd.outputs.console import ConsoleOutput
    from p2pmsg.statsd.outputs.graphite import GraphiteNames, GraphiteOutput
    from p2pmsg.statsd.outputs.prometheus import PrometheusOutput
    from p2pmsg.statsd.outputs.stream import StreamOutput
    from p2pmsg.statsd.snapshot import Row, Snapshot
    from p2pmsg.statsd.values import read_sketch

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
    "Collector": "collector", "CollectorStats": "collector", "AggregateConfig": "config",
    "GraphiteNames": "outputs.graphite", "ConsoleOutput": "outputs.console",
    "GraphiteOutput": "outputs.graphite", "Output": "outputs.base",
    "PrometheusOutput": "outputs.prometheus", "StreamOutput": "outputs.stream",
    "Row": "snapshot", "Snapshot": "snapshot", "read_sketch": "values",
}  # fmt: skip
"""Module of each name that needs an extra package."""
_EXTRA = ("numpy", "ddsketch", "prometheus_client", "rich")


def __getattr__(name: str) -> Any:
    """Import a name that needs an extra package on first use.

    Without the package it raises `MissingExtraError`, which is an `AttributeError`.
    """
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"p2pmsg.statsd.{_LATER[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _EXTRA:
            raise MissingExtraError(f"p2pmsg.statsd.{name}", str(error.name), "statsd") from error
        raise


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


class _MissingExtra:
    """Names the extra in `from p2pmsg.statsd import Collector`, which looks for a module then."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Raise `ModuleNotFoundError` for a name that needs a package that is not there."""
        package, _, last = name.rpartition(".")
        if package == __name__ and last in _LATER:
            try:
                __getattr__(last)
            except MissingExtraError as error:
                raise ModuleNotFoundError(str(error), name=error.package) from error


if not all(map(_is_there, _EXTRA)):  # so that `import *` works without them
    sys.meta_path.append(_MissingExtra)
    for _name in _LATER:
        __all__.remove(_name)
