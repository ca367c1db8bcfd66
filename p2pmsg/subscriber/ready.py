"""The only exit of a subscriber's core: what is ready, and how far each stream was delivered.

::

    frames in order, losses ──append──▶ ready ──take──▶ the application
                                          ▲               │
                                          └────put_back───┘  part of a batch was asked for
                                          └───take_back───┘  an exception
    the next frame, while nothing is ready ──take_frame──▶ the application

What is ready waits in `entries`, in the order in which it became so. A stream of which only the
newest value of each key matters has one place there, and what is ready of it is in
`Stream.waiting`: folding it looks at nothing else, however many streams there are. When it has had
its turn it goes to the end, so that one that changes all the time keeps no other waiting.

Only this file changes a stream's `delivered_to`, `delivered_count`, `conflated` and `waiting`, and
the bytes held. The changes of one method stand together without a call in between: Ctrl-C raises at
calls, so it comes before all of them or after. What takes messages out notes before that how to
undo it: `take_back` does, unless they have got to where the application reads them.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.conflation import (
    FOLD_MIN,
    DecodedFrame,
    Fold,
    batch_of,
    bytes_of,
    decode,
    estimated_bytes,
    fold_due,
    is_folded,
    refold_ns,
)
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.subscriber.typed import InvalidValue, Misfit, invalid_value
from p2pmsg.wire import Frame, FrameError, decode_one, read_frame
from recovery import Delivery, Loss, Rewound

_COUNT_MAX: Final = 2**32
_NO_MESSAGES: Final[Iterator[Message]] = iter(())

Output = Delivery[Frame] | Loss
Entry = tuple[Stream, Output | None]
"""A stream and what it delivers next; None: the first one in its `Stream.waiting`."""
Taken = tuple[Stream, Loss | InvalidValue | None, MessageBatch | None, Any, Iterator[Message]]
"""Stream, loss, batch (None for a single message), an iterator over the values, and one over the
messages that is driven by it. Where there is a loss, or a value that does not fit its type, there
are no messages."""


_Plan = tuple[Taken, int | None, int, int, int, Output | None]
"""What is taken, the stream's position after it, how many messages of the delivery that is, how
many of these there are (the others were conflated), its bytes, and what is left of it."""


class ReadyQueue:
    """What waits for the application, oldest first.

    Attributes:
        entries: a stream and its delivery or loss; or None, for a stream with `waiting`. To be read
            only; iterating over the queue itself gives each delivery and loss.
        bytes_held: bytes of the frames in it.
        unfolded: messages of conflated streams that were added since `fold_all`.
        values_invalid: messages that were delivered whose value does not fit its type.
        taken: what was taken last: its stream, the loss, the messages or an iterator over them.

    """

    __slots__ = (
        "_invalid", "_policy", "_turn", "_turn_ends_ns", "_undo", "bytes_held", "entries", "taken",
        "unfolded", "values_invalid",
    )  # fmt: skip

    def __init__(self, policy: GapPolicy, invalid: Counter[str]) -> None:
        self._policy = policy
        self._invalid = invalid
        self.entries: deque[Entry] = deque()
        self.bytes_held = self.values_invalid = self.unfolded = 0
        self.taken: tuple[Any, ...] | None = None
        self._undo: tuple[Any, ...] = ()
        self._turn: Stream | None = None
        """The conflated stream whose turn it is, if it is the first one."""
        self._turn_ends_ns = 0

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[tuple[Stream, Output]]:
        for stream, output in self.entries:
            if output is not None:
                yield stream, output
            else:
                for one in stream.conflation.waiting or ():
                    yield stream, one

    def append(self, stream: Stream, output: Output) -> None:
        """Add what is delivered last."""
        if isinstance(output, Delivery):
            self.bytes_held += len(output.item.data)
        if self._policy.any_conflates:
            self._add(stream, output)
        else:
            self.entries.append((stream, output))

    def append_frame(self, stream: Stream, frame: Frame) -> None:
        """Add a whole frame, as `append` does."""
        self.bytes_held += len(frame.data)
        output = Delivery(frame, frame.sequence, 0, frame.count)
        if self._policy.any_conflates:
            self._add(stream, output)
        else:
            self.entries.append((stream, output))

    def _add(self, stream: Stream, output: Output) -> None:
        count = output.count if isinstance(output, Delivery) else 0
        waiting = stream.conflation.waiting
        if waiting is None:
            if not self._policy.conflates(stream.topic):
                self.entries.append((stream, output))
                return
            self.unfolded += count
            stream.conflation.fold_in = FOLD_MIN - count
            stream.conflation.waiting = [output]
            self.entries.append((stream, None))
            return
        self.unfolded += count
        waiting.append(output)
        stream.conflation.fold_in -= count
        if stream.conflation.fold_in <= 0:
            self.fold(stream)

    def first(self) -> tuple[Stream, Output]:
        """Return what comes next, where there is anything."""
        return next(iter(self))

    def next_turn(self, now_ns: int) -> None:
        """Let the next stream have its turn, where that of a conflated one is over.

        It is called before `take`, and before the caller looks which stream comes first.
        """
        entries = self.entries
        if len(entries) > 1 and self._turn is entries[0][0] and now_ns >= self._turn_ends_ns:
            self._turn = None
            entries.rotate(-1)

    def take(self, count_max: int = _COUNT_MAX, *, now_ns: int = 0) -> Taken | None:
        """Take out what comes next: at most `count_max` messages of one stream, or a loss.

        A malformed frame is counted, and becomes a loss. Of a conflated stream, the newest message
        of each key is taken; `now_ns` says whether a batch that was taken in part is out of date.
        """
        if not self.entries:
            return None
        stream, output = self.entries[0]
        if output is None:
            output = self._newest(stream, now_ns)
        try:
            planned = self._plan(stream, output, count_max)
        except FrameError as error:
            assert isinstance(output, Delivery)
            output = self._on_malformed(stream, output, str(error))
            planned = self._plan(stream, output, count_max)
        taken, to, count, messages, size, rest = planned
        delivered, held = stream.delivered_count + count, self.bytes_held - size
        conflated = stream.conflated + count - messages
        invalid = self.values_invalid + isinstance(taken[1], InvalidValue)
        waiting = stream.conflation.waiting
        is_last = waiting is None or len(waiting) == 1
        self._undo = (
            stream, output, rest, None if waiting is None else [*waiting], self.values_invalid,
            stream.delivered_to, stream.delivered_count, stream.conflated,
        )  # fmt: skip
        # Should an exception come from here on, `take_back` undoes it.
        self.taken = taken
        stream.delivered_to, stream.delivered_count, stream.conflated = (
            to,
            delivered,
            conflated,
        )
        self.bytes_held, self.values_invalid = held, invalid
        if rest is not None:
            if waiting is None:
                self.entries[0] = stream, rest
            else:
                waiting[0] = rest
        elif is_last or waiting is None:
            stream.conflation.waiting = self._turn = None
            del self.entries[0]
        else:
            del waiting[0]
            self._turn_ends_ns = 0
        return taken

    def _newest(self, stream: Stream, now_ns: int) -> Output:
        """Return what a conflated stream delivers next: folded, unless its turn goes on."""
        waiting = stream.conflation.waiting
        assert waiting
        first = waiting[0]
        if isinstance(first, Loss):
            return first
        is_ready = is_folded(first.item)
        if is_ready and stream is self._turn and now_ns < self._turn_ends_ns:
            return first
        if len(waiting) > 1 or not is_ready:
            waiting = self.fold(stream, for_taking=True)
        self._turn_ends_ns = now_ns
        if isinstance(waiting[0], Delivery):
            self._turn_ends_ns += refold_ns(waiting[0].item.count)
        self._turn = stream
        return waiting[0]

    def _plan(self, stream: Stream, output: Output, count_max: int) -> _Plan:
        """Return what is taken of a delivery, without taking it; `FrameError`: it is malformed.

        Messages are taken up to the next value that does not fit its type; that comes alone.
        """
        if isinstance(output, Loss):
            lost: Taken = stream, output, None, _NO_MESSAGES, _NO_MESSAGES
            return lost, _after(stream, output), 0, 0, 0, None
        frame, size, count = output.item, bytes_of(output.item), output.count
        to = _after(stream, output)
        if frame.count == 1 and not output.late and not isinstance(frame, DecodedFrame):
            lone = _decode_lone(stream, frame)
            if lone is not None:
                values = messages = iter((lone,))
                return (stream, None, None, values, messages), to, 1, 1, size, None
        batch, has_misfits = decode(stream, output)
        total = len(batch)
        stop, is_misfit = min(total, count_max), False
        if has_misfits:
            kinds = enumerate(map(type, batch.values))
            misfit_at = next((at for at, kind in kinds if kind is Misfit), total)
            is_misfit = misfit_at == 0
            stop = 1 if is_misfit else min(stop, misfit_at)
        rest: Output | None = None
        if total > stop:
            left = total - stop
            after = batch.part(stop, total)
            batch = batch.part(0, stop)
            part = DecodedFrame(stream, after, size * left // total, has_misfits=has_misfits)
            size -= part.size
            count -= left
            rest = Delivery(part, output.sequence + count, 0, left, output.late)
            to = to if output.late else after.sequence
        taken: Taken
        if is_misfit:
            taken = stream, invalid_value(batch[0]), None, _NO_MESSAGES, _NO_MESSAGES
        else:
            values = iter(batch.values)
            taken = stream, None, batch, values, batch.iterate(values)
        return taken, to, count, stop, size, rest

    def take_frame(
        self, stream: Stream, data: bytes, count_max: int
    ) -> Message | MessageBatch | None:
        """Return the messages of a stream's next frame `data`, without `append` and `take`.

        This is the fast path. At most `count_max` messages are wanted; a single one comes as such.
        None: the frame is not the next one, or has more messages, or is malformed, or others are
        ready before it. Nothing is changed then.
        """
        if self.entries:
            return None
        peer = stream.peer
        taken: Message | MessageBatch
        found: Any = read_frame(
            data, stream.prefix, count_max, Message, stream.topic, peer.origin, stream.typed
        )
        if found is None:
            return None
        if type(found) is Message:
            taken, sequence, count = found, found.sequence, 1
        else:
            sequence, count, base_ns, columns = found
            taken = MessageBatch(stream.topic, peer.session, peer.name, sequence, base_ns, *columns)
        if not stream.receiver.accept(sequence, count):
            return None
        counts = stream.delivered_to, stream.delivered_count, stream.conflated
        self._undo = stream, None, None, None, self.values_invalid, *counts
        self.taken = stream, None, taken
        stream.delivered_to, stream.delivered_count = sequence + count, counts[1] + count
        return taken

    def arrived(self) -> None:
        """Note that what was taken is where it was to go: `take_back` is not to undo it."""
        self.taken = None

    def take_back(self, read: tuple[Any, ...] | None) -> bool:
        """Undo what was taken last, after an exception, unless it is `read`, or has arrived.

        What did not wait here is asked for again. Returns whether it was undone; it may be called
        again, should it be cut short.
        """
        is_undone = self.taken is not None and self.taken is not read
        if is_undone:
            stream, output, rest, waiting, self.values_invalid, *counts = self._undo
            stream.delivered_to, stream.delivered_count, stream.conflated = counts
            if waiting is not None:
                stream.conflation.waiting, output = waiting, None
            if output is not None or waiting is not None:
                entry: Entry = stream, output
                owner, first = self.entries[0] if self.entries else (None, None)
                if owner is stream and (first is output or (rest is not None and first is rest)):
                    self.entries[0] = entry
                else:
                    self.entries.appendleft(entry)
        self.taken = None
        return is_undone

    def put_back(self, stream: Stream, messages: Message | MessageBatch, left: int) -> None:
        """Deliver the last `left` of the messages last taken of a stream again, before all else.

        A conflated stream delivers them first when it has its next turn, with what is newer. It may
        be called again if an exception cut it short.
        """
        batch = messages if isinstance(messages, MessageBatch) else batch_of(messages)
        rest = batch.part(len(batch) - left, len(batch))
        if self._is_first(stream, rest):
            return
        frame: Frame = DecodedFrame(stream, rest, estimated_bytes(rest))
        start = rest.sequence if rest.late else stream.position - left
        output = Delivery(frame, start, 0, left, rest.late)
        conflates = self._policy.any_conflates and self._policy.conflates(stream.topic)
        to = stream.position if rest.late else rest.sequence
        delivered, held = stream.delivered_count - left, self.bytes_held + bytes_of(frame)
        waiting = stream.conflation.waiting
        # No call in between, as in `take`.
        stream.delivered_to, stream.delivered_count, self.bytes_held = to, delivered, held
        if not conflates:
            self.entries.appendleft((stream, output))
            return
        self._turn, self._turn_ends_ns = stream, 0
        if waiting is not None:
            stream.conflation.waiting = [output, *waiting]
        else:
            stream.conflation.waiting, stream.conflation.fold_in = [output], FOLD_MIN
            self.entries.appendleft((stream, None))

    def pop(self) -> tuple[Stream, Output] | None:
        """Take out what comes next, not decoded; for a relay."""
        if not self.entries:
            return None
        stream, output = self.first()
        to, delivered, held = _after(stream, output), stream.delivered_count, self.bytes_held
        if isinstance(output, Delivery):
            delivered, held = delivered + output.count, held - bytes_of(output.item)
        waiting = stream.conflation.waiting
        is_last = waiting is None or len(waiting) == 1
        # No call in between, as in `take`.
        stream.delivered_to, stream.delivered_count, self.bytes_held = to, delivered, held
        if is_last or waiting is None:
            stream.conflation.waiting = self._turn = None
            del self.entries[0]
        else:
            del waiting[0]
        return stream, output

    def fold(self, stream: Stream, *, for_taking: bool = False) -> list[Output]:
        """Make one delivery of all that is ready of a conflated stream, or one between two losses.

        Losses keep their place. A malformed frame is counted, and becomes a loss in its place.
        `for_taking`: the first one is taken right after. Returns what waits now.
        """
        waiting = stream.conflation.waiting
        assert waiting is not None
        folded: list[Output] = []
        run: Fold | None = None
        malformed = 0
        for output in waiting:
            loss = output
            if isinstance(output, Delivery):
                one = run if run is not None else Fold(stream)
                try:
                    one.add(output)
                except FrameError as error:
                    self._invalid[str(error)] += 1
                    loss = stream.on_malformed(output.sequence, output.count)
                    malformed += output.count
                else:
                    run = one
                    continue
            if run is not None:
                folded += run.deliveries(for_taking=for_taking and not folded)
                run = None
            folded.append(loss)
        if run is not None:
            folded += run.deliveries(for_taking=for_taking and not folded)
        held = self.bytes_held + _bytes_in(folded) - _bytes_in(waiting)
        delivered, due = stream.delivered_count + malformed, fold_due(folded)
        # No call in between, as in `take`.
        stream.conflation.waiting, self.bytes_held, stream.delivered_count = folded, held, delivered
        stream.conflation.fold_in = due
        return folded

    def fold_all(self) -> None:
        """Fold all conflated streams."""
        for stream, output in list(self.entries):
            if output is None:
                self.fold(stream)
        self.unfolded = 0

    def recount(self) -> None:
        """Count the bytes held again, after an exception cut a call short."""
        self.bytes_held = _bytes_in(output for _, output in self)

    def _on_malformed(self, stream: Stream, output: Delivery[Frame], reason: str) -> Loss:
        """Have a loss in the place of a frame that comes next and is malformed."""
        self._invalid[reason] += 1
        loss = stream.on_malformed(output.sequence, output.count)
        delivered = stream.delivered_count + output.count
        held = self.bytes_held - bytes_of(output.item)
        entry: Entry = stream, loss
        # No call in between, as in `take`.
        stream.delivered_count, self.bytes_held = delivered, held
        self.entries[0] = entry
        return loss

    def _is_first(self, stream: Stream, rest: MessageBatch) -> bool:
        owner, output = self.entries[0] if self.entries else (None, None)
        if stream.conflation.waiting:
            owner, output = stream, stream.conflation.waiting[0]
        return (
            owner is stream
            and isinstance(output, Delivery)
            and isinstance(output.item, DecodedFrame)
            and (output.item.sequence, output.late) == (rest.sequence, rest.late)
        )


def _after(stream: Stream, output: Output) -> int | None:
    """Return where a stream is after what it delivers next; None: at its beginning."""
    if isinstance(output, Delivery):
        return stream.position if output.late else output.sequence + output.count
    return stream.delivered_to if isinstance(output, Rewound) else max(output.stop, stream.position)


def _decode_lone(stream: Stream, frame: Frame) -> Message | None:
    """Return the message of a frame of one; None: `decode` says what is wrong with it."""
    decode_lone = decode_one if stream.typed is None else stream.typed.decode_one
    try:
        value, timestamp_ns, key, header = decode_lone(
            frame.data, frame.body_at, frame.base_timestamp_ns
        )
    except FrameError:
        return None
    peer = stream.peer
    return Message(stream.topic, value, timestamp_ns, frame.sequence, peer.origin, key, header)


def _bytes_in(outputs: Iterable[Output]) -> int:
    return sum(bytes_of(output.item) for output in outputs if isinstance(output, Delivery))
