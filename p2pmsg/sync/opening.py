"""Opening what a publisher is made of: its log, its sockets, its core."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from random import SystemRandom
from typing import TYPE_CHECKING

import transports
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import BindError, ConfigError, EndpointError
from p2pmsg.publisher_core import PublisherCore
from p2pmsg.publisher_log import PublisherLog
from p2pmsg.publisher_stream import PYTHON_MEMORY, FrameMemory
from p2pmsg.relay.memo import NAME as RELAY_MEMO
from p2pmsg.sync.outgoing import Outgoing
from p2pmsg.sync.ways_out import Sender, open_way_out, parse_lines, recovery_beside

if TYPE_CHECKING:
    from recovery.log import LogConfig

ZMQ_MEMORY = FrameMemory(transports.make_zmq_frame, transports.free_zmq_frames)
_random = SystemRandom()  # a forked child would repeat what another one draws
Opened = tuple[PublisherCore, Sender, transports.ZmqRecoveryServer, Outgoing]


def open_publisher(
    name: str,
    endpoint: str | Sequence[str],
    recovery_endpoint: str | None,
    config: PublisherConfig,
    log: "LogConfig | None",
) -> Opened:
    """Open all, or nothing; raises what `Publisher` says."""
    try:
        places = parse_lines(endpoint)
        recovery_at = recovery_endpoint_of(places[0], recovery_endpoint)
        with ExitStack() as undo:
            opened = _open(name, places, recovery_at, config, log, undo)
            undo.pop_all()
            return opened
    except transports.EndpointError as error:
        raise EndpointError(error) from error
    except transports.BindError as error:
        raise BindError(str(error), error.errno) from error


def _open(
    name: str,
    places: Sequence[transports.Endpoint],
    recovery_at: transports.Endpoint,
    config: PublisherConfig,
    log: "LogConfig | None",
    undo: ExitStack,
) -> Opened:
    session = _random.getrandbits(64)
    kept: PublisherLog | None = None
    if log is not None:
        kept = PublisherLog(
            log, session=session, wall_ns=time.time_ns(), slot_bytes=config.full_bytes
        )
        session = kept.session
        undo.callback(kept.close, time.time_ns())
        if kept.store.read(RELAY_MEMO) is not None:
            limit = "the log of a publisher, or a new one; this is a relay's"
            raise ConfigError("log", limit, str(log.directory))
    server = transports.ZmqRecoveryServer(
        recovery_at, context=transports.context(), queue_frames=config.queue_frames
    )
    undo.callback(server.close)
    core = PublisherCore(
        name=name,
        session=session,
        recovery=server.endpoint,
        config=config,
        now_ns=time.monotonic_ns(),
        log=kept,
        memory=PYTHON_MEMORY if any(at.is_datagram for at in places) else ZMQ_MEMORY,
        life=_random.getrandbits(64),
    )
    sender, outgoing = open_way_out(core, places)
    return core, sender, server, outgoing


def recovery_endpoint_of(
    endpoint: transports.Endpoint, recovery_endpoint: str | None
) -> transports.Endpoint:
    """Return where repairs are asked for: as given, or beside `endpoint`."""
    if recovery_endpoint is not None:
        return transports.parse_endpoint(recovery_endpoint)
    if endpoint.scheme == "tcp":
        return endpoint.with_port(0)
    if endpoint.is_datagram:
        return recovery_beside(endpoint)
    return transports.parse_endpoint(f"{endpoint}.recovery")
