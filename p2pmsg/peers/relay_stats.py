"""The counters of relays, gathered."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from p2pmsg.errors import LossReport
from p2pmsg.relay.core import RelayCore
from p2pmsg.relay.stats import RelayedSessionStats, RelayStats
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.relays import LOOP


def relay_stats(
    core: RelayCore,
    source: SubscriberCore,
    upstreams: Sequence[str],
    unanswered: dict[str, str],
    answering: dict[str, bool],
    counts: dict[str, Any],
) -> RelayStats:
    """Return the counters; `counts` are those that publishers have, too."""
    totals: Counter[str] = Counter(source.stream_table.forgotten)
    for stream in source.streams:
        totals.update(stream.totals())
    invalid = Counter(source.invalid) + core.invalid + core.requests.invalid
    names = {up.name for up in source.relays.upstreams.values()}
    names |= {peer.name for peer in source.peers.values() if peer.joined and peer.direct}
    lines = zip(upstreams, source.lines, strict=True)
    refusals = {place: line.refusal for place, line in lines if line.refused_until_ns is not None}
    served = list(core.sessions.values())
    streams = [(each, stream) for each in served for stream in each.streams.values()]
    return RelayStats(
        relay=core.id,
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
        outstanding=sum(one.receiver.missing + one.receiver.buffered for one in source.streams),
        upstreams=sorted(names),
        loops_refused=source.relays.loops_refused,
        refused=[upstream for upstream, why in refusals.items() if why == LOOP],
        refusals=refusals,
        sessions_refused=core.sessions_refused, streams_refused=core.streams_refused,
        streams_rewound=source.stream_table.rewound, denied=source.denials.count,
        unanswered=unanswered, answering=answering,
        **counts | {"frames_invalid": dict(invalid)},
    )  # fmt: skip
