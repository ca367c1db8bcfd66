"""A publisher's counters, gathered."""

from p2pmsg.publisher_core import PublisherCore
from p2pmsg.stats import PublisherStats, RequesterStats
from recovery import StallGuard


def publisher_stats(
    core: PublisherCore,
    guard: StallGuard,
    *,
    endpoint: str,
    recovery_endpoint: str,
    undelivered: int,
) -> PublisherStats:
    """Return the counters; the caller holds the publisher's lock."""
    requests = core.requests
    names = {known.requester: known.name for known in requests.subscribers.values()}
    requesters = [
        RequesterStats(
            name=names.get(requester) or requester.hex(),
            messages=stats.messages_sent,
            bytes=stats.bytes_sent,
            refused=stats.ranges_refused,
            throttled=stats.throttled,
        )
        for requester, stats in requests.scheduler.requester_stats().items()
    ]
    return PublisherStats(
        name=core.name,
        session=core.session,
        endpoint=endpoint,
        recovery_endpoint=recovery_endpoint,
        published=core.published,
        pending=core.pending,
        unsent_frames=len(core.outbox),
        subscribers=len(requests.subscribers),
        streams=core.heads(),
        replay_bytes=core.replay.bytes_held,
        replay_frames=core.replay.frames_held,
        messages_evicted=core.replay.messages_evicted,
        messages_repaired=sum(requests.messages_repaired.values()),
        repaired=dict(requests.messages_repaired),
        log=None if core.log is None else core.log.stats(),
        requesters=requesters,
        frames_shed=guard.frames_shed,
        stalls=guard.stalls,
        stalled_ms=guard.stalled_ns / 1e6,
        frames_invalid=dict(requests.invalid),
        heartbeats_sent=core.beats.sent,
        undelivered=undelivered,
    )
