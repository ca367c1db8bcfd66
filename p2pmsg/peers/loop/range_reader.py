"""The range reader's face for asyncio."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

from p2pmsg.driver.faces import LoopFace
from p2pmsg.errors import LossReport
from p2pmsg.message import MessageBatch
from p2pmsg.peers.range_reader import RangeReaderBase
from p2pmsg.ranges.fetch import RangeFetch, end_of
from p2pmsg.ranges.heads import Heads
from p2pmsg.ranges.place import SessionEntry


class RangeReader(RangeReaderBase, LoopFace):
    """Reads exact ranges of the streams of the publisher at one endpoint.

    With threads it belongs to one at a time, and has none of its own. Several
    `fetch` of different topics may be under way: each asks for its first messages at once, so that
    they wait for the publisher together.

    Args:
        endpoint: of the publisher.
        timeout: in seconds, default 5.0: how long `heads` waits, and how long `fetch` goes on
            without any progress before it gives up.
        recovery_endpoint: where ranges are asked for, if it is known; then `session` must be, too.
            Default: both are learned from the publisher.
        session: which session is expected there. At a relay that serves several, it must be given.
            Of a group that several publish to, it is found; without it the reader keeps to the one
            that it met first, and to its successors of that name.
        publisher: its name, where it is known. Of a group, only one of that name is met.
        security: this peer's key, and whom it knows: connections are encrypted, and both ends
            known to each other; over tcp and ipc. Default None: open.
        frame_bytes_max: the largest frame, in bytes, from 64 KiB on; what is larger is lost as
            `too_large`, so it has to be more than the publisher's `message_bytes_max`. Default
            16 MiB, 16 times the default of that.

    Raises:
        ConfigError: an argument is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.

    """

    async def heads(
        self,
        timeout: float | None = None,
        *,
        session: int | None = None,
        topics: Iterable[str] | None = None,
    ) -> Heads:
        """Return where the publisher's streams stand now.

        Args:
            timeout: in seconds. Default: the reader's.
            session: at a relay, whose. Default: the reader's.
            topics: of which streams: topics, or prefixes that end in `*`. Those of which not all
                may be had are in `denied` then. Default: all; without a right to one it is left
                out, which `denied` does not say.

        Raises:
            ConfigError: a relay is there that serves several sessions, and none was named.
            TimeoutError: the publisher did not answer.
            AuthenticationError: the publisher refused the connection, or does not hold the pinned
                key, once for each time that it is tried. A further call goes on.
            AccessDeniedError: without `topics`, it gives us no right to any; and a relay there
                gives us none. A further call asks again.
            ClosedError: the reader is closed.

        """
        verb = self._peer.heads(timeout, session, topics)
        found: Heads = await self._driver.run(verb)
        return found

    async def sessions(self, timeout: float | None = None) -> list[SessionEntry]:
        """Return which sessions can be read: at a relay all that it serves, else the one there.

        Of a group all that are announced within 0.6 s.

        Args:
            timeout: in seconds. Default: the reader's.

        Raises:
            TimeoutError: nobody answered.
            AuthenticationError: the publisher refused the connection, or does not hold the pinned
                key, once for each time that it is tried. A further call goes on.
            ClosedError: the reader is closed.

        """
        found: list[SessionEntry] = await self._driver.run(self._peer.sessions(timeout))
        return found

    async def fetch(
        self,
        topic: str,
        start: int,
        stop: int,
        *,
        session: int | None = None,
        timeout: float | None = None,
        value_type: Any = None,
        fixed: bool = False,
    ) -> AsyncIterator[MessageBatch | LossReport]:
        """Read the messages `[start, stop)` of a stream, each once and in order.

        What cannot be had comes as a `LossReport` in its place: `evicted`, `malformed`,
        `too_large` (see `frame_bytes_max`), `publisher_gone` where another session is at the
        endpoint, and `timeout`.

        Args:
            topic: of the stream.
            start: first sequence.
            stop: the sequence after the last one.
            session: of the stream. Default: the one that is at the endpoint.
            timeout: how long to go on without any progress, in seconds. Default: the reader's.
            value_type: a type that msgspec knows, to make of each value; the values of a batch come
                as they are where one of them does not fit. Default: as they are.
            fixed: give a `FixedBatch` where values are bytes of one length. Default False.

        Raises:
            ConfigError: an argument is out of its limits, or a relay serves several sessions and
                none was named.
            TimeoutError: `session` was not given, and no publisher is there.
            AuthenticationError: the publisher refused the connection, or does not hold the pinned
                key, once for each time that it is tried. A further call goes on.
            AccessDeniedError: from the iterator, where the publisher gives us no right to the
                topic; its next call asks again.
            ClosedError: the reader is closed.

        """
        verb = self._peer.fetch(
            topic, start, stop, session=session, timeout=timeout, value_type=value_type, fixed=fixed
        )
        return _Items(self, await self._driver.run(verb))

    async def _next_item(self, fetch: RangeFetch, position: int) -> MessageBatch | LossReport:
        """Return what comes at `position` of a range, before its end. For what `fetch` returns."""
        # loop only
        if self._driver.must_rest():
            await self._driver.rest()
        # both
        item = self._take_item(fetch, position)
        if item is None:
            item = await self._driver.run(self._peer.next_item(fetch, position))
        return item

    async def close(self) -> None:
        """Close the sockets; a second call does nothing."""
        self._driver.stop()


class _Items(AsyncIterator[MessageBatch | LossReport]):
    """What comes of one `fetch`; it goes on where it was after an exception."""

    def __init__(self, reader: RangeReader, fetch: RangeFetch) -> None:
        self._reader = reader  # not collected before
        self._fetch = fetch
        self._position, self._stop = fetch.position, fetch.stop

    async def __anext__(self) -> MessageBatch | LossReport:
        before = self._position
        if before >= self._stop:
            raise StopAsyncIteration
        try:
            item = await self._reader._next_item(self._fetch, before)
            self._position = end_of(item)
            return item
        except BaseException:
            self._position = before  # what does not get to the caller comes with the next call
            raise
