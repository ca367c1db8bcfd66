"""What a task does: ranges in, record batches out."""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

import p2pmsg
from spark_bridge.errors import DataLossError
from spark_bridge.offsets import Range
from spark_bridge.options import SourceOptions
from spark_bridge.schema import BatchBuilder

_CONNECTIONS_MAX: Final = 64
"""So many peers are connected to at a time, since connecting takes longer than a small range."""
_log: Final = logging.getLogger("spark_bridge")


def read_ranges(ranges: Sequence[Range], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the messages of `ranges`, each once; `DataLossError` for what is gone."""
    for at in range(0, len(ranges), _CONNECTIONS_MAX):
        yield from _read_some(ranges[at : at + _CONNECTIONS_MAX], options)


def _read_some(ranges: Sequence[Range], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    timeout = options.fetchTimeoutMs / 1000
    builder = BatchBuilder()
    readers: dict[tuple[str, int], p2pmsg.RangeReader] = {}
    try:
        for each in ranges:
            place = (each.endpoint, each.session)
            if place not in readers:
                readers[place] = _connect(each, timeout)
        for each in ranges:
            reader = readers[each.endpoint, each.session]
            for item in reader.fetch(each.topic, each.start, each.stop, session=each.session):
                if isinstance(item, p2pmsg.LossReport):
                    _lose(each, item, options)
                    continue
                builder.add(item)
                if builder.is_full:
                    yield from builder.take()
        yield from builder.take()
    finally:
        for reader in readers.values():
            reader.close()


def _connect(each: Range, timeout: float) -> p2pmsg.RangeReader:
    if each.recovery_endpoint is None:  # the driver could not reach the peer; it may be back
        return p2pmsg.RangeReader(each.endpoint, timeout=timeout)
    return p2pmsg.RangeReader(
        each.endpoint,
        timeout=timeout,
        recovery_endpoint=each.recovery_endpoint,
        session=each.session,
        publisher=each.publisher,
    )


def _lose(each: Range, report: p2pmsg.LossReport, options: SourceOptions) -> None:
    lost = f"{report}, at {each.endpoint}"
    if options.failOnDataLoss:
        raise DataLossError(lost)
    _log.warning("%s; skipped", lost)
