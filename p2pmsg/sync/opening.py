"""What publishers and relays have in common where they open."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import transports
from p2pmsg.publisher.served import FrameMemory
from transports.endpoint import is_address

if TYPE_CHECKING:
    from p2pmsg.publisher.core import PublisherCore
    from p2pmsg.relay.core import RelayCore
    from p2pmsg.security.settings import Security

ZMQ_MEMORY = FrameMemory(transports.make_zmq_frame, transports.free_zmq_frames)


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
