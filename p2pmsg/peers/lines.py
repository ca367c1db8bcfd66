"""Connecting a subscriber's lines."""

from contextlib import ExitStack
from typing import TYPE_CHECKING

import transports
from p2pmsg import wire
from p2pmsg.config import SubscriberConfig
from p2pmsg.errors import ConfigError, translated
from p2pmsg.peers.network import Network
from p2pmsg.peers.receiving import Receiving
from p2pmsg.security.use import check_datagrams, curve_client
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.wire import Kind

if TYPE_CHECKING:
    from p2pmsg.peers.datagram_line import DatagramLine
    from p2pmsg.peers.mold_line import MoldGroup
    from p2pmsg.security.settings import Security


def open_lines(
    core: SubscriberCore,
    places: list[transports.Endpoint],
    topics: list[str],
    config: SubscriberConfig,
    network: Network,
    security: "Security | None" = None,
) -> Receiving:
    """Return what receives for the core, its lines connected.

    Names of groups and of their hosts are looked up meanwhile.

    Raises:
        ConfigError: a host or interface is unknown.
        BindError: a group cannot be joined, or an address is not this machine's.
        AuthenticationError: no key is pinned for an endpoint.

    """
    lines: list[transports.DataReceiver | DatagramLine] = []
    group: MoldGroup | None = None
    prefixes = [*wire.topic_prefixes(topics or ["*"]), wire.control_prefix(Kind.WELCOME)]
    for place in places:
        check_datagrams(security, place)
    if security is not None:
        core.use_seal()
    with translated(), ExitStack() as undo:
        for line, place in enumerate(places):
            if place.scheme == "mold":
                from p2pmsg.peers import mold_line

                if core.start.kind == "time":
                    raise ConfigError("start", "no time where the endpoint is mold://", place)
                group = group or mold_line.MoldGroup(places)
                lines.append(mold_line.MoldLine(place, core, line, group, network))
            elif place.is_datagram:
                from p2pmsg.peers import datagram_line

                lines.append(datagram_line.DatagramLine(place, core, line, network))
            else:
                receiver = network.receiver(
                    place, queue_frames=config.queue_frames, frame_bytes_max=config.frame_bytes_max,
                    busy_wait_us=config.busy_wait * 1e6, curve=curve_client(security, place),
                )  # fmt: skip
                for prefix in prefixes:
                    receiver.subscribe(prefix)
                lines.append(receiver)
            undo.callback(lines[-1].close)
        for one in lines:
            one.connect()
        if security is not None and security.access_rules is not None:
            from transports.curve import key_text

            users = [key_text(security.server_key(place)) for place in places]
            core.use_access_rules(security.access_rules, users)
        made = Receiving(core, lines, places, network, security)
        undo.pop_all()
    return made
