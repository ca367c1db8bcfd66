"""The sockets of a worker process, kept from task to task: connecting takes longer than a fetch."""

import atexit
from collections import OrderedDict
from typing import Final

import p2pmsg
from spark_bridge.offsets import Range

_CONNECTIONS_MAX: Final = 512
"""The one that was not used for the longest time is closed for a further one."""


class Connections:
    """Range readers by endpoint and session. Spark's workers run one task at a time."""

    def __init__(self, connections_max: int = _CONNECTIONS_MAX) -> None:
        self._max = connections_max
        self._readers: OrderedDict[tuple[str, int], p2pmsg.RangeReader] = OrderedDict()

    def take(self, wanted: Range, timeout: float) -> p2pmsg.RangeReader:
        """Return a reader for where `wanted` is."""
        place = (wanted.endpoint, wanted.session)
        reader = self._readers.get(place)
        if reader is None:
            while len(self._readers) >= self._max:
                self._readers.popitem(last=False)[1].close()
            reader = self._readers[place] = _connect(wanted, timeout)
        self._readers.move_to_end(place)
        return reader

    def drop(self, wanted: Range) -> None:
        """Close the reader for where `wanted` is: something is wrong with it."""
        reader = self._readers.pop((wanted.endpoint, wanted.session), None)
        if reader is not None:
            reader.close()

    def close(self) -> None:
        """Close all."""
        while self._readers:
            self._readers.popitem()[1].close()


def _connect(wanted: Range, timeout: float) -> p2pmsg.RangeReader:
    if not wanted.recovery_endpoint:  # the driver could not reach the peer; it may be back
        return p2pmsg.RangeReader(wanted.endpoint, timeout=timeout)
    return p2pmsg.RangeReader(
        wanted.endpoint,
        timeout=timeout,
        recovery_endpoint=wanted.recovery_endpoint,
        session=wanted.session,
        publisher=wanted.publisher,
    )


connections: Final = Connections()
atexit.register(connections.close)
