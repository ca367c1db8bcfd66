"""Connecting a subscriber's lines."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

import transports
from p2pmsg import wire
from p2pmsg.config import SubscriberConfig
from p2pmsg.driver.lifecycle import check_process, zmq_context
from p2pmsg.errors import ConfigError, translated
from p2pmsg.security.use import check_datagrams, curve_client
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.sync.subscriber_io import SubscriberIO
from p2pmsg.wire import Kind

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security
    from p2pmsg.sync.datagram_line import DatagramLine
    from p2pmsg.sync.mold_line import MoldGroup

IO = TypeVar("IO", bound=SubscriberIO)


def open_lines(
    core: SubscriberCore,
    places: list[transports.Endpoint],
    topics: list[str],
    config: SubscriberConfig,
    make: Callable[..., IO],
    security: "Security | None" = None,
) -> IO:
    """Return what `make` makes of the core and its lines, all connected; raises as `_connect`."""
    lock = threading.RLock()
    made = make(core, _connect(core, places, topics, config, lock, security), places, lock)
    made.use_security(security)
    if security is not None and security.access_rules is not None:
        users = [transports.key_text(security.server_key(place)) for place in places]
        core.use_access_rules(security.access_rules, users)
    return made


def _connect(
    core: SubscriberCore,
    places: list[transports.Endpoint],
    topics: list[str],
    config: SubscriberConfig,
    lock: threading.RLock,
    security: "Security | None" = None,
) -> "list[transports.ZmqReceiver | DatagramLine]":
    """Return all lines, connected; names of groups and of their hosts are looked up meanwhile.

    `ConfigError` where a host or interface is unknown, `BindError` where a group cannot be joined
    or an address is not this machine's. `AuthenticationError` where no key is pinned.
    """
    check_process()
    lines: list[transports.ZmqReceiver | DatagramLine] = []
    group: MoldGroup | None = None
    for place in places:
        check_datagrams(security, place)
    if security is not None:
        core.use_seal()
    with translated(), ExitStack() as undo:
        for line, place in enumerate(places):
            if place.scheme == "mold":
                from p2pmsg.sync import mold_line

                if core.start.kind == "time":
                    raise ConfigError("start", "no time where the endpoint is mold://", place)
                group = group or mold_line.MoldGroup(places)
                lines.append(mold_line.MoldLine(place, core, line, lock, group))
            elif place.is_datagram:
                from p2pmsg.sync import datagram_line

                lines.append(datagram_line.DatagramLine(place, core, line, lock))
            else:
                lines.append(make_receiver(place, topics, config, security))
            undo.callback(lines[-1].close)
        for one in lines:
            one.connect()
        undo.pop_all()
    return lines


def make_receiver(
    endpoint: transports.Endpoint,
    topics: list[str],
    config: SubscriberConfig,
    security: "Security | None" = None,
) -> transports.ZmqReceiver:
    """Return the socket of one connection, with its subscriptions; `connect` is the caller's."""
    receiver = transports.ZmqReceiver(
        endpoint,
        context=zmq_context(),
        queue_frames=config.queue_frames,
        frame_bytes_max=config.frame_bytes_max,
        busy_wait_us=config.busy_wait * 1e6,
        curve=curve_client(security, endpoint),
    )
    receiver.watch_end()
    for prefix in wire.topic_prefixes(topics or ["*"]):
        receiver.subscribe(prefix)
    receiver.subscribe(wire.control_prefix(Kind.WELCOME))
    return receiver
