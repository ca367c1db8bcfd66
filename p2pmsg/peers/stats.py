"""The counters of publishers, gathered."""

from typing import Any

import transports
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.publisher.requests import RequestHandler
from p2pmsg.stats import MulticastLineStats, MulticastStats, PublisherStats, RequesterStats
from recovery import StallGuard


def publisher_stats(
    core: PublisherCore,
    guard: StallGuard,
    sender: transports.DataSender,
    server: transports.RecoveryServer,
    undelivered: int,
    group: Any = None,
) -> PublisherStats:
    """Return the counters; `group` is the sender where that is one to a multicast."""
    requests = core.requests
    repaired = dict(requests.messages_repaired)
    if group is not None:
        repaired["buffer"] += group.multicast.messages_repaired
    return PublisherStats(
        name=core.name,
        session=core.session,
        endpoint=sender.endpoint,
        recovery_endpoint=server.endpoint,
        published=core.published,
        pending=core.pending,
        unsent_frames=len(core.outbox),
        subscribers=core.joined,
        streams=core.heads(),
        replay_bytes=core.replay.bytes_held,
        messages_evicted=core.replay.messages_evicted,
        messages_repaired=sum(repaired.values()),
        repaired=repaired,
        log=None if core.log is None else core.log.stats(),
        requesters=requester_stats(requests),
        frames_shed=guard.frames_shed,
        stalls=guard.stalls,
        stalled=guard.stalled_ns / 1e9,
        frames_invalid=dict(requests.invalid),
        undelivered=undelivered,
        subscribers_forgotten=requests.known.forgotten_names(),
        control_dropped=core.control.dropped + requests.replies_dropped,
        heads_throttled=requests.heads.throttled,
        **connection_counts(sender, server),
        multicast=None if group is None else _multicast_stats(group),
        requests_denied=requests.denied,
    )


def requester_stats(requests: RequestHandler) -> list[RequesterStats]:
    """Return what each of the subscribers was sent again."""
    names = {known.requester: known.name for known in requests.known.by_id().values()}
    return [
        RequesterStats(
            name=names.get(requester) or requester.hex(),
            messages=stats.messages_sent,
            bytes=stats.bytes_sent,
            refused=stats.ranges_refused,
            throttled=stats.throttled,
        )
        for requester, stats in requests.scheduler.requester_stats().items()
    ]


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
    servers = [one for one in bound if isinstance(one, transports.ZmqRecoveryServer)]
    return {
        "connections": sum(map(len, counts)),
        "connections_refused": sum(one.refused for one in counts)
        + sum(one.refused_by_key for one in bound),
        "connections_oversubscribed": sum(one.oversubscribed for one in counts),
        "subscriptions_refused": sum(one.refused for one in allowed),
        "connections_ended": sum(one.ended for one in allowed),
        "connections_revoked": sum(one.revoked for one in allowed)
        + sum(one.revoked for one in servers),
    }


def _multicast_stats(sender: Any) -> MulticastStats:
    multicast = sender.multicast
    return MulticastStats(
        datagrams_sent=sender.datagrams_sent,
        nacks=multicast.nacks,
        messages_repaired=multicast.messages_repaired,
        bytes_repaired=multicast.bytes_repaired,
        repairs_throttled=multicast.repair.repairs_throttled,
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
