"""Brokerless peer-to-peer messaging in which nothing is lost silently.

Each message that a publisher accepted is, at every subscriber, delivered once and in order, or
reported lost with its exact range and reason.
"""

from importlib import import_module
from typing import Any

from p2pmsg.config import PublisherConfig, SubscriberConfig
from p2pmsg.errors import (
    BindError,
    ClosedError,
    ConfigError,
    EndpointError,
    LossReport,
    MessageError,
    MessagesLostError,
    MessageTooLargeError,
    P2PError,
    QueueFullError,
)
from p2pmsg.message import Message, MessageBatch
from p2pmsg.stats import PublisherStats, RequesterStats, StreamLedger, SubscriberStats
from p2pmsg.sync.publisher import Publisher
from p2pmsg.sync.reader import Heads, RangeReader, StreamHead
from p2pmsg.sync.subscriber import Subscriber
from recovery import (
    HeartbeatConfig,
    LatencyHistogram,
    LossReason,
    NackConfig,
    ReplayConfig,
    RetransmitConfig,
)

_ROOMS = ("metrics", "statsd")


def __getattr__(name: str) -> Any:
    """Import `p2pmsg.metrics` and `p2pmsg.statsd` when they are first named."""
    if name in _ROOMS:
        return import_module(f"p2pmsg.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BindError",
    "ClosedError",
    "ConfigError",
    "EndpointError",
    "Heads",
    "HeartbeatConfig",
    "LatencyHistogram",
    "LossReason",
    "LossReport",
    "Message",
    "MessageBatch",
    "MessageError",
    "MessageTooLargeError",
    "MessagesLostError",
    "NackConfig",
    "P2PError",
    "Publisher",
    "PublisherConfig",
    "PublisherStats",
    "QueueFullError",
    "RangeReader",
    "ReplayConfig",
    "RequesterStats",
    "RetransmitConfig",
    "StreamHead",
    "StreamLedger",
    "Subscriber",
    "SubscriberConfig",
    "SubscriberStats",
]
