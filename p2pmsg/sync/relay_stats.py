"""A relay's counters, gathered."""

from collections import Counter
from collections.abc import Sequence

from p2pmsg.errors import LossReport
from p2pmsg.relay.core import RelayCore
from p2pmsg.relay.stats import RelayedSessionStats, RelayStats
from p2pmsg.stats import RequesterStats
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.sync.publisher_stats import connection_counts
from recovery import StallGuard


def relay_stats(
    core: RelayCore,
    source: SubscriberCore,
    guard: StallGuard,
    *,
    endpoint: str,
    recovery_endpoint: str,
    upstreams: Sequence[str],
    undelivered: int,
    sockets: Sequence[object] = (),
    unanswered: dict[str, str],
) -> RelayStats:
    """Return the counters; the caller holds both locks."""
    served = list(core.sessions.values())
    totals: Counter[str] = Counter(source.stream_table.forgotten)
    for stream in source.streams:
        totals.update(stream.totals())
    invalid = Counter(source.invalid) + core.invalid + Counter(core.requests.frames_invalid)
    names = {up.name for up in source.relays.upstreams.values()}
    names |= {peer.name for peer in source.peers.values() if peer.joined and peer.direct}
    streams = [(each, stream) for each in served for stream in each.streams.values()]
    return RelayStats(
        name=core.name,
        relay=core.id,
        endpoint=endpoint,
        recovery_endpoint=recovery_endpoint,
        sessions=[
            RelayedSessionStats(
                session=each.session, publisher=each.name, hops=each.hops, is_live=each.is_live,
                streams=each.heads(),
            )
            for each in served
        ],
        received=sum(stream.received for _, stream in streams),
        lost=sum(stream.lost for _, stream in streams),
        losses=[
            LossReport(stream.topic, each.session, each.name, loss)
            for each, stream in streams
            for loss in stream.losses
        ],
        repaired_from={"buffer": totals["repaired"], "relay": totals["relayed"]},
        repaired=core.requests.messages_repaired,
        outstanding=_outstanding(core, source),
        subscribers=core.joined,
        upstreams=sorted(names),
        loops_refused=source.relays.loops_refused,
        refused=[
            upstreams[index]
            for index, line in enumerate(source.lines)
            if line.refused_until_ns is not None
        ],
        replay_bytes=core.replay.bytes_held, replay_frames=core.replay.frames_held,
        log=None if core.log is None else core.log.stats(),
        requesters=_requesters(core),
        frames_shed=guard.frames_shed,
        frames_invalid=dict(invalid),
        sessions_refused=core.sessions_refused,
        streams_refused=core.streams_refused,
        undelivered=undelivered, unanswered=unanswered,
        **_counts(core, source, sockets),
    )  # fmt: skip


def _outstanding(core: RelayCore, source: SubscriberCore) -> int:
    """Return how many messages are missing; also those that the log has lost."""
    count = 0
    for stream in source.streams:
        count += stream.receiver.missing + stream.receiver.buffered
    for (session, topic), cut in core.cut.items():
        peer = source.peers.get(session)
        asked = None if peer is None else peer.streams.get(topic)
        known = cut.next if asked is None else max(cut.next, asked.receiver.head)
        count += max(0, cut.end - known)
    return count


def _counts(
    core: RelayCore, source: SubscriberCore, sockets: Sequence[object]
) -> dict[str, int]:
    handlers = [served.requests for served in core.sessions.values()]
    return {
        "streams_rewound": source.stream_table.rewound,
        "control_dropped": core.control.dropped
        + core.requests.replies_dropped
        + sum(handler.replies_dropped for handler in handlers),
        "control_rationed": core.control.rationed,
        "heads_throttled": sum(handler.heads.throttled for handler in handlers),
        "memo_errors": 0 if core.memo is None else core.memo.errors,
        **connection_counts(*sockets),
    }


def _requesters(core: RelayCore) -> list[RequesterStats]:
    known = core.requests.subscribers.known().values()
    names = {subscriber.requester: subscriber.name for subscriber in known}
    return [
        RequesterStats(
            name=names.get(requester) or requester.hex(),
            messages=stats.messages_sent,
            bytes=stats.bytes_sent,
            refused=stats.ranges_refused,
            throttled=stats.throttled,
        )
        for served in core.sessions.values()
        for requester, stats in served.requests.scheduler.requester_stats().items()
    ]
