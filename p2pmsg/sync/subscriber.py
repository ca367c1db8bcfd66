"""The threaded subscriber."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from math import isnan
from random import Random, SystemRandom
from types import TracebackType
from typing import Any, Self

import transports
from p2pmsg import wire
from p2pmsg.config import OnGap, SubscriberConfig, check
from p2pmsg.conflation import ConflatedBatch, Folded, fold
from p2pmsg.errors import ClosedError, ConfigError, LossReport, MessagesLostError
from p2pmsg.gap_policy import GapPolicy
from p2pmsg.message import Message, MessageBatch
from p2pmsg.start import parse_start
from p2pmsg.stats import SubscriberStats
from p2pmsg.subscriber_core import SubscriberCore
from p2pmsg.subscriber_peer import Stream
from p2pmsg.sync.forks import close_in_children
from p2pmsg.sync.iteration import iterate, waiter
from p2pmsg.sync.lines import open_lines
from p2pmsg.sync.lone import receive_lone
from p2pmsg.sync.settings import check_endpoints, check_name, check_topics, subscriber_config
from p2pmsg.wire import Frame, FrameError
from recovery import Delivery, Loss

_MS = 1_000_000
_WAIT_MS = 1000
_FOREVER_S = 1e9
_NOTHING: Iterator[Message] = iter(())
_NO_VALUES: Iterator[Any] = iter([])
_log = logging.getLogger("p2pmsg")
_random = SystemRandom()  # a forked child would repeat what another one draws


class Subscriber:
    """Receives messages: each once and in order, or reported lost.

    It connects; a publisher that is away is waited for. The thread that waits in `receive` (or
    iterates) does the I/O; a background thread keeps gaps repaired while nobody does.

    Args:
        endpoints: of one publisher, or several.
        topics: what to take: topics, and prefixes written with a `*` behind them. Default: all.
        start: `latest` (default), `earliest`, a sequence, or a time (an aware datetime), as far as
            the replay buffer reaches.
        on_gap: what to do about messages that are missing. `wait` (default): until they are
            repaired, or until `repair_timeout`, when their loss is logged and receiving goes on.
            `raise`: the same, but the loss is raised as `MessagesLostError`. A callable gets a
            `LossReport` instead. `skip`: do not wait, go on at once, and hand over what comes late
            with `message.late` set; with `start="latest"` only. `latest`: only the newest value of
            each key matters, so a slow reader gets that one in place of the older ones, which
            `stats()` counts as conflated. A dict gives policies by topic, or prefix with a `*`.
        name: who subscribes, for people; at most 255 bytes.
        receive_bytes: bound on what waits for `receive`, in bytes. Default 16 MiB.
        repair_timeout: how long to wait for a repair without progress, in seconds. Default 10.
        config: all settings; the arguments above go before it.

    Raises:
        ConfigError: a setting is out of its limits; `EndpointError` for the endpoints.

    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        topics: str | Sequence[str] | None = None,
        start: str | int | datetime = "latest",
        on_gap: OnGap = "wait",
        name: str = "",
        receive_bytes: int | None = None,
        repair_timeout: float | None = None,
        config: SubscriberConfig | None = None,
    ) -> None:
        self._policy = GapPolicy(on_gap)
        first = parse_start(start)
        if self._policy.any_skips and first.kind != "latest":
            # What came before is a gap, and skipping is not to wait for gaps.
            raise ConfigError("start", '"latest" where on_gap is "skip"', start)
        settings = subscriber_config(config, receive_bytes, repair_timeout)
        places = check_endpoints(endpoints)
        names = check_topics(topics)
        self._core = SubscriberCore(
            topics=names,
            lines=len(places),
            start=first,
            subscriber=_random.getrandbits(64),
            name=check_name(name),
            config=settings,
            wait_for_repair=True,
            policy=self._policy,
            rng=Random(_random.getrandbits(64)),
            now_ns=time.monotonic_ns(),
            datagram_lines=[at for at, place in enumerate(places) if place.is_datagram],
        )
        self._active: Iterator[Message] = _NOTHING
        self._values: Any = _NO_VALUES
        self._batch: MessageBatch | None = None
        self._stream: Stream | None = None
        self._closed = False
        self._waiter, self._open = waiter(self), True
        self._driver = open_lines(self._core, places, names, settings)
        close_in_children(self)
        self._driver.start()

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages without end; it ends when the subscriber is closed.

        After an exception (a loss, Ctrl-C) the same iterator goes on where it was.
        """
        return iterate(self)

    def receive(self, timeout: float | None = None) -> Message:
        """Return the next message.

        Args:
            timeout: in seconds; 0 does not wait. Default None: without end.

        Raises:
            TimeoutError: none came in time.
            MessagesLostError: `on_gap="raise"`, and messages were lost.
            ClosedError: the subscriber is closed.

        """
        message = next(self._active, None)
        if message is None:
            deadline_ns = _deadline(timeout)
            if not self._core.ready and not self._closed:
                message = receive_lone(self._core, self._driver, deadline_ns)
            while message is None:  # another thread may be quicker
                self._advance(timeout, deadline_ns)
                message = next(self._active, None)
        return message

    def receive_many(self, count_max: int = 65_536, timeout: float | None = None) -> MessageBatch:
        """Return the next messages of one stream, as many as are there.

        Args:
            count_max: how many at most. Default 65,536; a frame of small messages has some 500.
            timeout: in seconds, for the first of them. Default None: without end.

        Raises:
            As `receive`.

        """
        if count_max < 1:
            raise ConfigError("count_max", "at least 1", count_max)
        deadline_ns = _deadline(timeout)
        while True:
            taken = self._take_batch(count_max)
            if taken is not None:
                return taken
            self._advance(timeout, deadline_ns)

    def _take_batch(self, count_max: int) -> MessageBatch | None:
        """Return what is left of the active batch, at most `count_max`; None where nothing is."""
        whole: MessageBatch | None = None
        at = 0
        try:
            with self._driver.lock:
                stream, batch, values = self._stream, self._batch, self._values
                at = 0 if batch is None else len(batch) - values.__length_hint__()
                # All of the iterator, so that whoever else has it (a loop, a thread) gets none.
                rest = [] if self._closed else list(values)
                if not rest:
                    return None
                whole = batch if batch is not None else _batch_of(rest[0])
                total = len(whole)
                at = total - len(rest)
                stop = min(total, at + count_max)
                taken = whole.part(at, stop)
                self._set_active(stream, whole.part(stop, total) if stop < total else None)
            return taken
        except BaseException:
            if whole is not None:  # Ctrl-C: put back what was not returned
                with self._driver.lock:
                    self._set_active(self._stream or stream, whole.part(at, len(whole)))
            raise

    def stats(self) -> SubscriberStats:
        """Return the ledger and the counters as they are now; also after `close`."""
        with self._driver.lock:
            core = self._core
            if self._driver.hurt:
                self._driver.heal()
            waiting: Counter[int] = Counter()
            for stream, output in core.ready:
                if isinstance(output, Delivery):
                    waiting[id(stream)] += output.count
            if self._stream is not None:
                waiting[id(self._stream)] += self._values.__length_hint__()
            streams = core.streams
            ledgers = [
                stream.ledger(waiting[id(stream)]) for stream in streams if stream.receiver.started
            ]
            totals: Counter[str] = Counter(core.forgotten)
            for stream in streams:
                totals.update(stream.totals())
            invalid = Counter(core.invalid)
            return SubscriberStats(
                published=sum(ledger.published for ledger in ledgers),
                delivered=sum(ledger.delivered for ledger in ledgers) + core.forgotten["handed"],
                outstanding=sum(ledger.outstanding for ledger in ledgers),
                lost=sum(ledger.lost for ledger in ledgers) + core.forgotten["lost"],
                repaired=core.repaired_by_rung(totals["repaired"]),
                duplicates=totals["duplicates"],
                late=totals["late"],
                losses=[loss for stream in streams for loss in stream.losses()],
                streams=ledgers,
                conflated=totals["conflated"],
                repair_latency=core.repair_latency,
                nacks_sent=totals["nacks"],
                frames_received=core.frames_received,
                frames_invalid=dict(invalid),
                frames_shed=core.frames_shed,
                bytes_held=core.bytes_held,
                publishers=[
                    peer.name for peer in core.peers.values() if peer.joined and not peer.gone
                ],
                lines=self._driver.line_stats(),
            )

    def close(self) -> None:
        """Close; what was not handed on yet stays outstanding in `stats()`."""
        if not self._closed:
            self._closed = True
            self._active = _NOTHING
            self._driver.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _advance(self, timeout: float | None, deadline_ns: int | None = None) -> None:
        """Make a batch with messages the active one, doing I/O until there is one."""
        driver = self._driver
        while True:
            if self._closed:
                raise ClosedError("the subscriber")
            if self._activate():
                return
            wait_ms = _WAIT_MS
            if deadline_ns is not None:
                left_ns = deadline_ns - time.monotonic_ns()
                wait_ms = min(wait_ms, max(0, -(-left_ns // _MS)))
            with driver.io_lock:
                if self._closed:
                    continue
                if not self._core.ready:
                    try:
                        driver.round(wait_ms)
                    except transports.TransportError:
                        raise
                    except BaseException:
                        driver.hurt = True  # Ctrl-C, somewhere in the core's work
                        raise
            if deadline_ns is not None and wait_ms == 0 and not self._core.ready:
                raise TimeoutError(f"no message within {timeout} s")

    def _activate(self) -> bool:
        """Take from the core what is ready: True when there are messages."""
        core = self._core
        if not core.ready:
            return bool(self._values.__length_hint__())
        while not self._closed:
            with self._driver.lock:
                if self._values.__length_hint__():
                    return True
                if not core.ready:
                    return False
                if self._policy.any_conflates and self._policy.conflates(core.ready[0][0].topic):
                    fold(core, core.ready[0][0])
                stream, output = core.ready[0]
                if not isinstance(output, Delivery):
                    core.pop_ready()
                elif self._open_batch(stream, output):
                    return True
                else:
                    core.pop_ready()
                    output = stream.note_malformed(output.sequence, output.count)
            self._report(stream, output)
        return False

    def _open_batch(self, stream: Stream, output: Delivery[Frame]) -> bool:
        """Make the first of what is ready the active batch; False where it is malformed."""
        core, frame = self._core, output.item
        batch: MessageBatch | None = None
        values: Iterator[Any]
        try:
            if isinstance(frame, Folded):
                batch = ConflatedBatch(frame.messages)
                values = iter(batch.values)
                active = batch.iterate(values)
            elif frame.count == 1 and not output.late:
                values = active = iter((_read_single(stream, frame),))
            else:
                batch = _read(stream, output)
                values = iter(batch.values)
                active = batch.iterate(values)
        except FrameError as error:
            core.invalid[str(error)] += 1
            return False
        size, stop = len(frame.data), output.sequence + output.count
        if output.late:
            stop = stream.given or stop
        given = stream.given_messages + output.count
        # No call in between, so that Ctrl-C comes before it all or behind it all.
        self._stream, self._batch, self._values, self._active = stream, batch, values, active
        stream.given, stream.given_messages = stop, given
        stream.conflated += output.count - frame.count if isinstance(frame, Folded) else 0
        core.ready_bytes -= size
        core.ready.popleft()
        return True

    def _set_active(self, stream: Stream | None, batch: MessageBatch | None) -> None:
        if batch is None:
            self._stream, self._batch = None, None
            self._values, self._active = _NO_VALUES, _NOTHING
            return
        values = iter(batch.values)
        active = batch.iterate(values)
        self._stream, self._batch, self._values, self._active = stream, batch, values, active

    def _report(self, stream: Stream, loss: Loss) -> None:
        report = LossReport(stream.topic, stream.peer.session, stream.peer.name, loss)
        on_gap = self._policy.of(stream.topic)
        if on_gap == "raise":
            raise MessagesLostError(report)
        if callable(on_gap):
            on_gap(report)
        elif on_gap != "skip":
            _log.warning("%s", report)

    def _forget(self) -> None:
        """In a forked child: the sockets and the thread are the parent's, perhaps the lock too."""
        self._closed = True
        self._driver.lock = threading.RLock()
        self._active, self._values = _NOTHING, _NO_VALUES


