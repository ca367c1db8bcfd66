"""One subscriber for all connections, and readers of ranges for those that come back."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

from p2pmsg.aio import Subscriber
from p2pmsg.aio.reader import RangeReader
from p2pmsg.errors import ClosedError, Loss, LossReason, LossReport, P2PError, SecurityError
from p2pmsg.http.encoding import Format, encode_batch, encode_event, report_fields
from p2pmsg.http.fanout import Fanout
from p2pmsg.http.resume import Key, around, entry, single_topic
from p2pmsg.message import MessageBatch
from p2pmsg.toolkit import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security import Security

_BATCH_MAX: Final = 1024
_READ_BYTES: Final = 2**20
"""What is read at once for a connection that comes back, in bytes of events."""
_READERS: Final = 4
_SHORT_S: Final = 1.0
"""How long each of several endpoints is waited for, before all are waited for longer."""
_AGAIN_S: Final = 1.0
_REFRESH_S: Final = 0.02
_WATCH_S: Final = 1.0


@dataclass(slots=True)
class Range:
    """A range that a connection misses, and its events as far as they were read.

    Attributes:
        key: the stream.
        start, stop: what is left of the range.
        form: how values are written.
        before, after: what stands around the sequence in ids.
        events: what was read.
        size: of that, in bytes.

    """

    key: Key
    start: int
    stop: int
    form: Format
    before: str
    after: str
    events: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, item: MessageBatch | LossReport) -> None:
        """Take what comes next."""
        if isinstance(item, MessageBatch):
            chunk, _ = encode_batch(item, self.form, self.before, self.after)
            self.start = item.sequence + len(item)
        else:
            self.start = item.stop
            event_id = f"{self.before}{item.stop - 1}{self.after}"
            chunk = encode_event("loss", report_fields(item), event_id)
        self.events.append(chunk)
        self.size += len(chunk)


def range_of(
    positions: Mapping[Key, int], topics: Sequence[str], form: Format, read: tuple[Key, int, int]
) -> Range:
    """Return what is to be read, with the ids of a connection at these positions."""
    key, start, stop = read
    with_topic = single_topic(topics) is None
    others = [
        entry(other, at - 1, with_topic=with_topic)
        for other, at in positions.items()
        if other != key
    ]
    return Range(key, start, stop, form, *around(key, others, with_topic=with_topic))


class RangePool:
    """Reads ranges, from whichever endpoint has them.

    Args:
        endpoints: of publishers and relays.
        timeout: how long a range is waited for without progress, in seconds.
        security: keys for the connections. Default None: open.

    """

    def __init__(
        self, endpoints: Sequence[str], timeout: float, security: "Security | None" = None
    ) -> None:
        self._security = security
        asked = [each for each in endpoints if not each.startswith("mold:")]
        waits = [_SHORT_S, timeout] if len(asked) > 1 else [timeout]
        self._attempts = [(each, min(wait, timeout)) for wait in waits for each in asked]
        self._idle: dict[str, list[RangeReader]] = {each: [] for each in asked}
        self._reads: set[asyncio.Task[tuple[bytes, int]]] = set()
        self._places = asyncio.Semaphore(_READERS)
        self._closed = False

    async def read(self, wanted: Range) -> tuple[bytes, int] | None:
        """Return events from the beginning of a range, and the sequence after the last of them.

        What cannot be had is said in them. None where `stop` was called before they are there.
        """
        if self._closed:
            return None
        reading = asyncio.ensure_future(self._read(wanted))
        self._reads.add(reading)
        reading.add_done_callback(self._reads.discard)
        try:
            await asyncio.wait([reading])
        finally:
            reading.cancel()
        return None if reading.cancelled() else reading.result()

    def stop(self) -> None:
        """End all reads."""
        self._closed = True
        for reading in self._reads:
            reading.cancel()

    async def close(self) -> None:
        """Close the readers, after `stop`."""
        await asyncio.gather(*self._reads, return_exceptions=True)
        for reader in chain.from_iterable(self._idle.values()):
            await reader.close()

    async def _read(self, wanted: Range) -> tuple[bytes, int]:
        async with self._places:
            await self._fill(wanted, wanted.stop, self._attempts)
        return b"".join(wanted.events), wanted.start

    async def _fill(self, wanted: Range, stop: int, attempts: list[tuple[str, float]]) -> None:
        """Read what is left before `stop`, or 1 MiB: each part from the first who has it."""
        session, topic = wanted.key
        if not attempts:
            reason = LossReason.EVICTED if not self._attempts else LossReason.TIMEOUT
            wanted.add(LossReport(topic, session, "", Loss(wanted.start, stop, reason)))
            return
        endpoint, timeout = attempts[0]
        try:
            async with self._reader(endpoint, timeout) as reader:
                async for item in await reader.fetch(
                    topic, wanted.start, stop, session=session, timeout=timeout
                ):
                    if isinstance(item, LossReport) and len(attempts) > 1:
                        await self._fill(wanted, item.stop, attempts[1:])
                    else:
                        wanted.add(item)
                    if wanted.size >= _READ_BYTES:
                        return
        except SecurityError as error:  # another endpoint may have it
            start = wanted.start
            _log.warning("http: topic %r from %d on cannot be read: %s", topic, start, error)
            await self._fill(wanted, stop, attempts[1:])

    @asynccontextmanager
    async def _reader(self, endpoint: str, timeout: float) -> AsyncIterator[RangeReader]:
        idle = self._idle[endpoint]
        given = {"timeout": timeout, "security": self._security}
        reader = idle.pop() if idle else await RangeReader.open(endpoint, **given)
        try:
            yield reader
        finally:
            idle.append(reader)


class Upstream:
    """Receives for all connections; lives in one event loop.

    Args:
        endpoints: of publishers and relays.
        topics: what is served: topics, and prefixes.
        name: who subscribes.
        fanout: takes what comes.
        changed: called when connections have something to send.
        security: keys for the connections. Default None: open.

    """

    def __init__(
        self,
        endpoints: Sequence[str],
        topics: Sequence[str] | None,
        name: str,
        fanout: Fanout,
        changed: Callable[[], None],
        security: "Security | None" = None,
    ) -> None:
        self._endpoints = list(endpoints)
        self._fanout = fanout
        self._changed = changed
        self._subscriber: Subscriber = Subscriber(
            self._endpoints, topics=topics, on_gap=self._lose, name=name, security=security
        )
        self._refreshed_s = 0.0
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._receive()), loop.create_task(self._watch())]

    @property
    def connected(self) -> int:
        """How many endpoints have a publisher or relay that answers."""
        return self._subscriber.connected

    def refresh(self) -> None:
        """Note the places of streams of which nothing has come yet."""
        now_s = time.monotonic()
        if now_s - self._refreshed_s < _REFRESH_S:
            return
        self._refreshed_s = now_s
        ledgers = self._subscriber.stats().streams
        self._fanout.know(
            {
                (each.session, each.topic): each.start + each.delivered + each.lost
                for each in ledgers
            }
        )
        self._changed()

    async def close(self) -> None:
        """Stop receiving."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._subscriber.close()

    def _lose(self, report: LossReport) -> None:
        self._fanout.lose(report)
        _log.warning("%s", report)
        self._changed()

    async def _receive(self) -> None:
        while True:
            try:
                self._fanout.take(await self._subscriber.receive_many(_BATCH_MAX))
                self._changed()
            except ClosedError:
                return
            except (P2PError, OSError) as error:
                _log.warning("http: %s. It is tried again", error)
                await asyncio.sleep(_AGAIN_S)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            self.refresh()
