"""Where flushes go: any number of outputs at once."""

from p2pmsg.statsd.outputs.base import Output
from p2pmsg.statsd.outputs.console import ConsoleOutput
from p2pmsg.statsd.outputs.graphite import GraphiteNames, GraphiteOutput
from p2pmsg.statsd.outputs.prometheus import PrometheusOutput
from p2pmsg.statsd.outputs.stream import StreamOutput

__all__ = [
    "ConsoleOutput",
    "GraphiteNames",
    "GraphiteOutput",
    "Output",
    "PrometheusOutput",
    "StreamOutput",
]
