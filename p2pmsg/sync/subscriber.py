"""The threaded subscriber."""

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from random import Random
from types import TracebackType
from typing import Any, Self

import transports
from p2pmsg import wire
from p2pmsg.config import OnGap, SubscriberConfig
from p2pmsg.errors import ClosedError, ConfigError, LossReport, MessagesLostError
from p2pmsg.message import Message, MessageBatch
from p2pmsg.start import parse_start
from p2pmsg.stats import SubscriberStats
from p2pmsg.subscriber_core import SubscriberCore
from p2pmsg.subscriber_peer import Stream
from p2pmsg.sync.forks import close_in_children
from p2pmsg.sync.settings import check_endpoints, check_name, check_topics, subscriber_config
from p2pmsg.sync.subscriber_driver import SubscriberDriver
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import Delivery, Loss

_MS = 1_000_000
_WAIT_MS = 1000
_NOTHING: Iterator[Message] = iter(())
_NO_VALUES: Iterator[Any] = iter([])
_log = logging.getLogger("p2pmsg")
_random = Random()


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
            `LossReport` instead. `skip`: do not wait, go on at once.
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
        if not callable(on_gap) and on_gap not in ("wait", "raise", "skip"):
            raise ConfigError("on_gap", '"wait", "raise", "skip" or a callable', on_gap)
        settings = subscriber_config(config, receive_bytes, repair_timeout)
        places = check_endpoints(endpoints)
        names = check_topics(topics)
        self._on_gap = on_gap
        self._core = SubscriberCore(
            topics=names,
            lines=len(places),
            start=parse_start(start),
            subscriber=_random.getrandbits(64),
            name=check_name(name),
            config=settings,
            wait_for_repair=on_gap != "skip",
            rng=Random(_random.getrandbits(64)),
            now_ns=time.monotonic_ns(),
        )
        self._active: Iterator[Message] = _NOTHING
        self._values: Any = _NO_VALUES
        self._batch: MessageBatch | None = None
        self._stream: Stream | None = None
        self._closed = False
        receivers = [_make_receiver(place, names, settings) for place in places]
        self._driver = SubscriberDriver(self._core, receivers, places)
        close_in_children(self)
        self._driver.start()

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages without end; it ends when the subscriber is closed.

        After an exception (a loss, Ctrl-C) the same iterator goes on where it was.
        """
        return chain.from_iterable(_Batches(self))

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
            self._advance(timeout)
            message = next(self._active)
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
        rest = self._values.__length_hint__()
        if not rest:
            self._advance(timeout)
            rest = self._values.__length_hint__()
        with self._driver.lock:
            batch = self._batch
            assert batch is not None
            total = len(batch)
            at = total - rest
            stop = min(total, at + count_max)
            self._set_active(self._stream, batch.part(stop, total) if stop < total else None)
        return batch.part(at, stop)

    def stats(self) -> SubscriberStats:
        """Return the ledger and the counters as they are now; also after `close`."""
        with self._driver.lock:
            core = self._core
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
                repaired={"buffer": totals["repaired"]},
                duplicates=totals["duplicates"],
                late=totals["late"],
                losses=[loss for stream in streams for loss in stream.losses()],
                streams=ledgers,
                repair_latency=core.repair_latency,
                nacks_sent=totals["nacks"],
                frames_received=core.frames_received,
                frames_invalid=dict(invalid),
                frames_shed=core.frames_shed,
                bytes_held=core.bytes_held,
                publishers=[
                    peer.name for peer in core.peers.values() if peer.joined and not peer.gone
                ],
            )

    def close(self) -> None:
        """Close; what was not handed on yet stays outstanding in `stats()`."""
        if not self._closed:
            self._closed = True
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

    def _advance(self, timeout: float | None) -> None:
        """Make a batch with messages the active one, doing I/O until there is one."""
        deadline_ns = None if timeout is None else time.monotonic_ns() + int(timeout * 1e9)
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
                    driver.round(wait_ms)
            if deadline_ns is not None and wait_ms == 0 and not self._core.ready:
                raise TimeoutError(f"no message within {timeout} s")

    def _activate(self) -> bool:
        """Take from the core what is ready: True when there are messages."""
        if not self._core.ready:
            return bool(self._values.__length_hint__())
        while True:
            with self._driver.lock:
                if self._values.__length_hint__():
                    return True
                ready = self._core.pop_ready()
                if ready is None:
                    return False
                stream, output = ready
                if isinstance(output, Delivery):
                    try:
                        self._set_active(stream, _read(stream, output))
                        return True
                    except FrameError as error:
                        self._core.invalid[str(error)] += 1
                        output = stream.note_malformed(output.sequence, output.count)
            self._report(stream, output)

    def _set_active(self, stream: Stream | None, batch: MessageBatch | None) -> None:
        self._batch = batch
        if batch is None:
            self._stream, self._values, self._active = None, _NO_VALUES, _NOTHING
            return
        self._stream = stream
        if len(batch.values) == 1:
            self._values = self._active = iter((batch[0],))
            return
        values = iter(batch.values)
        self._values, self._active = values, batch.iterate(values)

    def _report(self, stream: Stream, loss: Loss) -> None:
        report = LossReport(stream.topic, stream.peer.session, stream.peer.name, loss)
        if self._on_gap == "raise":
            raise MessagesLostError(report)
        if callable(self._on_gap):
            self._on_gap(report)
        elif self._on_gap == "wait":
            _log.warning("%s", report)

    def _forget(self) -> None:
        """In a forked child: the sockets and the thread are the parent's."""
        self._closed = True
        self._active, self._values = _NOTHING, _NO_VALUES


class _Batches:
    """Feeds `chain.from_iterable`, which iterates a message in 20 ns; a `__next__` takes 100.

    It never waits and never raises but at the end, since that would end the chain for good. The
    waiting is done by an inner iterator, whose exceptions the chain survives.
    """

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._waiter = _Waiter(subscriber)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Iterator[Message]:
        subscriber = self._subscriber
        if subscriber._values.__length_hint__():
            return subscriber._active
        if subscriber._closed:
            raise StopIteration
        return self._waiter


class _Waiter:
    """Waits for one message, gives it, and ends, so that the rest comes straight from the batch."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._given = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        if self._given:
            self._given = False
            raise StopIteration
        try:
            message = self._subscriber.receive()
        except ClosedError:
            raise StopIteration from None
        self._given = True
        return message


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
    if delivery.count == frame.count:
        return batch
    return batch.part(delivery.skip, delivery.skip + delivery.count)


def _make_receiver(
    endpoint: transports.Endpoint, topics: list[str], config: SubscriberConfig
) -> transports.ZmqReceiver:
    receiver = transports.ZmqReceiver(
        endpoint,
        context=transports.context(),
        queue_frames=config.queue_frames,
        frame_bytes_max=config.frame_bytes_max,
    )
    for topic in topics or ["*"]:
        prefix = topic[:-1].encode() if topic.endswith("*") else topic.encode() + b"\0"
        receiver.subscribe(prefix)
    receiver.subscribe(wire.control_prefix(Kind.WELCOME))
    return receiver
