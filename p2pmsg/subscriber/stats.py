"""A subscriber's ledger and counters, gathered."""

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
    """Return the counters; `left` messages of the active batch are not delivered yet.

    The caller holds the core's lock.
    """
    waiting: Counter[int] = Counter()
    for stream, output in core.ready:
        if isinstance(output, Delivery):
            waiting[id(stream)] += output.count
    if active is not None:
        waiting[id(active)] += left
    streams, desk = core.streams, core.cursor
    ledgers = [
        stream.ledger(waiting[id(stream)], None if desk is None else desk.committed(stream))
        for stream in streams
        if stream.receiver.started
    ]
    forgotten = core.stream_table.forgotten
    totals: Counter[str] = Counter(forgotten)
    for stream in streams:
        totals.update(stream.totals())
    repaired = {"buffer": totals["repaired"]}
    parity = None if core.member is None else core.member.parity
    if parity is not None:
        repaired["buffer"] -= parity.recovered
        repaired["parity"] = parity.recovered
    if totals["relayed"]:
        repaired["relay"] = totals["relayed"]
    return SubscriberStats(
        published=sum(ledger.published for ledger in ledgers),
        delivered=sum(ledger.delivered for ledger in ledgers) + forgotten["handed"],
        outstanding=sum(ledger.outstanding for ledger in ledgers),
        lost=sum(ledger.lost for ledger in ledgers) + forgotten["lost"],
        repaired=repaired,
        duplicates=totals["duplicates"],
        late=totals["late"],
        losses=[loss for stream in streams for loss in stream.losses()],
        streams=ledgers,
        conflated=totals["conflated"],
        repair_latency=core.stream_table.repair_latency,
        nacks_sent=totals["nacks"],
        frames_received=core.frames_received,
        frames_invalid=dict(core.invalid),
        frames_shed=core.frames_shed,
        bytes_held=core.bytes_held,
        publishers=[peer.name for peer in core.peers.values() if peer.joined and not peer.gone],
        cursor=cursor,
        lines=list(lines),
        sessions_unjoined=core.joiner.sessions_unjoined,
        streams_rewound=core.stream_table.rewound,
        messages_unconfirmed=0 if core.member is None else core.member.confirmation.unconfirmed,
    )
