"""A publisher's way out, by the scheme of its endpoint."""

import time
from collections.abc import Sequence
from random import SystemRandom

import transports
from p2pmsg.errors import ConfigError
from p2pmsg.publisher_core import PublisherCore
from p2pmsg.sync.datagram_sender import DatagramOutgoing, DatagramSender, open_senders
from p2pmsg.sync.outgoing import Outgoing
from transports.endpoint_options import is_address

Sender = transports.ZmqSender | DatagramSender
_random = SystemRandom()


def parse_lines(endpoints: str | Sequence[str]) -> list[transports.Endpoint]:
    """Return where a publisher publishes: one endpoint, or the groups of its A and B lines.

    Raises:
        transports.EndpointError: one is not well-formed.
        ConfigError: there is none, or several that are not all `udp://`.

    """
    texts = list(endpoints) if isinstance(endpoints, list | tuple) else [endpoints]
    if not texts:
        raise ConfigError("endpoint", "an endpoint, or several of udp://", endpoints)
    places = [transports.parse_endpoint(text) for text in texts]  # type: ignore[arg-type]
    if len(places) > 1 and any(place.scheme != "udp" for place in places):
        raise ConfigError("endpoint", "several of udp:// only", endpoints)
    return places


def open_way_out(
    core: PublisherCore, endpoints: Sequence[transports.Endpoint]
) -> tuple[Sender, Outgoing]:
    """Bind, or open the sockets of a multicast."""
    endpoint = endpoints[0]
    if endpoint.scheme == "udp":
        (udp, *others), datagram_bytes = open_senders(endpoints, core.config)
        group = core.become_group(datagram_bytes, rng=_random, now_ns=time.monotonic_ns())
        datagrams = DatagramSender(core, group, udp, others)
        return datagrams, DatagramOutgoing(core, datagrams)
    if endpoint.scheme == "mold":
        raise ConfigError("endpoint", "udp://… here; mold:// is for MoldPublisher", str(endpoint))
    sender = transports.ZmqSender(
        endpoint,
        context=transports.context(),
        queue_frames=core.config.queue_frames,
        welcome=core.welcome,
    )
    return sender, Outgoing(core, sender)


def recovery_beside(endpoint: transports.Endpoint) -> transports.Endpoint:
    """Return where a multicast's repairs over TCP are asked for: on its interface, or on all."""
    interface = endpoint.option("interface")
    if is_address(interface):
        host = f"[{interface}]" if ":" in interface else interface
        return transports.parse_endpoint(f"tcp://{host}:0")
    return transports.parse_endpoint("tcp://[::]:0" if endpoint.is_ipv6 else "tcp://*:0")
