"""Frames in, frames out: ZeroMQ, UDP, memory. This package knows endpoints and bytes, no more."""

from typing import TYPE_CHECKING, Any

from transports.base import (
    DataReceiver,
    DataSender,
    GroupReceiver,
    GroupSender,
    PullSocket,
    PushSocket,
    QueueClient,
    QueueServer,
    RecoveryClient,
    RecoveryServer,
)
from transports.busy_wait import BUSY_WAIT_US, TURN, BusyWait, Turn
from transports.context import Context, context, ended_at_exit
from transports.endpoint import Endpoint, as_endpoint, parse_endpoint
from transports.errors import (
    AddressError,
    ClosedError,
    EndpointError,
    TransportError,
)
from transports.reply_memory import ReplyMemory
from transports.zmq_frame import free_zmq_frames, make_zmq_frame
from transports.zmq_pubsub import ZmqReceiver, ZmqSender
from transports.zmq_recovery import (
    ZmqQueueClient,
    ZmqQueueServer,
    ZmqRecoveryClient,
    ZmqRecoveryServer,
)
from transports.zmq_socket import ZmqSocket

if TYPE_CHECKING:
    from transports.curve import (
        CurveClient,
        CurveKeys,
        CurveServer,
        fingerprint,
        key_text,
        parse_key,
    )
    from transports.diagnosis import NEEDS_KEYS, describe_peer
    from transports.memory import (
        Link,
        MemoryNetwork,
        MemoryPull,
        MemoryPush,
        MemoryReceiver,
        MemoryRecoveryClient,
        MemoryRecoveryServer,
        MemorySender,
    )
    from transports.udp import Received, UdpReceiver, UdpSender

__all__ = [
    "BUSY_WAIT_US",
    "NEEDS_KEYS",
    "TURN",
    "AddressError",
    "BusyWait",
    "ClosedError",
    "Context",
    "CurveClient",
    "CurveKeys",
    "CurveServer",
    "DataReceiver",
    "DataSender",
    "Endpoint",
    "EndpointError",
    "GroupReceiver",
    "GroupSender",
    "Link",
    "MemoryNetwork",
    "MemoryPull",
    "MemoryPush",
    "MemoryReceiver",
    "MemoryRecoveryClient",
    "MemoryRecoveryServer",
    "MemorySender",
    "PullSocket",
    "PushSocket",
    "QueueClient",
    "QueueServer",
    "Received",
    "RecoveryClient",
    "RecoveryServer",
    "ReplyMemory",
    "TransportError",
    "Turn",
    "UdpReceiver",
    "UdpSender",
    "ZmqQueueClient",
    "ZmqQueueServer",
    "ZmqReceiver",
    "ZmqRecoveryClient",
    "ZmqRecoveryServer",
    "ZmqSender",
    "ZmqSocket",
    "as_endpoint",
    "context",
    "describe_peer",
    "ended_at_exit",
    "fingerprint",
    "free_zmq_frames",
    "key_text",
    "make_zmq_frame",
    "parse_endpoint",
    "parse_key",
]

# What few programs use is imported when it is first named here.
_LATER = {
    "curve": (
        "CurveClient", "CurveKeys", "CurveServer", "fingerprint", "key_text", "parse_key",
    ),
    "diagnosis": ("NEEDS_KEYS", "describe_peer"),
    "memory": (
        "Link", "MemoryNetwork", "MemoryPull", "MemoryPush", "MemoryReceiver",
        "MemoryRecoveryClient", "MemoryRecoveryServer", "MemorySender",
    ),
    "udp": ("Received", "UdpReceiver", "UdpSender"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is first named here; `AttributeError` where there is no such name."""
    from importlib import import_module

    for module, names in _LATER.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"transports.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
