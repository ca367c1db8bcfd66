"""The counters of publishers, gathered."""

from typing import Any

import transports
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.stats import MulticastLineStats, MulticastStats, PublisherStats


def publisher_stats(core: PublisherCore, group: Any, counts: dict[str, Any]) -> PublisherStats:
    """Return the counters; `group` is the sender where that is one to a multicast.

    `counts` are those that relays have, too.
    """
    if group is not None:
        counts["repaired"]["buffer"] += group.multicast.messages_repaired
    return PublisherStats(
        session=core.session, published=core.published, pending=core.pending,
        unsent_frames=len(core.outbox), streams=core.heads(),
        messages_evicted=core.replay.messages_evicted,
        messages_repaired=sum(counts["repaired"].values()),
        multicast=None if group is None else _multicast_stats(group), **counts,
    )  # fmt: skip


def connection_counts(*sockets: object) -> dict[str, int]:
    """Return the counters of who is connected to a peer's bound sockets."""
    bound = [
        one
        for one in sockets
        if isinstance(one, transports.ZmqSender | transports.ZmqRecoveryServer)
    ]
    counts = [one.connections for one in bound]
    senders = [one for one in bound if isinstance(one, transports.ZmqSender)]
    allowed = [one.allowed for one in senders if one.allowed is not None]
    return {
        "connections": sum(map(len, counts)),
        "connections_refused": sum(one.refused for one in counts)
        + sum(one.refused_by_key for one in bound),
        "connections_oversubscribed": sum(one.oversubscribed for one in counts),
        "subscriptions_refused": sum(one.refused for one in allowed),
        "connections_ended": sum(one.ended for one in allowed),
        "connections_revoked": sum(one.revoked for one in counts),
    }


def _multicast_stats(sender: Any) -> MulticastStats:
    multicast = sender.multicast
    return MulticastStats(
        datagrams_sent=sender.datagrams_sent,
        nacks=multicast.nacks,
        messages_repaired=multicast.messages_repaired,
        bytes_repaired=multicast.bytes_repaired,
        receivers_waited_for=multicast.window.receivers,
        window_waits=sender.waits,
        invalid=dict(multicast.invalid),
        kernel_drops=sender.kernel_drops,
        buffer_bytes=sender.buffer_bytes,
        lines=[
            MulticastLineStats(
                endpoint=one.endpoint, unsent=one.unsent.count, failing=one.unsent.why
            )
            for one in sender.lines
        ],
    )
