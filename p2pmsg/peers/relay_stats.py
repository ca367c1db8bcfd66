"""The counters of relays, gathered."""

from collections import Counter
from collections.abc import Sequence

import transports
from p2pmsg.errors import LossReport
from p2pmsg.peers.stats import connection_counts, requester_stats
from p2pmsg.relay.core import RelayCore
from p2pmsg.relay.stats import RelayedSessionStats, RelayStats
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.relays import LOOP
from recovery import StallGuard


def relay_stats(
    core: RelayCore,
    source: SubscriberCore,
    guard: StallGuard,
    sender: transports.DataSender,
    server: transports.RecoveryServer,
    *,
    upstreams: Sequence[str],
    undelivered: int,
    unanswered: dict[str, str],
    answering: dict[str, bool],
) -> RelayStats:
    """Return the counters."""
    served, requests = list(core.sessions.values()), core.requests
    totals: Counter[str] = Counter(source.stream_table.forgotten)
    for stream in source.streams:
        totals.update(stream.totals())
    invalid = Counter(source.invalid) + core.invalid + requests.invalid
    names = {up.name for up in source.relays.upstreams.values()}
    names |= {peer.name for peer in source.peers.values() if peer.joined and peer.direct}
    lines = zip(upstreams, source.lines, strict=True)
    refusals = {place: line.refusal for place, line in lines if line.refused_until_ns is not None}
    streams = [(each, stream) for each in served for stream in each.streams.values()]
    return RelayStats(
        name=core.name,
        relay=core.id,
        endpoint=sender.endpoint,
        recovery_endpoint=server.endpoint,
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
        repaired=dict(requests.messages_repaired),
        outstanding=sum(one.receiver.missing + one.receiver.buffered for one in source.streams),
        subscribers=core.joined,
        upstreams=sorted(names),
        loops_refused=source.relays.loops_refused,
        refused=[upstream for upstream, why in refusals.items() if why == LOOP],
        refusals=refusals,
        replay_bytes=core.replay.bytes_held,
        log=None if core.log is None else core.log.stats(),
        requesters=requester_stats(requests),
        frames_shed=guard.frames_shed,
        frames_invalid=dict(invalid),
        sessions_refused=core.sessions_refused, streams_refused=core.streams_refused,
        undelivered=undelivered, unanswered=unanswered, answering=answering,
        subscribers_forgotten=requests.known.forgotten_names(), **_counts(core, source),
        **connection_counts(sender, server),
    )  # fmt: skip


def _counts(core: RelayCore, source: SubscriberCore) -> dict[str, int]:
    return {
        "requests_denied": core.requests.denied,
        "denied": source.denials.count,
        "streams_rewound": source.stream_table.rewound,
        "control_dropped": core.control.dropped + core.requests.replies_dropped,
        "heads_throttled": core.requests.heads.throttled,
        "memo_errors": 0 if core.metadata is None else core.metadata.errors,
    }
