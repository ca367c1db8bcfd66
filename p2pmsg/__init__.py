"""Brokerless peer-to-peer messaging in which nothing is lost silently.

Each message that a publisher accepted is, at every subscriber, delivered once and in order, or
reported lost with its exact range and reason.

The names here are what most programs need; `p2pmsg.aio` has those for asyncio. The rest is by
subject: `p2pmsg.config`, `p2pmsg.errors`, `p2pmsg.stats`, `p2pmsg.message`, `p2pmsg.frames`,
`p2pmsg.log`, `p2pmsg.queue`, `p2pmsg.requests`, `p2pmsg.relay`, `p2pmsg.reader`, `p2pmsg.bridge`,
`p2pmsg.security`, `p2pmsg.listener`, `p2pmsg.moldudp64`, `p2pmsg.metrics`, `p2pmsg.statsd`,
`p2pmsg.app`, `p2pmsg.http`, `p2pmsg.webhooks`, `p2pmsg.testing`, `p2pmsg.codec`, `p2pmsg.plain`,
`p2pmsg.store`, `p2pmsg.native`; packages that build upon this one take `p2pmsg.toolkit`, as its own
do. Each is imported when it is first used: a program pays for what it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2pmsg import aio as aio
    from p2pmsg import bridge as bridge
    from p2pmsg import config as config
    from p2pmsg import errors as errors
    from p2pmsg import frames as frames
    from p2pmsg import http as http
    from p2pmsg import listener as listener
    from p2pmsg import log as log
    from p2pmsg import message as message
    from p2pmsg import metrics as metrics
    from p2pmsg import moldudp64 as moldudp64
    from p2pmsg import queue as queue
    from p2pmsg import reader as reader
    from p2pmsg import relay as relay
    from p2pmsg import requests as requests
    from p2pmsg import security as security
    from p2pmsg import stats as stats
    from p2pmsg import statsd as statsd
    from p2pmsg import toolkit as toolkit
    from p2pmsg import webhooks as webhooks
    from p2pmsg.app import App as App
    from p2pmsg.bridge import Bridge as Bridge
    from p2pmsg.config import CursorConfig as CursorConfig
    from p2pmsg.config import PublisherConfig as PublisherConfig
    from p2pmsg.config import SubscriberConfig as SubscriberConfig
    from p2pmsg.errors import BindError as BindError
    from p2pmsg.errors import ClosedError as ClosedError
    from p2pmsg.errors import ConfigError as ConfigError
    from p2pmsg.errors import LogError as LogError
    from p2pmsg.errors import LossReport as LossReport
    from p2pmsg.errors import MessageError as MessageError
    from p2pmsg.errors import MessagesLostError as MessagesLostError
    from p2pmsg.errors import P2PError as P2PError
    from p2pmsg.errors import RequestError as RequestError
    from p2pmsg.errors import SendQueueFullError as SendQueueFullError
    from p2pmsg.log import LogConfig as LogConfig
    from p2pmsg.message import Message as Message
    from p2pmsg.message import MessageBatch as MessageBatch
    from p2pmsg.peers.threads.publisher import Publisher as Publisher
    from p2pmsg.peers.threads.puller import Puller as Puller
    from p2pmsg.peers.threads.pusher import Pusher as Pusher
    from p2pmsg.peers.threads.relay import Relay as Relay
    from p2pmsg.peers.threads.requester import Requester as Requester
    from p2pmsg.peers.threads.responder import Responder as Responder
    from p2pmsg.peers.threads.subscriber import Subscriber as Subscriber
    from p2pmsg.queue import Job as Job
    from p2pmsg.queue import PusherConfig as PusherConfig
    from p2pmsg.security import Security as Security

    __version__: str

__all__ = [
    "App",
    "BindError",
    "Bridge",
    "ClosedError",
    "ConfigError",
    "CursorConfig",
    "Job",
    "LogConfig",
    "LogError",
    "LossReport",
    "Message",
    "MessageBatch",
    "MessageError",
    "MessagesLostError",
    "P2PError",
    "Publisher",
    "PublisherConfig",
    "Puller",
    "Pusher",
    "PusherConfig",
    "Relay",
    "RequestError",
    "Requester",
    "Responder",
    "Security",
    "SendQueueFullError",
    "Subscriber",
    "SubscriberConfig",
    "__version__",
]

_HOMES = {
    "p2pmsg.app": ("App",),
    "p2pmsg.bridge": ("Bridge",),
    "p2pmsg.config": ("CursorConfig", "PublisherConfig", "SubscriberConfig"),
    "p2pmsg.errors": (
        "BindError", "ClosedError", "ConfigError", "LogError", "LossReport",
        "MessageError", "MessagesLostError", "P2PError", "RequestError", "SendQueueFullError",
    ),
    "p2pmsg.log": ("LogConfig",),
    "p2pmsg.message": ("Message", "MessageBatch"),
    "p2pmsg.peers.threads.pusher": ("Pusher",),
    "p2pmsg.peers.threads.requester": ("Requester",),
    "p2pmsg.peers.threads.responder": ("Responder",),
    "p2pmsg.queue": ("Job", "PusherConfig"),
    "p2pmsg.security": ("Security",),
    "p2pmsg.peers.threads.publisher": ("Publisher",),
    "p2pmsg.peers.threads.puller": ("Puller",),
    "p2pmsg.peers.threads.relay": ("Relay",),
    "p2pmsg.peers.threads.subscriber": ("Subscriber",),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}

_SUBMODULES = {
    "aio", "app", "bridge", "codec", "config", "errors", "frames", "http", "listener", "log",
    "message", "metrics", "moldudp64", "plain", "queue", "reader", "relay", "requests", "security",
    "stats", "statsd", "store", "testing", "toolkit", "webhooks",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is first named here.

    Raises:
        AttributeError: there is no such name. `MissingExtraError`, which is one, names the extra to
            install for it.

    """
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("p2pmsg")
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _SUBMODULES:
        try:
            return import_module(f"p2pmsg.{name}")
        except ImportError as error:
            from p2pmsg.errors import MissingExtraError

            raise MissingExtraError(name, str(error.name), "statsd") from error
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
