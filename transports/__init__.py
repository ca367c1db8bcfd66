"""Frames in, frames out: ZeroMQ, UDP, memory. This package knows endpoints and bytes, no more.

What few programs use is in modules of its own: `curve`, `diagnosis`, `memory`, `udp`, `zmq_plain`,
`sp_plain`.
"""

from transports.base import (
    DataReceiver,
    DataSender,
    GroupReceiver,
    GroupSender,
    PullSocket,
    PushSocket,
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
from transports.zmq_frame import free_zmq_frames, make_zmq_frame
from transports.zmq_pubsub import ZmqReceiver, ZmqSender
from transports.zmq_recovery import ZmqRecoveryClient, ZmqRecoveryServer

__all__ = [
    "BUSY_WAIT_US",
    "TURN",
    "AddressError",
    "BusyWait",
    "ClosedError",
    "Context",
    "DataReceiver",
    "DataSender",
    "Endpoint",
    "EndpointError",
    "GroupReceiver",
    "GroupSender",
    "PullSocket",
    "PushSocket",
    "RecoveryClient",
    "RecoveryServer",
    "TransportError",
    "Turn",
    "ZmqReceiver",
    "ZmqRecoveryClient",
    "ZmqRecoveryServer",
    "ZmqSender",
    "as_endpoint",
    "context",
    "ended_at_exit",
    "free_zmq_frames",
    "make_zmq_frame",
    "parse_endpoint",
]
