"""One fetch of a range: windows are asked for, batches and losses come out in order."""

import time
from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import Final

from p2pmsg import control, wire
from p2pmsg.errors import AccessDeniedError, LossReport, denied_by_peer
from p2pmsg.frames import batch_of
from p2pmsg.message import MessageBatch
from p2pmsg.reader.channel import MS, SILENCE_NS, RangeChannel
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import Delivery, Loss, LossReason, ReceiverConfig, StreamReceiver

_WINDOW_BYTES: Final = 8 * 2**20
"""About as many bytes are asked for at a time: 5 ms at full rate, many times a round trip."""
_WINDOW_COUNT: Final = 1024
"""How many messages are asked for until their size is known."""
_WINDOW_COUNT_MAX: Final = 131_072
_RECONNECT_NS: Final = 2000 * MS
_PAUSE_NS: Final = 10 * MS
_ABSENT_NS: Final = 2000 * MS
"""How long a session may be missing at a relay: one that was started again finds its upstreams one
after the other."""
_random: Final = Random()


def denied_by(publisher: str, pattern: str, why: str = "") -> AccessDeniedError:
    """Return what is raised where a publisher gives no right to a topic, or to a prefix.

    `why` is what it says itself.
    """
    return denied_by_peer("subscribe", pattern, f"publisher {publisher!r}", why)


@lru_cache(16)
def _config(limit_ns: int) -> ReceiverConfig:
    """Return how a range is received; checking it each time took a quarter of a small fetch."""
    return ReceiverConfig(deadline=limit_ns / 1e9)


