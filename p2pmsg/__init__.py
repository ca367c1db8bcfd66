"""Brokerless peer-to-peer messaging in which nothing is lost silently.

Each message that a publisher accepted is, at every subscriber, delivered once and in order, or
reported lost with its exact range and reason.
"""

from p2pmsg.config import PublisherConfig, SubscriberConfig
from p2pmsg.errors import (
    BindError,
    ClosedError,
    ConfigError,
    EndpointError,
    LogCorruptError,
    LogInUseError,
    LossReport,
    MessageError,
    MessagesLostError,
    MessageTooLargeError,
    NoHandlerError,
    P2PError,
    QueueFullError,
    RemoteError,
    RequestError,
)
from p2pmsg.message import Message, MessageBatch
from p2pmsg.queue import (
    DeadLetter,
    DeadLetters,
    Job,
    LogSettings,
    Puller,
    PullerConfig,
    PullerStats,
    Pusher,
    PusherConfig,
    PusherStats,
    WorkerStats,
)
from p2pmsg.requests import Answers, Requester, Responder
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
from recovery.queue import BreakerConfig, QueueConfig

__all__ = [
    "Answers",
    "BindError",
    "BreakerConfig",
    "ClosedError",
    "ConfigError",
    "DeadLetter",
    "DeadLetters",
    "EndpointError",
    "Heads",
    "HeartbeatConfig",
    "Job",
    "LatencyHistogram",
    "LogCorruptError",
    "LogInUseError",
    "LogSettings",
    "LossReason",
    "LossReport",
    "Message",
    "MessageBatch",
    "MessageError",
    "MessageTooLargeError",
    "MessagesLostError",
    "NackConfig",
    "NoHandlerError",
    "P2PError",
    "Publisher",
    "PublisherConfig",
    "PublisherStats",
    "Puller",
    "PullerConfig",
    "PullerStats",
    "Pusher",
    "PusherConfig",
    "PusherStats",
    "QueueConfig",
    "QueueFullError",
    "RangeReader",
    "RemoteError",
    "ReplayConfig",
    "RequestError",
    "Requester",
    "RequesterStats",
    "Responder",
    "RetransmitConfig",
    "StreamHead",
    "StreamLedger",
    "Subscriber",
    "SubscriberConfig",
    "SubscriberStats",
    "WorkerStats",
]
