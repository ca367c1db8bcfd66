"""One fetch of a range: windows are asked for, batches and losses come out in order. No I/O."""

from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Final

from p2pmsg import control, wire
from p2pmsg.errors import LossReport
from p2pmsg.frames import batch_of
from p2pmsg.message import MessageBatch
from p2pmsg.ranges.heads import denied_by
from p2pmsg.ranges.place import MS, SILENCE_NS, Place, Presence
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import Delivery, Loss, LossReason, ReceiverConfig, StreamReceiver

_WINDOW_BYTES: Final = 8 * 2**20
"""About as many bytes are asked for at a time: 5 ms at full rate, many times a round trip."""
_WINDOW_COUNT: Final = 1024
"""How many messages are asked for until their size is known."""
_WINDOW_COUNT_MAX: Final = 131_072
_RECONNECT_NS: Final = 2000 * MS
_PAUSE_NS: Final = 10 * MS


@lru_cache(16)
def _config(limit_ns: int) -> ReceiverConfig:
    """Return how a range is received; checking it each time took a quarter of a small fetch."""
    return ReceiverConfig(deadline=limit_ns / 1e9)


def end_of(item: MessageBatch | LossReport) -> int:
    """Return the sequence after the last one of what a fetch gives."""
    return item.stop if isinstance(item, LossReport) else item.sequence + len(item)


