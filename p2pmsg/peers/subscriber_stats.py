"""The ledger and the counters of a subscriber, gathered."""

from collections import Counter
from collections.abc import Sequence

from p2pmsg.stats import CursorStats, LineStats, SubscriberStats
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.sessions import Stream
from recovery import Delivery


def subscriber_stats(
    core: SubscriberCore,
    active: Stream | None = None,
    left: int = 0,
    lines: Sequence[LineStats] = (),
    cursor: CursorStats | None = None,
) -> SubscriberStats:
    """Return the counters; `left` messages that were taken of `active` are not delivered yet."""
    waiting: Counter[int] = Counter()
    for stream, output in core.ready:
        if isinstance(output, Delivery):
            waiting[id(stream)] += output.count
    if active is not None:
        waiting[id(active)] += left
    streams, points, table = core.streams, core.cursor, core.stream_table
    ledgers = [
        stream.ledger(waiting[id(stream)], None if points is None else points.committed(stream))
        for stream in streams
        if stream.receiver.started
    ]
    totals: Counter[str] = Counter(table.forgotten)
    for stream in streams:
        totals.update(stream.totals())
        table.record_ages(stream)
    repaired = {"buffer": totals["repaired"]}
    parity = None if core.multicast is None else core.multicast.parity
    if parity is not None:
        repaired["buffer"] -= parity.recovered
        repaired["parity"] = parity.recovered
    if totals["relayed"]:
        repaired["relay"] = totals["relayed"]
    return SubscriberStats(
        published=sum(ledger.published for ledger in ledgers) + table.forgotten["published"],
        delivered=sum(ledger.delivered for ledger in ledgers) + table.forgotten["delivered"],
        outstanding=sum(ledger.outstanding for ledger in ledgers),
        lost=sum(ledger.lost for ledger in ledgers) + table.forgotten["lost"],
        repaired=repaired,
        duplicates=totals["duplicates"],
        late=totals["late"],
        losses=[loss for stream in streams for loss in stream.losses()],
        streams=ledgers,
        conflated=totals["conflated"],
        values_invalid=core.ready.values_invalid,
        repair_latency=table.repair_latency,
        nacks_sent=totals["nacks"],
        frames_invalid=dict(core.invalid),
        frames_shed=core.frames_shed,
        bytes_held=core.bytes_held,
        publishers=[peer.name for peer in core.peers.values() if peer.joined and not peer.gone],
        cursor=cursor,
        lines=list(lines),
        sessions_unjoined=core.table.unjoined,
        streams_rewound=table.rewound,
        denied=core.denials.count,
    )
