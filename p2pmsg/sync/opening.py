"""Opening what a publisher is made of: log, sockets, core."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from random import SystemRandom
from typing import TYPE_CHECKING

import transports
from p2pmsg.config import PublisherConfig
from p2pmsg.driver.lifecycle import zmq_context
from p2pmsg.errors import ConfigError, translated
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.publisher.served import PYTHON_MEMORY, FrameMemory
from p2pmsg.security.use import check_datagrams, curve_server, warn_if_open
from p2pmsg.sync.sending import Outgoing
from p2pmsg.sync.settings import log_config
from transports.endpoint import is_address
from transports.platform import read_proc

if TYPE_CHECKING:
    from pathlib import Path

    from p2pmsg.multicast.group_keys import GroupKeys
    from p2pmsg.relay.core import RelayCore
    from p2pmsg.security.settings import Security
    from p2pmsg.sync.datagram_sender import DatagramSender
    from recovery.log import LogConfig

    Sender = transports.ZmqSender | DatagramSender
    Opened = tuple[PublisherCore, Sender, transports.ZmqRecoveryServer, Outgoing]

ZMQ_MEMORY = FrameMemory(transports.make_zmq_frame, transports.free_zmq_frames)
_random = SystemRandom()  # a forked child would repeat what another one draws


def open_publisher(
    name: str,
    endpoint: str | Sequence[str],
    recovery_endpoint: str | None,
    config: PublisherConfig,
    log: "LogConfig | str | Path | None",
    security: "Security | None" = None,
) -> "Opened":
    """Open all, or nothing; raises what `Publisher` says."""
    with translated(), ExitStack() as undo:
        places = parse_lines(endpoint)
        recovery_at = recovery_endpoint_of(places[0], recovery_endpoint, places[1:])
        opened = _open(name, places, recovery_at, config, log, security, undo)
        undo.pop_all()
        return opened


def _open(
    name: str,
    places: Sequence[transports.Endpoint],
    recovery_at: transports.Endpoint,
    config: PublisherConfig,
    log: "LogConfig | str | Path | None",
    security: "Security | None",
    undo: ExitStack,
) -> "Opened":
    context = zmq_context()
    session = _random.getrandbits(64)
    kept: PublisherLog | None = None
    if (log := log_config(log)) is not None:
        from p2pmsg.relay.metadata import NAME as RELAY_METADATA

        kept = PublisherLog(
            log, session=session, wall_ns=time.time_ns(), slot_bytes=config.full_bytes
        )
        session = kept.session
        undo.callback(kept.close)
        if kept.store.read(RELAY_METADATA) is not None:
            limit = "the log of a publisher, or a new one; this is a relay's"
            raise ConfigError("log", limit, str(log.directory))
    for place in places:
        check_datagrams(security, place)
    server = transports.ZmqRecoveryServer(
        recovery_at, context=context, queue_frames=config.queue_frames, curve=curve_server(security)
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
        incarnation=_random.getrandbits(64),
    )
    sender, outgoing = open_sender(core, places, security)
    for bound in (sender.endpoint, server.endpoint):
        warn_if_open(security, bound)
    return core, sender, server, outgoing


def recovery_endpoint_of(
    endpoint: transports.Endpoint,
    recovery_endpoint: str | None,
    others: Sequence[transports.Endpoint] = (),
) -> transports.Endpoint:
    """Return where repairs are asked for: as given, or next to `endpoint` and `others`."""
    if recovery_endpoint is not None:
        return transports.parse_endpoint(recovery_endpoint)
    if endpoint.scheme == "tcp":
        return endpoint.with_port(0)
    if endpoint.is_datagram:
        return default_recovery(endpoint, others)
    return transports.parse_endpoint(f"{endpoint}.recovery")


def parse_lines(endpoints: str | Sequence[str]) -> list[transports.Endpoint]:
    """Return where a publisher publishes: one endpoint, or the groups of its A and B lines.

    `ConfigError` where there is none, or several that are not all `udp://`.
    """
    texts = list(endpoints) if isinstance(endpoints, list | tuple) else [endpoints]
    if not texts:
        raise ConfigError("endpoint", "an endpoint, or several of udp://", endpoints)
    places = [transports.parse_endpoint(text) for text in texts]  # type: ignore[arg-type]
    if len(places) > 1 and any(place.scheme != "udp" for place in places):
        raise ConfigError("endpoint", "several of udp:// only", endpoints)
    return places


def open_sender(
    core: PublisherCore,
    endpoints: Sequence[transports.Endpoint],
    security: "Security | None" = None,
) -> "tuple[Sender, Outgoing]":
    """Bind, or open the sockets of a multicast."""
    endpoint = endpoints[0]
    source = core.config.multicast.source
    if source == "signed" and (endpoint.scheme != "udp" or security is None):
        raise ConfigError("multicast.source", "'group', except for udp:// with security", source)
    if endpoint.scheme == "udp":  # who publishes over TCP imports nothing of multicasts
        from p2pmsg.multicast.sender import MulticastSender
        from p2pmsg.sync.datagram_sender import DatagramOutgoing, DatagramSender, open_senders

        (udp, *others), datagram_bytes = open_senders(endpoints, core.config)
        keys = None if security is None else _group_keys(core, security, [udp, *others])
        multicast = MulticastSender(core, core.replay, core.config, datagram_bytes, _random, keys)
        core.use_multicast(multicast)
        datagrams = DatagramSender(core, multicast, udp, others)
        return datagrams, DatagramOutgoing(core, datagrams)
    if endpoint.scheme == "mold":
        raise ConfigError("endpoint", "udp://… here; mold:// is for MoldPublisher", str(endpoint))
    sender = transports.ZmqSender(
        endpoint,
        context=zmq_context(),
        queue_frames=core.config.queue_frames,
        welcome=core.welcome,
        curve=curve_server(security),
        allows=allowed_by(core, security),
    )
    return sender, Outgoing(core, sender)


def _group_keys(
    core: PublisherCore, security: "Security", senders: "list[transports.UdpSender]"
) -> "GroupKeys":
    """Return the keys of a sealed multicast; who may not read all of it gets none."""
    from p2pmsg.multicast.group_keys import GroupKeys
    from p2pmsg.multicast.keys import source_of
    from p2pmsg.multicast.seal import pick_cipher

    def sources() -> list[str]:
        found = [sender.find_source() for sender in senders]
        return [source_of(address) for address in found if address is not None]

    allowed_by(core, security)
    cipher = pick_cipher(cpu_flags())
    signed = core.config.multicast.source == "signed"
    now_ns = time.monotonic_ns()
    return GroupKeys(
        core.session,
        core.incarnation,
        cipher,
        _random,
        now_ns=now_ns,
        signed=signed,
        sources=sources,
    )


@cache
def cpu_flags() -> str:
    """Return what Linux says of the processor, or nothing; asked once in a process."""
    try:
        return read_proc("cpuinfo")
    except OSError:
        return ""


def allowed_by(
    core: "PublisherCore | RelayCore", security: "Security | None"
) -> Callable[[str, bytes], bool] | None:
    """Have a core answer by rights; return what decides on subscriptions. None: it is open."""
    if security is None:
        return None
    from p2pmsg.sync.access_watch import prefixes_allowed

    core.use_access_rules(security.grants)
    return prefixes_allowed(security.grants)


def default_recovery(
    endpoint: transports.Endpoint, others: Sequence[transports.Endpoint] = ()
) -> transports.Endpoint:
    """Return where a multicast's repairs over TCP are asked for: on its interface, or on all.

    It is on all where its lines have several: each is there for when another one is not. One of
    IPv6 takes connections of IPv4, too.
    """
    every = [endpoint, *others]
    interface = endpoint.option("interface")
    if is_address(interface) and all(one.option("interface") == interface for one in others):
        host = f"[{interface}]" if ":" in interface else interface
        return transports.parse_endpoint(f"tcp://{host}:0")
    is_ipv6 = any(one.is_ipv6 for one in every)
    return transports.parse_endpoint("tcp://[::]:0" if is_ipv6 else "tcp://*:0")