class RangeFetch:
    """One `fetch`.

    Args:
        place: who is asked.
        topic, start, stop, session: what is wanted.
        limit_ns: how long to go on without any progress.
        decode, fixed: as for `batch_of`.
        rng: source of the jitter.
        now_ns: monotonic time.

    Attributes:
        place: as it was given.
        position, stop: the end of what `next_item` returned, and of the range.

    """

    def __init__(
        self,
        place: Place,
        topic: str,
        start: int,
        stop: int,
        session: int,
        limit_ns: int,
        decode: wire.Decode | None = None,
        *,
        fixed: bool = False,
        rng: Random,
        now_ns: int,
    ) -> None:
        self.place = place
        self._topic = topic
        self.position = start
        self.stop = stop
        self._session = session
        self._config = _config(limit_ns)
        self._window = _WINDOW_COUNT
        self._rng = rng
        self._name = ""
        self._begun_ns = self._last_heard_ns = self._reconnected_ns = self._left_ns = now_ns
        self._answered_ns = -1
        self._decode = decode
        self._fixed = fixed
        self._seen = -1
        self.reset()
        self._ask_due(now_ns)  # at once, so that fetches of several peers wait together

    def has_changed(self) -> bool:
        """Whether something came to the place since `ask`."""
        return self._seen != self.place.version

    def reset(self, position: int | None = None) -> None:
        """Ask again, from `position` on. Default: for what `next_item` did not return."""
        if position is not None:
            self.position = position
        self._receiver: StreamReceiver[Frame] = StreamReceiver(self._config, self._rng)
        self._receiver.start_at(self.position, now_ns=0)
        self._waiting: Delivery[Frame] | None = None
        self._lost: Loss | None = None
        self._is_denied = False

    def begin(self, position: int, now_ns: int) -> None:
        """Note that the caller is back, and has all before `position`.

        What was taken after that did not get there. The time that it took is not the publisher's
        silence.
        """
        if position != self.position:
            self.reset(position)
        if now_ns - self._left_ns > _PAUSE_NS:
            self._receiver.nacks.postpone(now_ns=now_ns, delay_ns=0)
            self._last_heard_ns = self._reconnected_ns = now_ns

    def next_item(self, now_ns: int) -> MessageBatch | LossReport | None:
        """Return what comes next in the order, or None where it has not come yet.

        Raises:
            AccessDeniedError: the publisher gives no right to it; it is asked again with `ask`.

        """
        self._left_ns = now_ns
        item: MessageBatch | LossReport | None = None
        while item is None and (output := self._next_output(now_ns)) is not None:
            item = self._batch(output) if isinstance(output, Delivery) else self._merge(output)
        if item is None and self._lost is not None and self._lost.stop >= self.stop:
            item = self._take_lost()
        if item is None:
            if self._is_denied:
                self._is_denied = False
                raise denied_by(self._name, self._topic)
            return None
        self.position = end_of(item)
        if self.position < self.stop:
            self._ask_due(now_ns)
        return item

    def _next_output(self, now_ns: int) -> Delivery[Frame] | Loss | None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            return waiting
        output = self._receiver.next_output()
        if isinstance(output, Loss) and output.reason is LossReason.TIMEOUT:
            self._give_up(output.reason, now_ns)  # the rest as well
        return output

    def _merge(self, loss: Loss) -> LossReport | None:
        """Report one range once, however many windows it was asked for in."""
        lost = self._lost
        if lost is None or lost.reason is loss.reason:
            self._lost = loss if lost is None else Loss(lost.start, loss.stop, loss.reason)
            return None
        self._lost = loss
        return self._report(lost)

    def _batch(self, delivery: Delivery[Frame]) -> MessageBatch | LossReport | None:
        if self._lost is not None:
            self._waiting = delivery
            return self._take_lost()
        frame = delivery.item
        try:
            batch = batch_of(frame, self._name, self._decode, fixed=self._fixed)
        except FrameError:
            start = delivery.sequence
            return self._merge(Loss(start, start + delivery.count, LossReason.MALFORMED))
        return batch.part(delivery.skip, delivery.skip + delivery.count)

    def _take_lost(self) -> LossReport:
        lost, self._lost = self._lost, None
        assert lost is not None
        return self._report(lost)

    def _report(self, loss: Loss) -> LossReport:
        return LossReport(self._topic, self._session, self._name, loss)

    def _give_up(self, reason: LossReason, now_ns: int) -> None:
        self._receiver.observe_head(self.stop, now_ns=now_ns)
        self._receiver.give_up(reason)

    def take_frame(self, frame: Frame, now_ns: int) -> None:
        """Take messages of this range."""
        count, size = min(frame.count, self.stop - frame.sequence), len(frame.data)
        if count < 1:
            return  # left over from an earlier fetch
        self._last_heard_ns = now_ns
        self._window = max(1, min(_WINDOW_COUNT_MAX, _WINDOW_BYTES * frame.count // size))
        self._receiver.receive(frame.sequence, count, size, frame, now_ns=now_ns)

    def take_refusal(self, body: control.Refused, now_ns: int) -> None:
        """Take that a part of it is not there any more."""
        self._last_heard_ns = now_ns
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
                self._receiver.nacks.set_loss_reason(start, stop, reason)
            else:
                self._receiver.reject(start, stop, reason, now_ns=now_ns)

    def is_silent(self, now_ns: int) -> bool:
        """Whether nothing has come for so long that `on_partial` says more."""
        return now_ns - self._last_heard_ns > SILENCE_NS

    def on_partial(self, came_ns: int | None) -> None:
        """Note when a byte of an answer came: one of 10 MB takes 8 s over a link of 10 Mbit/s."""
        if came_ns is not None and came_ns > self._last_heard_ns:
            self._last_heard_ns = self._answered_ns = came_ns

    @property
    def whom(self) -> Presence | None:
        """Whom to ask, as far as that is known."""
        return self.place.publishers.get(self._session)

    def ask(self, now_ns: int) -> int:
        """Nothing has come: ask what is due, see who is there; return when to look again."""
        place, receiver, whom = self.place, self._receiver, self.whom
        self._seen = place.version
        silence_ns = now_ns - self._last_heard_ns
        if whom is None or silence_ns > SILENCE_NS:
            place.listen(now_ns)
            if silence_ns > _RECONNECT_NS and now_ns - self._reconnected_ns > _RECONNECT_NS:
                self._reconnected_ns = now_ns
                place.renew(*(() if whom is None else (whom,)))
        if place.is_gone(self._session, self._begun_ns, now_ns):
            self._give_up(LossReason.PUBLISHER_GONE, now_ns)
            return now_ns
        receiver.handle_timer(now_ns=now_ns, answered_ns=self._answered_ns)
        self._ask_due(now_ns)
        deadline_ns = receiver.next_deadline_ns() or now_ns
        return min(max(deadline_ns, now_ns + MS), now_ns + SILENCE_NS // 2)

    def _ask_due(self, now_ns: int) -> None:
        """Move the window on when half of it is there; ask for what is due, if anybody is there."""
        receiver, place, whom = self._receiver, self.place, self.whom
        expected, head = receiver.expected, receiver.head
        if head < self.stop and 2 * (head - expected) < self._window:
            receiver.observe_head(min(self.stop, expected + self._window), now_ns=now_ns)
        if whom is None:
            return
        self._name = whom.name or self._name
        if ranges := receiver.nacks.due(now_ns=now_ns):
            body = control.Nack(
                self._topic, ranges, frame_bytes_max=place.frame_bytes_max,
                received=place.received[whom.recovery],
            )  # fmt: skip
            place.ask(whom, wire.control_frame(Kind.NACK, self._session, body))


def take_reply(fetches: Mapping[tuple[int, str], RangeFetch], frame: Frame, now_ns: int) -> None:
    """Take an answer to a request for a range, for whose it is; raises `FrameError`."""
    if frame.kind == Kind.REFUSED:
        body = control.read_body(frame, control.Refused)
        fetch = fetches.get((frame.session, body.topic))
        if fetch is not None:
            fetch.take_refusal(body, now_ns)
    elif frame.kind == Kind.DATA:
        fetch = fetches.get((frame.session, frame.topic))
        if fetch is not None:
            fetch.take_frame(frame, now_ns)