def _deadline(timeout: float | None) -> int | None:
    if timeout is None:
        return None
    ok = isinstance(timeout, int | float) and not isnan(timeout)
    check("timeout", timeout, ok, "a number of seconds, or None")
    return time.monotonic_ns() + int(min(timeout, _FOREVER_S) * 1e9)


def _read_single(stream: Stream, frame: Frame) -> Message:
    """Read a frame of one message, the kind that latency is asked of."""
    values, timestamps, keys, headers = wire.decode_columns(frame)
    return Message(
        stream.topic,
        values[0],
        None if keys is None else keys[0],
        frame.base_timestamp_ns if timestamps is None else timestamps[0],
        None if headers is None else headers[0],
        frame.sequence,
        frame.session,
        stream.peer.name,
    )


def _read(stream: Stream, delivery: Delivery[Frame]) -> MessageBatch:
    frame = delivery.item
    values, timestamps, keys, headers = wire.decode_columns(frame)
    batch = MessageBatch(
        stream.topic,
        frame.session,
        stream.peer.name,
        frame.sequence,
        frame.base_timestamp_ns,
        values,
        timestamps,
        keys,
        headers,
    )
    batch.late = delivery.late
    if delivery.count == frame.count:
        return batch
    return batch.part(delivery.skip, delivery.skip + delivery.count)


def _batch_of(message: Message) -> MessageBatch:
    return MessageBatch(
        message.topic,
        message.session,
        message.publisher,
        message.sequence,
        message.timestamp_ns,
        [message.value],
        None,
        None if message.key is None else [message.key],
        None if message.headers is None else [message.headers],
    )
