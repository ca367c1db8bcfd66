"""Opening what a publisher is made of: log, engine, sockets."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast

import transports
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import ConfigError
from p2pmsg.peers.network import Network
from p2pmsg.peers.sending import Outgoing
from p2pmsg.peers.settings import log_config
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.publisher.served import PYTHON_MEMORY
from p2pmsg.security.use import check_datagrams, curve_server
from transports.endpoint import is_address
from transports.platform import read_proc

if TYPE_CHECKING:
    from pathlib import Path

    from p2pmsg.multicast.group_keys import GroupKeys
    from p2pmsg.peers.datagram_sender import DatagramSender
    from p2pmsg.relay.core import RelayCore
    from p2pmsg.security.settings import Security
    from recovery.log import LogConfig


class Settings(NamedTuple):
    """What a publisher is to be; see `Publisher`."""

    title: str
    endpoint: str | Sequence[str]
    recovery_endpoint: str | None
    config: PublisherConfig
    log: "LogConfig | str | Path | None"
    security: "Security | None"


def open_publisher(
    settings: Settings, network: Network, undo: ExitStack
) -> (
    "tuple[PublisherCore, transports.DataSender, transports.RecoveryServer, Outgoing, "
    "DatagramSender | None]"
):
    """Open all; raises what `Publisher` says. `undo` closes what was opened before that."""
    config, security = settings.config, settings.security
    places = parse_lines(settings.endpoint)
    for place in places:
        check_datagrams(security, place)
    server = network.recovery_server(
        recovery_endpoint_of(places[0], settings.recovery_endpoint, places[1:]),
        queue_frames=config.queue_frames,
        curve=curve_server(security),
    )
    undo.callback(server.close)
    log = _open_log(settings, network)
    if log is not None:
        undo.callback(log.close)
    core = PublisherCore(
        name=settings.title,
        session=network.random.getrandbits(64) if log is None else log.session,
        recovery=server.endpoint,
        config=config,
        now_ns=network.now_ns(),
        log=log,
        memory=PYTHON_MEMORY if places[0].is_datagram else network.frame_memory,
        incarnation=network.random.getrandbits(64),
    )
    sender, outgoing, group = _open_sender(core, places, security, network)
    return core, sender, server, outgoing, group


def _open_log(settings: Settings, network: Network) -> PublisherLog | None:
    config = log_config(settings.log)
    if config is None:
        return None
    from p2pmsg.relay.metadata import NAME as RELAY_METADATA

    log = PublisherLog(
        config,
        session=network.random.getrandbits(64),
        wall_ns=network.wall_ns(),
        store=network.log_store(config),
        slot_bytes=settings.config.full_bytes,
    )
    if log.store.read(RELAY_METADATA) is not None:
        log.close()
        limit = "the log of a publisher, or a new one; this is a relay's"
        raise ConfigError("log", limit, str(config.directory))
    return log


def parse_lines(endpoints: str | Sequence[str]) -> list[transports.Endpoint]:
    """Return where a publisher publishes: one endpoint, or the groups of its A and B lines.

    Raises:
        ConfigError: there is none, or several that are not all `udp://`.

    """
    texts = list(endpoints) if isinstance(endpoints, list | tuple) else [endpoints]
    if not texts:
        raise ConfigError("endpoint", "an endpoint, or several of udp://", endpoints)
    places = [transports.parse_endpoint(text) for text in texts]  # type: ignore[arg-type]
    if len(places) > 1 and any(place.scheme != "udp" for place in places):
        raise ConfigError("endpoint", "several of udp:// only", endpoints)
    return places


def _open_sender(
    core: PublisherCore,
    endpoints: Sequence[transports.Endpoint],
    security: "Security | None",
    network: Network,
) -> "tuple[transports.DataSender, Outgoing, DatagramSender | None]":
    """Bind, or open the sockets of a multicast."""
    endpoint = endpoints[0]
    source = core.config.multicast.source
    if source == "signed" and (endpoint.scheme != "udp" or security is None):
        raise ConfigError("multicast.source", "'group', except for udp:// with security", source)
    if endpoint.scheme == "udp":  # who publishes over TCP imports nothing of multicasts
        from p2pmsg.multicast.sender import MulticastSender
        from p2pmsg.peers.datagram_sender import DatagramOutgoing, DatagramSender, open_senders

        lines, datagram_bytes = open_senders(endpoints, core.config, network)
        keys = None if security is None else _group_keys(core, security, lines, network)
        chance = network.random
        multicast = MulticastSender(
            core.own, core.replay, core.config, datagram_bytes, chance, keys
        )
        core.use_multicast(multicast)
        group = DatagramSender(core, multicast, lines, network.now_ns)
        outgoing = DatagramOutgoing(core, group, network.now_ns)
        return cast("transports.DataSender", group), outgoing, group
    if endpoint.scheme == "mold":
        raise ConfigError("endpoint", "udp://… here; mold:// is for MoldPublisher", str(endpoint))
    sender = network.sender(
        endpoint,
        queue_frames=core.config.queue_frames,
        welcome=core.welcome,
        curve=curve_server(security),
        allows=allowed_by(core, security),
    )
    return sender, Outgoing(core, sender, network.now_ns), None


def _group_keys(
    core: PublisherCore,
    security: "Security",
    senders: list[transports.GroupSender],
    network: Network,
) -> "GroupKeys":
    """Return the keys of a sealed multicast; who may not read all of it gets none."""
    from p2pmsg.multicast.group_keys import GroupKeys
    from p2pmsg.multicast.keys import source_of
    from p2pmsg.multicast.seal import pick_cipher

    def sources() -> list[str]:
        found = [sender.find_source() for sender in senders]
        return [source_of(address) for address in found if address is not None]

    allowed_by(core, security)
    return GroupKeys(
        core.session,
        core.incarnation,
        pick_cipher(cpu_flags()),
        network.random,
        now_ns=network.now_ns(),
        signed=core.config.multicast.source == "signed",
        sources=sources,
    )


@cache
def cpu_flags() -> str:
    """Return what Linux says of the processor, or nothing; asked once in a process."""
    try:
        return read_proc("cpuinfo")
    except OSError:
        return ""


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


def allowed_by(
    core: "PublisherCore | RelayCore", security: "Security | None"
) -> Callable[[str, bytes], bool] | None:
    """Have a core answer by rights; return what decides on subscriptions. None: it is open."""
    if security is None:
        return None
    from p2pmsg.security.access_watch import prefixes_allowed

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
