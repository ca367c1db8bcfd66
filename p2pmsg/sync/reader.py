"""Reading exact ranges of a publisher's streams over the recovery channel, without subscribing.

::

    WELCOME (data path) ──▶ session, name, recovery endpoint ──▶ HEADS_REQUEST ──▶ HEADS
    fetch ──▶ NACK of a window ──▶ frames ──▶ StreamReceiver ──▶ batches and losses, in order
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Final, Self

import zmq

import transports
from p2pmsg import control, wire
from p2pmsg.config import at_least
from p2pmsg.errors import ClosedError, ConfigError, EndpointError, LossReport, MessageError
from p2pmsg.message import MessageBatch
from p2pmsg.publisher_core import check_topic
from p2pmsg.sync.forks import close_in_children
from p2pmsg.sync.settings import check_endpoints, check_name
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import Delivery, Loss, LossReason, NackConfig, ReceiverConfig, StreamReceiver

__all__ = ["Heads", "RangeReader", "StreamHead"]

_MS: Final = 1_000_000
_WINDOW_BYTES: Final = 8 * 2**20
"""About as many bytes are asked for at a time: 5 ms at full rate, many times a round trip."""
_WINDOW_COUNT: Final = 1024
"""How many messages are asked for until their size is known."""
_WINDOW_COUNT_MAX: Final = 131_072
_QUEUE_FRAMES: Final = 64
_ASK_NS: Final = 50 * _MS
_ASK_CEILING_NS: Final = 800 * _MS
_SILENCE_NS: Final = 200 * _MS
"""After so long without an answer the reader looks whether another session is at the endpoint."""
_RECONNECT_NS: Final = 2000 * _MS
_PAUSE_NS: Final = 10 * _MS
_random: Final = Random()


@dataclass(frozen=True, slots=True)
class StreamHead:
    """One stream's place."""

    earliest: int
    """The earliest sequence that is kept."""

    next: int
    """The next sequence: messages from `earliest` up to this one can be fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """A publisher and the heads of its streams, at one moment."""

    publisher: str
    """Its name."""

    session: int
    """The 64-bit id of its sequence space."""

    recovery_endpoint: str
    """Where ranges are asked for, as seen from here."""

    streams: dict[str, StreamHead]
    """By topic."""


@dataclass(frozen=True, slots=True)
class _Publisher:
    session: int
    name: str
    recovery: transports.Endpoint


class RangeReader:
    """Reads exact ranges of the streams of the publisher at one endpoint.

    It belongs to one thread at a time, and to one `fetch` at a time.

    Args:
        endpoint: of the publisher.
        timeout: in seconds, default 5.0: how long `heads` waits, and how long `fetch` goes on
            without any progress before it gives up.
        recovery_endpoint: where ranges are asked for, if it is known; then `session` must be, too.
            Default: both are learned from the publisher.
        session: which session is expected there.
        publisher: its name, where it is known.

    Raises:
        ConfigError: an argument is out of its limits; `EndpointError` for the endpoints.

    """

    def __init__(
        self,
        endpoint: str,
        *,
        timeout: float = 5.0,
        recovery_endpoint: str | None = None,
        session: int | None = None,
        publisher: str = "",
    ) -> None:
        (self._endpoint,) = check_endpoints(str(endpoint))
        at_least("timeout", timeout, 0.001)
        if session is not None and not (type(session) is int and 0 <= session < 2**64):
            raise ConfigError("session", "an int of 64 bits", session)
        if (recovery_endpoint is None) != (session is None):
            raise ConfigError("session and recovery_endpoint", "given together", session)
        self._timeout_ns = int(timeout * 1e9)
        self._line: transports.ZmqReceiver | None = None
        self._client: transports.ZmqRecoveryClient | None = None
        self._publisher: _Publisher | None = None
        self._closed = False
        self._requests = 0
        self.invalid = 0
        if recovery_endpoint is not None and session is not None:
            address = self._address(recovery_endpoint)
            self._meet(_Publisher(session, check_name(publisher), address))
        close_in_children(self)

    @property
    def endpoint(self) -> str:
        """The publisher's endpoint."""
        return str(self._endpoint)

    def heads(self, timeout: float | None = None) -> Heads:
        """Return where the publisher's streams stand now.

        Args:
            timeout: in seconds. Default: the reader's.

        Raises:
            TimeoutError: the publisher did not answer.
            ClosedError: the reader is closed.

        """
        self._check_open()
        begun_ns = time.monotonic_ns()
        deadline_ns = begun_ns + self._limit_ns(timeout)
        self._requests += 1
        wait_ns, ask_ns = _ASK_NS, begun_ns
        asked: _Publisher | None = None
        while (now_ns := time.monotonic_ns()) < deadline_ns:
            if self._publisher is None or now_ns - begun_ns > _SILENCE_NS:
                self._listen()
            peer = self._publisher
            if peer is not None and (asked is not peer or now_ns >= ask_ns):
                frame = wire.control_frame(
                    Kind.HEADS_REQUEST, peer.session, sequence=self._requests
                )
                self._send(frame)
                ask_ns, asked = now_ns + wait_ns, peer
                wait_ns = min(2 * wait_ns, _ASK_CEILING_NS)
            until_ns = min(deadline_ns, begun_ns + _SILENCE_NS if self._line is None else ask_ns)
            self._poll(max(until_ns, now_ns + _MS))
            heads = self._take_heads()
            if heads is not None:
                return heads
        who = "no publisher" if self._publisher is None else f"{self._publisher.name!r} gave none"
        seconds = (deadline_ns - begun_ns) / 1e9
        raise TimeoutError(f"no heads from {self._endpoint} within {seconds:.3g} s: {who}")

    def fetch(
        self,
        topic: str,
        start: int,
        stop: int,
        *,
        session: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[MessageBatch | LossReport]:
        """Read the messages `[start, stop)` of a stream, each once and in order.

        What cannot be had comes as a `LossReport` in its place: `evicted`, `malformed`,
        `publisher_gone` where another session is at the endpoint, and `timeout`.

        Args:
            topic: of the stream.
            start: first sequence.
            stop: the sequence behind the last one.
            session: of the stream. Default: the one that is at the endpoint.
            timeout: how long to go on without any progress, in seconds. Default: the reader's.

        Raises:
            ConfigError: an argument is out of its limits.
            TimeoutError: `session` was not given, and no publisher is there.
            ClosedError: the reader is closed.

        """
        self._check_open()
        try:
            check_topic(topic)
        except MessageError as error:
            raise ConfigError("topic", f"a topic ({error})", topic) from error
        if not (type(start) is int and type(stop) is int and 0 <= start <= stop < 2**63):
            raise ConfigError("start and stop", "0 <= start <= stop < 2**63", (start, stop))
        if session is None:
            if self._publisher is None:
                self.heads(timeout)
            assert self._publisher is not None
            session = self._publisher.session
        return _Fetch(self, topic, start, stop, session, self._limit_ns(timeout))

    def close(self) -> None:
        """Close the sockets; a second call does nothing."""
        self._closed = True
        for socket in (self._line, self._client):
            if socket is not None:
                socket.close()
        self._line = self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RangeReader {'closed' if self._closed else self._endpoint}>"

    def _forget(self) -> None:
        self._closed = True
        self._line = self._client = None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the range reader")

    def _limit_ns(self, timeout: float | None) -> int:
        if timeout is None:
            return self._timeout_ns
        at_least("timeout", timeout, 0.001)
        return int(timeout * 1e9)

    def _address(self, text: str) -> transports.Endpoint:
        """Return where to ask for ranges; a wildcard host stands for the publisher's host."""
        try:
            address = transports.parse_endpoint(text)
            if address.is_wildcard and self._endpoint.scheme == "tcp":
                address = address.with_host(self._endpoint.host)
            return address.require_connectable()
        except transports.EndpointError as error:
            raise EndpointError(error) from error

    def _meet(self, publisher: _Publisher) -> None:
        if self._client is not None:
            self._client.close()
        self._client = transports.ZmqRecoveryClient(
            publisher.recovery, context=transports.context(), queue_frames=_QUEUE_FRAMES
        )
        self._client.connect()
        self._publisher = publisher

    def _listen(self) -> None:
        """Listen for WELCOMEs; each new connection to the endpoint gets one."""
        if self._line is None:
            self._line = transports.ZmqReceiver(
                self._endpoint, context=transports.context(), queue_frames=_QUEUE_FRAMES
            )
            self._line.subscribe(wire.control_prefix(Kind.WELCOME))
            self._line.connect()
        while (data := self._line.receive()) is not None:
            try:
                frame = Frame(data)
                if frame.flags & wire.FLAG_CLOSING or frame.kind != Kind.WELCOME:
                    continue
                welcome = control.read_body(frame, control.Welcome)
                address = self._address(welcome.recovery)
            except (FrameError, EndpointError):
                self.invalid += 1
                continue
            if self._publisher is None or self._publisher.session != frame.session:
                self._meet(_Publisher(frame.session, welcome.name, address))

    def _send(self, frame: bytes) -> None:
        if self._client is not None:
            self._client.send(frame)  # what has no room is asked for again

    def _receive(self) -> bytes | None:
        self._check_open()
        return None if self._client is None else self._client.receive()

    def _poll(self, until_ns: int) -> None:
        """Wait for a frame on either socket."""
        poller = zmq.Poller()
        for socket in (self._line, self._client):
            if socket is not None:
                poller.register(socket.socket, zmq.POLLIN)
        poller.poll(max(0, -((time.monotonic_ns() - until_ns) // _MS)))

    def _reconnect(self) -> None:
        """Connect anew to a publisher that is silent; ZeroMQ gives up some for good."""
        for socket in (self._line, self._client):
            if socket is not None:
                socket.reconnect()

    def _take_heads(self) -> Heads | None:
        while (data := self._receive()) is not None:
            peer = self._publisher
            assert peer is not None
            try:
                frame = Frame(data)
                if frame.kind != Kind.HEADS or frame.sequence != self._requests:
                    continue  # what is left of an earlier request
                if frame.session != peer.session:
                    raise FrameError("session")
                body = control.read_body(frame, control.Heads)
            except FrameError:
                self.invalid += 1
                continue
            streams = {head.topic: StreamHead(head.earliest, head.next) for head in body.streams}
            return Heads(
                publisher=body.name,
                session=peer.session,
                recovery_endpoint=str(peer.recovery),
                streams=streams,
            )
        return None


class _Fetch(Iterator[MessageBatch | LossReport]):
    """One `fetch`; a class, so that it goes on where it was if an exception struck."""

    def __init__(
        self, reader: RangeReader, topic: str, start: int, stop: int, session: int, limit_ns: int
    ) -> None:
        self._reader = reader
        self._topic = topic
        self._stop = stop
        self._session = session
        self._window = _WINDOW_COUNT
        peer = reader._publisher
        self._name = peer.name if peer is not None and peer.session == session else ""
        now_ns = time.monotonic_ns()
        # The deadline ends it, whatever the number of attempts.
        nack = NackConfig(
            deadline_ms=limit_ns / _MS, attempts_max=1_000_000, retry_ceiling_ms=500.0
        )
        self._receiver: StreamReceiver[Frame] = StreamReceiver(ReceiverConfig(nack=nack), _random)
        self._receiver.start_at(start, now_ns=now_ns)
        self._heard_ns = self._reconnected_ns = self._left_ns = now_ns
        self._waiting: Delivery[Frame] | Loss | None = None

    def __next__(self) -> MessageBatch | LossReport:
        now_ns = time.monotonic_ns()
        if now_ns - self._left_ns > _PAUSE_NS:
            # The caller took its time; that is not the publisher's silence.
            self._receiver.postpone(now_ns=now_ns, delay_ns=0)
            self._heard_ns = self._reconnected_ns = now_ns
        try:
            return self._next_item()
        finally:
            self._left_ns = time.monotonic_ns()

    def _next_item(self) -> MessageBatch | LossReport:
        output = self._next_output()
        if output is None:
            raise StopIteration
        if isinstance(output, Delivery):
            return self._batch(output)
        # One report for one range, however many windows it was asked for in.
        start, stop, reason = output.start, output.stop, output.reason
        if reason is LossReason.TIMEOUT:
            self._give_up(reason)
        while (output := self._next_output()) is not None:
            if not isinstance(output, Loss) or output.reason is not reason:
                self._waiting = output
                break
            stop = output.stop
        return self._report(Loss(start, stop, reason))

    def _next_output(self) -> Delivery[Frame] | Loss | None:
        receiver, reader = self._receiver, self._reader
        if self._waiting is not None:
            output, self._waiting = self._waiting, None
            return output
        while True:
            reader._check_open()
            waiting = receiver.next_output()
            if waiting is not None or receiver.expected >= self._stop:
                return waiting
            data = reader._receive()
            if data is not None:
                self._take(data)
            else:
                self._wait()

    def _batch(self, delivery: Delivery[Frame]) -> MessageBatch | LossReport:
        frame = delivery.item
        try:
            columns = wire.decode_columns(frame)
        except FrameError:
            stop = delivery.sequence + delivery.count
            return self._report(Loss(delivery.sequence, stop, LossReason.MALFORMED))
        values, timestamps, keys, headers = columns
        batch = MessageBatch(
            self._topic, self._session, self._name, frame.sequence, frame.base_timestamp_ns,
            values, timestamps, keys, headers,
        )  # fmt: skip
        return batch.part(delivery.skip, delivery.skip + delivery.count)

    def _report(self, loss: Loss) -> LossReport:
        return LossReport(self._topic, self._session, self._name, loss)

    def _give_up(self, reason: LossReason) -> None:
        now_ns = time.monotonic_ns()
        self._receiver.observe_head(self._stop, now_ns=now_ns)
        self._receiver.abandon(reason, now_ns=now_ns)

    def _take(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        try:
            frame = Frame(data)
            if frame.session != self._session:
                raise FrameError("session")
            if frame.kind == Kind.REFUSED:
                self._take_refusal(control.read_body(frame, control.Refused), now_ns)
            elif frame.kind == Kind.DATA and frame.topic == self._topic:
                count = min(frame.count, self._stop - frame.sequence)
                if count < 1:
                    return  # left over from an earlier fetch
                self._heard_ns = now_ns
                self._window = max(
                    1, min(_WINDOW_COUNT_MAX, _WINDOW_BYTES * frame.count // len(data))
                )
                self._receiver.receive(frame.sequence, count, len(data), frame, now_ns=now_ns)
                self._ask(now_ns)
        except FrameError:
            self._reader.invalid += 1

    def _take_refusal(self, body: control.Refused, now_ns: int) -> None:
        if body.topic != self._topic:
            return
        self._heard_ns = now_ns
        for start, stop in body.ranges:
            if start >= stop:
                raise FrameError("range")
            if body.reason == LossReason.EVICTED:
                self._receiver.refuse(start, stop, LossReason.EVICTED, now_ns=now_ns)
            else:
                self._receiver.blame(start, stop, LossReason.BUDGET)

    def _ask(self, now_ns: int, *, again: bool = False) -> None:
        """Move the window on when half of it is there; with `again`, repeat what is due."""
        receiver = self._receiver
        grown = False
        if receiver.head < self._stop and 2 * (receiver.head - receiver.expected) < self._window:
            head = min(self._stop, receiver.expected + self._window)
            grown = head > receiver.head
            receiver.observe_head(head, now_ns=now_ns)
        if grown or again:
            ranges = receiver.nacks_due(now_ns=now_ns)
            if ranges:
                body = control.Nack(self._topic, ranges)
                self._reader._send(wire.control_frame(Kind.NACK, self._session, body))

    def _wait(self) -> None:
        """Nothing has come: ask, look who is there, and wait."""
        reader, receiver = self._reader, self._receiver
        now_ns = time.monotonic_ns()
        silence_ns = now_ns - self._heard_ns
        if reader._publisher is None or silence_ns > _SILENCE_NS:
            reader._listen()
            if silence_ns > _RECONNECT_NS and now_ns - self._reconnected_ns > _RECONNECT_NS:
                self._reconnected_ns = now_ns
                reader._reconnect()
        peer = reader._publisher
        if peer is not None and peer.session != self._session:
            self._give_up(LossReason.PUBLISHER_GONE)
            return
        if peer is not None:
            self._name = peer.name or self._name
        receiver.handle_timer(now_ns=now_ns)
        self._ask(now_ns, again=peer is not None)
        deadline_ns = receiver.next_deadline_ns() or now_ns
        reader._poll(min(max(deadline_ns, now_ns + _MS), now_ns + _SILENCE_NS // 2))

