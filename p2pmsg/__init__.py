"""Brokerless peer-to-peer messaging in which nothing is lost silently.

Each message that a publisher accepted is, at every subscriber, delivered once and in order, or
reported lost with its exact range and reason.
"""

from p2pmsg import ctrl_c  # first: the command `p2pmsg` may be interrupted at any moment

# isort: split
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from p2pmsg.config import (
    MulticastPublisherConfig,
    MulticastSubscriberConfig,
    PublisherConfig,
    SubscriberConfig,
)
from p2pmsg.errors import (
    AdminRefusedError,
    BindError,
    ClosedError,
    ConfigError,
    CursorError,
    CursorInUseError,
    EndpointError,
    LogCorruptError,
    LogError,
    LogFailedError,
    LogFormatError,
    LogInUseError,
    LogLockedError,
    LossReport,
    MessageError,
    MessagesLostError,
    MessageTooLargeError,
    MissingExtraError,
    NoHandlerError,
    P2PError,
    QueueFullError,
    ReentrantCallError,
    RemoteError,
    RequestError,
    RewoundReport,
    SessionEnd,
    SessionEndedError,
    SessionRewoundError,
    TransportError,
)
from p2pmsg.frames import decode_frame
from p2pmsg.message import FixedBatch, Message, MessageBatch, Origin
from p2pmsg.publisher.log import import_log
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
from p2pmsg.queue.rules import BreakerConfig, QueueConfig
from p2pmsg.reader.heads_watch import HeadsWatch
from p2pmsg.reader.reader import Heads, RangeReader, SessionEntry, StreamHead
from p2pmsg.relay.stats import RelayedSessionStats, RelayStats
from p2pmsg.requests import Answers, Requester, Responder
from p2pmsg.stats import (
    CursorStats,
    LineStats,
    LogStats,
    MulticastStats,
    PublisherStats,
    RequesterStats,
    StreamLedger,
    SubscriberStats,
)
from p2pmsg.sync.mold_publisher import MoldPublisher, MoldPublisherStats
from p2pmsg.sync.publisher import Publisher
from p2pmsg.sync.relay import Relay
from p2pmsg.sync.subscriber import Subscriber
from recovery import (
    CursorConfig,
    HeartbeatConfig,
    LatencyHistogram,
    LossReason,
    NackConfig,
    ReplayConfig,
    RetransmitConfig,
)

if TYPE_CHECKING:
    from p2pmsg.publisher.log_reader import LogReader
    from recovery.log import LogConfig

__all__ = [
    "AdminRefusedError",
    "Answers",
    "BindError",
    "BreakerConfig",
    "ClosedError",
    "ConfigError",
    "CursorConfig",
    "CursorError",
    "CursorInUseError",
    "CursorStats",
    "DeadLetter",
    "DeadLetters",
    "EndpointError",
    "FixedBatch",
    "Heads",
    "HeadsWatch",
    "HeartbeatConfig",
    "Job",
    "LatencyHistogram",
    "LineStats",
    "LogConfig",
    "LogCorruptError",
    "LogError",
    "LogFailedError",
    "LogFormatError",
    "LogInUseError",
    "LogLockedError",
    "LogReader",
    "LogSettings",
    "LogStats",
    "LossReason",
    "LossReport",
    "Message",
    "MessageBatch",
    "MessageError",
    "MessageTooLargeError",
    "MessagesLostError",
    "MissingExtraError",
    "MoldPublisher",
    "MoldPublisherStats",
    "MulticastPublisherConfig",
    "MulticastStats",
    "MulticastSubscriberConfig",
    "NackConfig",
    "NoHandlerError",
    "Origin",
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
    "ReentrantCallError",
    "Relay",
    "RelayStats",
    "RelayedSessionStats",
    "RemoteError",
    "ReplayConfig",
    "RequestError",
    "Requester",
    "RequesterStats",
    "Responder",
    "RetransmitConfig",
    "RewoundReport",
    "SessionEnd",
    "SessionEndedError",
    "SessionEntry",
    "SessionRewoundError",
    "StreamHead",
    "StreamLedger",
    "Subscriber",
    "SubscriberConfig",
    "SubscriberStats",
    "TransportError",
    "WorkerStats",
    "decode_frame",
]


def _has_log() -> bool:
    try:
        return find_spec("crc32c") is not None
    except ImportError:
        return False


del ctrl_c

if not _has_log():  # so that `from p2pmsg import *` does without what is not there
    __all__.remove("LogConfig")
    __all__.remove("LogReader")


def __getattr__(name: str) -> Any:
    """Import what needs extra packages when it is first named: the log, metrics, StatsD.

    Where they are missing it raises `MissingExtraError`, which is an `AttributeError`.
    """
    if name in ("metrics", "statsd"):
        try:
            return import_module(f"p2pmsg.{name}")
        except ImportError as error:
            raise MissingExtraError(name, str(error.name), "statsd") from error
    if name in ("LogConfig", "LogReader"):
        package = import_log()
        reader = "p2pmsg.publisher.log_reader"
        return getattr(package if name == "LogConfig" else import_module(reader), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