class RangeFetch(Iterator[MessageBatch | LossReport]):
    """One `fetch`; a class, so that it goes on where it was after an exception.

    A small range mostly comes as one frame, which is returned as it is: making the state machine
    for what else may happen takes as long as all the rest of such a fetch.
    """

    def __init__(
        self,
        channel: RangeChannel,
        topic: str,
        start: int,
        stop: int,
        session: int,
        limit_ns: int,
        decode: wire.Decode | None = None,
        *,
        fixed: bool = False,
    ) -> None:
        self._channel = channel
        self._topic = topic
        self._start = self._asked = start
        self._stop = stop
        self._session = session
        self._limit_ns = limit_ns
        self._window = _WINDOW_COUNT
        peer = channel.publisher
        self._name = peer.name if peer is not None and peer.session == session else ""
        now_ns = time.monotonic_ns()
        self._machine: StreamReceiver[Frame] | None = None
        self._whole: Frame | None = None
        self._begun_ns = self._last_heard_ns = self._reconnected_ns = self._left_ns = now_ns
        self._answered_ns = -1
        self._absent_ns: int | None = None
        self._waiting: Delivery[Frame] | Loss | None = None
        self._decode = decode
        self._fixed = fixed
        self._is_denied = False
        channel.fetches[session, topic] = self
        if start < stop and peer is not None and peer.session == session:
            # At once, so that fetches of several peers wait at the same time.
            self._asked = min(stop, start + self._window)
            self._request([(start, self._asked)])

    def __next__(self) -> MessageBatch | LossReport:
        now_ns = time.monotonic_ns()
        if now_ns - self._left_ns > _PAUSE_NS:
            # The caller took its time; that is not the publisher's silence.
            if self._machine is not None:
                self._machine.nacks.postpone(now_ns=now_ns, delay_ns=0)
            self._last_heard_ns = self._reconnected_ns = now_ns
        try:
            return self._next_item()
        finally:
            self._left_ns = time.monotonic_ns()
            self._channel.end_learning()

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
        channel = self._channel
        if self._waiting is not None:
            output, self._waiting = self._waiting, None
            return output
        while True:
            channel.check_open()
            if self._machine is not None:
                waiting = self._machine.next_output()
                if waiting is not None or self._machine.expected >= self._stop:
                    return waiting
            elif self._whole is not None:
                start, stop = self._start, self._stop
                output = Delivery(self._whole, start, start - self._whole.sequence, stop - start)
                self._start, self._whole = stop, None
                return output
            elif self._start >= self._stop:
                return None
            if self._is_denied:
                self._is_denied = False  # it is asked again with the next call
                raise denied_by(self._name, self._topic)
            data = channel.receive()
            if data is not None:
                self._take(data)
            else:
                self._wait()

    def _receiver(self, now_ns: int) -> StreamReceiver[Frame]:
        """Return the state machine, which knows of what was asked for before it was made."""
        if self._machine is None:
            machine: StreamReceiver[Frame] = StreamReceiver(_config(self._limit_ns), _random)
            machine.start_at(self._start, now_ns=now_ns)
            if self._asked > self._start:
                machine.observe_head(self._asked, now_ns=now_ns)
                machine.nacks.due(now_ns=now_ns)
            self._machine = machine
        return self._machine

    def _batch(self, delivery: Delivery[Frame]) -> MessageBatch | LossReport:
        frame = delivery.item
        try:
            batch = batch_of(frame, self._name, self._decode, fixed=self._fixed)
        except FrameError:
            stop = delivery.sequence + delivery.count
            return self._report(Loss(delivery.sequence, stop, LossReason.MALFORMED))
        return batch.part(delivery.skip, delivery.skip + delivery.count)

    def _report(self, loss: Loss) -> LossReport:
        return LossReport(self._topic, self._session, self._name, loss)

    def _give_up(self, reason: LossReason) -> None:
        now_ns = time.monotonic_ns()
        receiver = self._receiver(now_ns)
        receiver.observe_head(self._stop, now_ns=now_ns)
        receiver.give_up(reason)

    def _take(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        try:
            frame = Frame(data)
            if frame.session != self._session:
                raise FrameError("session")
            if frame.kind == Kind.REFUSED:
                body = control.read_body(frame, control.Refused)
                fetch = self._channel.fetches.get((self._session, body.topic))
                if fetch is not None:
                    fetch.take_refusal(body, now_ns)
            elif frame.kind == Kind.DATA:
                fetch = self._channel.fetches.get((self._session, frame.topic))
                if fetch is not None:
                    fetch.take_frame(frame, now_ns)
                if fetch is self and self._machine is not None:
                    self._ask(now_ns)
        except FrameError:
            self._channel.invalid += 1

    def take_frame(self, frame: Frame, now_ns: int) -> None:
        """Take messages of this range."""
        count = min(frame.count, self._stop - frame.sequence)
        if count < 1:
            return  # left over from an earlier fetch
        self._last_heard_ns = now_ns
        if self._machine is None:
            if self._start >= self._stop or self._whole is not None:
                return  # it came twice
            if frame.sequence <= self._start and frame.sequence + frame.count >= self._stop:
                self._whole = frame
                return
        size = len(frame.data)
        self._window = max(1, min(_WINDOW_COUNT_MAX, _WINDOW_BYTES * frame.count // size))
        receiver = self._receiver(now_ns)
        receiver.receive(frame.sequence, count, size, frame, now_ns=now_ns)

    def take_refusal(self, body: control.Refused, now_ns: int) -> None:
        """Take that a part of it is not there any more."""
        self._last_heard_ns = now_ns
        if self._start >= self._stop or self._whole is not None:
            return
        receiver = self._receiver(now_ns)
        try:
            reason = LossReason(body.reason)
        except ValueError:
            raise FrameError("reason") from None
        for start, stop in body.ranges:
            if start >= stop:
                raise FrameError("range")
            if reason is LossReason.DENIED:
                self._is_denied = True
            elif reason is LossReason.BUDGET:
                receiver.nacks.set_loss_reason(start, stop, reason)
            else:
                receiver.reject(start, stop, reason, now_ns=now_ns)

    def _ask(self, now_ns: int, *, again: bool = False) -> None:
        """Move the window on when half of it is there; with `again`, repeat what is due."""
        receiver = self._receiver(now_ns)
        ranges: list[tuple[int, int]] = []
        before = receiver.head
        if before < self._stop and 2 * (before - receiver.expected) < self._window:
            receiver.observe_head(min(self._stop, receiver.expected + self._window), now_ns=now_ns)
        if again:
            ranges = receiver.nacks.due(now_ns=now_ns)
        if before < receiver.head and not any(stop >= receiver.head for _, stop in ranges):
            # It became part of a gap that is answered now, and would be due with that gap's retry.
            ranges.append((before, receiver.head))
        if ranges:
            self._request(ranges)

    def _request(self, ranges: list[tuple[int, int]]) -> None:
        if self._is_other():
            return  # it is asked again when it is due
        channel = self._channel
        body = control.Nack(
            self._topic, ranges, frame_bytes_max=channel.frame_bytes_max, received=channel.received
        )
        channel.send(wire.control_frame(Kind.NACK, self._session, body))

    def _wait(self) -> None:
        """Nothing has come: ask, look who is there, and wait."""
        channel = self._channel
        now_ns = time.monotonic_ns()
        receiver = self._receiver(now_ns)
        if now_ns - self._last_heard_ns > SILENCE_NS:
            self._on_partial(now_ns)
        silence_ns = now_ns - self._last_heard_ns
        if channel.publisher is None or silence_ns > SILENCE_NS:
            channel.listen()
            if silence_ns > _RECONNECT_NS and now_ns - self._reconnected_ns > _RECONNECT_NS:
                self._reconnected_ns = now_ns
                channel.reconnect(learn=True)
        if not self._may_be_there(now_ns):
            self._give_up(LossReason.PUBLISHER_GONE)
            return
        peer = channel.publisher
        relay = channel.relay
        if peer is not None and not self._is_other():
            self._name = peer.name or self._name
        receiver.handle_timer(now_ns=now_ns, answered_ns=self._answered_ns)
        self._ask(now_ns, again=peer is not None or relay is not None)
        deadline_ns = receiver.next_deadline_ns() or now_ns
        channel.poll(min(max(deadline_ns, now_ns + MS), now_ns + SILENCE_NS // 2))

    def _on_partial(self, now_ns: int) -> None:
        """Note that an answer comes: one of 10 MB takes 8 s over a link of 10 Mbit/s."""
        came_ns = self._channel.last_byte_ns(now_ns)
        if came_ns is not None and came_ns > self._last_heard_ns:
            self._last_heard_ns = self._answered_ns = came_ns

    def _is_other(self) -> bool:
        """Whether the publisher that is known at the endpoint has another session."""
        peer = self._channel.publisher
        return self._channel.relay is None and peer is not None and peer.session != self._session

    def _may_be_there(self, now_ns: int) -> bool:
        """Whether the session has not ended, as far as is known of who is at the endpoint.

        What was known before this fetch began says nothing: the session may have begun since then.
        """
        channel = self._channel
        if self._is_other():
            return not channel.check_again(self._begun_ns) or not self._is_other()
        relay = channel.relay
        if relay is None or not relay.is_complete:
            return True
        if self._session in relay.sessions:
            self._absent_ns = None
            return True
        relay.begin()
        if self._absent_ns is None:
            self._absent_ns = now_ns
        return now_ns - self._absent_ns < _ABSENT_NS
