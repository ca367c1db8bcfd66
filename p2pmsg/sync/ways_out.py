"""A publisher's way out, by the scheme of its endpoint."""

import time

import transports
from p2pmsg.errors import ConfigError
from p2pmsg.publisher_core import PublisherCore
from p2pmsg.sync.datagram_sender import DatagramOutgoing, DatagramSender, open_sender
from p2pmsg.sync.outgoing import Outgoing
from transports.endpoint_options import is_address

Sender = transports.ZmqSender | DatagramSender


def open_way_out(core: PublisherCore, endpoint: transports.Endpoint) -> tuple[Sender, Outgoing]:
    """Bind, or open the socket of a multicast."""
    if endpoint.scheme == "udp":
        udp, datagram_bytes = open_sender(endpoint, core.config)
        group = core.become_group(datagram_bytes, now_ns=time.monotonic_ns())
        datagrams = DatagramSender(core, group, udp)
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
