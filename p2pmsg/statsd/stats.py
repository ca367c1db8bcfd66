"""What a collector tells about itself."""

from dataclasses import dataclass

from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.flushing import Flushing
from p2pmsg.statsd.metric import BadLine
from p2pmsg.statsd.sockets import Inlets


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorStats:
    """Counters since the start."""

    packets: int
    """Datagrams, and pieces of streams."""
    metrics: int
    """Lines that were not empty."""
    bad_lines: int
    """Lines, or parts of them, that said nothing."""
    bad_reasons: dict[str, int]
    """The same by reason."""
    bad_sample: list[BadLine]
    """The last 20."""
    names: int
    """Metrics kept now."""
    names_cut: int
    """Metrics that were not taken since names were too many."""
    names_cut_sample: list[str]
    """The first ten of their names."""
    set_values_dropped: int
    """Values of sets that found no room."""
    events_dropped: int
    """Events and service checks that found no room."""
    timed_dropped: int
    """Metrics with a timestamp that found no room."""
    lines_overlong: int
    """Lines over TCP that were too long, and frames of `unixstream://`, which end it."""
    lines_unfinished: int
    """Lines that had not ended, and frames that were not whole, when their connection ended, and
    that were not taken: it was cut off, or the dialect is statsd's, which drops them."""
    kernel_drops: int
    """Datagrams that the kernel dropped since a receive buffer was full, as of the last flush."""
    connections: int
    """Connections open now."""
    connections_refused: int
    """Connections beyond 1,000."""
    flushes: int
    """Flushes that every output has."""
    output_failures: dict[str, int]
    """Exceptions by output."""
    read_failures: int
    """Exceptions while reading; each is a fault of the collector's."""
    error: BaseException | None
    """What ended the collector, if something did."""


def collector_stats(
    aggregator: Aggregator, inlets: Inlets, flushing: Flushing, error: BaseException | None
) -> CollectorStats:
    """Gather them."""
    aggregator.settle()
    inlets.note_drops()
    tally, series = aggregator.tally, aggregator.series
    return CollectorStats(
        packets=tally.packets,
        metrics=tally.metrics,
        bad_lines=tally.bad_lines,
        bad_reasons=dict(aggregator.bad_reasons),
        bad_sample=list(aggregator.bad_sample),
        names=len(series),
        names_cut=series.cut_count,
        names_cut_sample=list(series.cut_names),
        set_values_dropped=tally.set_values_dropped,
        events_dropped=tally.events_dropped,
        timed_dropped=tally.timed_dropped,
        lines_overlong=inlets.lines_overlong,
        lines_unfinished=inlets.lines_unfinished,
        kernel_drops=inlets.kernel_drops,
        connections=inlets.connections,
        connections_refused=inlets.connections_refused,
        flushes=flushing.flushes,
        output_failures=dict(flushing.failures),
        read_failures=inlets.failures,
        error=error,
    )
