"""The only exit of a subscriber's core: what is ready, and how far each stream was delivered.

::

    frames in order, losses ──append──▶ ready ──take──▶ the application
                                          ▲               │
                                          └────put_back───┘  an interrupt, or newer values
    the next frame, while nothing is ready ──take_frame──▶ the application

Only this file changes a stream's `delivered_to`, `delivered_count` and `conflated`, and the bytes
held. The changes of one method stand together without a call in between: Ctrl-C raises at calls, so
it comes before all of them or after. A method that takes messages out makes no call between that
and its return (`del`, not `popleft`), so that they reach the caller.
"""

from collections import Counter, deque
from collections.abc import Iterator
from struct import error as StructError
from typing import Any, Final

from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.conflation import (
    DecodedFrame,
    Fold,
    SiftedFrame,
    batch_of,
    bytes_of,
    decode,
    decode_single,
    estimated_bytes,
    refold_ns,
)
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.subscriber.typed import InvalidValue, SiftedBatch, invalid_value
from p2pmsg.wire import (
    NO_COLUMNS,
    REST,
    SEQUENCE_MAX,
    SINGLE_BYTES,
    Frame,
    FrameError,
    decode_body,
    decode_one,
)
from recovery import Delivery, Loss, Rewound

_REST_BYTES: Final = REST.size
_COUNT_MAX: Final = 2**32
_NO_MESSAGES: Final[Iterator[Message]] = iter(())

Entry = tuple[Stream, Delivery[Frame] | Loss]
Taken = tuple[Stream, Loss | InvalidValue | None, MessageBatch | None, Any, Iterator[Message]]
"""Stream, loss, batch (None for a single message), an iterator over the values, and one over the
messages that is driven by it. Where there is a loss, or a value that does not fit its type, there
are no messages."""


_Plan = tuple[Taken, int, int, int, int, Entry | None]
"""What is taken, the stream's position after it, how many messages of the delivery that is, how
many of these there are (the others were conflated), its bytes, and what is left of it."""


class ReadyQueue:
    """What waits for the application, oldest first.

    Attributes:
        entries: (stream, delivery or loss), to be read only.
        bytes_held: bytes of the frames in it.
        added: messages that were added since `fold_all`.
        folded: messages of those before that `fold_all` folds again.
        values_invalid: messages that were delivered whose value does not fit its type.
        single: the stream whose last message `take_frame` took alone, until the shell has noted it
            for its cursor.

    """

    __slots__ = (
        "_invalid", "_policy", "added", "bytes_held", "entries", "folded", "single",
        "values_invalid",
    )  # fmt: skip

    def __init__(self, policy: GapPolicy, invalid: Counter[str]) -> None:
        self._policy = policy
        self._invalid = invalid
        self.entries: deque[Entry] = deque()
        self.bytes_held = self.values_invalid = self.added = self.folded = 0
        self.single: Stream | None = None

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def append(self, stream: Stream, output: Delivery[Frame] | Loss) -> None:
        """Add what is delivered last."""
        if isinstance(output, Delivery):
            self.bytes_held += len(output.item.data)
            self.added += output.count
        self.entries.append((stream, output))

    def append_frame(self, stream: Stream, frame: Frame) -> None:
        """Add a whole frame, as `append` does."""
        self.bytes_held += len(frame.data)
        self.added += frame.count
        self.entries.append((stream, Delivery(frame, frame.sequence, 0, frame.count)))

    def take(self, count_max: int = _COUNT_MAX, *, now_ns: int = 0) -> Taken | None:
        """Take out what comes next: at most `count_max` messages of one stream, or a loss.

        A malformed frame is counted, and becomes a loss. Of a conflated stream, the newest message
        of each key is taken; `now_ns` says whether a batch that was taken in part is out of date.
        """
        if not self.entries:
            return None
        stream, output = self.entries[0]
        if self._policy.any_conflates and self._policy.conflates(stream.topic):
            if not _is_settled(output, now_ns):
                self.fold(stream)
            stream, output = self.entries[0]
        if isinstance(output, Loss):
            self._pass_loss(stream, output)
            return stream, output, None, _NO_MESSAGES, _NO_MESSAGES
        try:
            planned = self._plan(stream, output, count_max, now_ns)
        except FrameError as error:
            return self._pass_malformed(stream, output, str(error))
        taken, to, count, messages, size, rest = planned
        delivered, held = stream.delivered_count + count, self.bytes_held - size
        conflated = stream.conflated + count - messages
        invalid = self.values_invalid + (taken[1] is not None)
        # No call in between, so that Ctrl-C comes before it all or after it all.
        stream.delivered_to, stream.delivered_count, stream.conflated = to, delivered, conflated
        self.bytes_held, self.values_invalid = held, invalid
        if rest is not None:
            self.entries[0] = rest
        else:
            del self.entries[0]
        return taken

    def _plan(self, stream: Stream, output: Delivery[Frame], count_max: int, now_ns: int) -> _Plan:
        """Return what is taken of a delivery, without taking it; `FrameError`: it is malformed."""
        frame, size, count = output.item, bytes_of(output.item), output.count
        to = stream.position if output.late else output.sequence + count
        if isinstance(frame, SiftedFrame):
            return _plan_sifted(stream, output, frame, count_max, now_ns)
        is_lone = frame.count == 1 and not output.late and stream.typed is None
        if is_lone and not isinstance(frame, DecodedFrame):
            values = messages = iter((decode_single(stream, frame),))
            return (stream, None, None, values, messages), to, 1, 1, size, None
        batch = decode(stream, output)
        if isinstance(batch, SiftedBatch):
            whole = SiftedFrame(stream, batch, batch.bad, size)
            return _plan_sifted(stream, output, whole, count_max, now_ns)
        total = len(batch)
        rest: Entry | None = None
        if total > count_max:
            left = total - count_max
            after = batch.part(count_max, total)
            batch = batch.part(0, count_max)
            part: Frame = DecodedFrame(
                stream, after, size * left // total, now_ns + refold_ns(left)
            )
            size -= bytes_of(part)
            count -= left
            rest = stream, Delivery(part, output.sequence + count, 0, left, output.late)
            to = to if output.late else after.sequence
        values = iter(batch.values)
        taken = stream, None, batch, values, batch.iterate(values)
        return taken, to, count, len(batch), size, rest

    def take_frame(
        self, stream: Stream, data: bytes, count_max: int, batched: bool
    ) -> Message | MessageBatch | None:
        """Return the messages of a stream's next frame `data`, without `append` and `take`.

        This is the fast path. A thread that waits for a message wakes with cold caches, and each
        function on the way then costs ten times what it does in a loop.

        At most `count_max` messages are wanted; with `batched` a single one comes as a batch, too.
        None: the frame is not the next one, or has more messages, or is malformed, or others are
        ready before it. Nothing is changed then.
        """
        try:
            prefix, sequence, count, length, timestamp_ns, lead = stream.single.unpack_from(data)
        except StructError:
            return None
        if prefix != stream.prefix or not 0 < count <= count_max or self.entries:
            return None
        taken: Message | MessageBatch
        if count == 1 and not batched:
            value: Any = data[stream.single.size : -3]
            size = len(value)
            key = header = None
            if (
                lead != SINGLE_BYTES + size
                or length != size + 7
                or size > 255
                or data[-3:] != NO_COLUMNS
                or stream.typed is not None
            ):
                body_at = len(prefix) + _REST_BYTES
                if length != len(data) - body_at:
                    return None
                decode_lone = decode_one if stream.typed is None else stream.typed.decode_one
                try:
                    value, timestamp_ns, key, header = decode_lone(data, body_at, timestamp_ns)
                except FrameError:
                    return None
            if sequence >= SEQUENCE_MAX or not stream.receiver.accept(sequence, 1):
                return None
            taken = Message(
                stream.topic, value, timestamp_ns, sequence, stream.peer.origin, key, header
            )
            delivered = stream.delivered_count + 1
            # No call in between, as in `take`.
            self.single = stream
            stream.delivered_to, stream.delivered_count = sequence + 1, delivered
            return taken
        body_at = len(prefix) + _REST_BYTES
        if length != len(data) - body_at:
            return None
        decode_all = decode_body if stream.typed is None else stream.typed.decode_body
        try:
            values, timestamps, keys, headers = decode_all(data, body_at, count, timestamp_ns)
        except FrameError:
            return None
        if sequence + count > SEQUENCE_MAX or not stream.receiver.accept(sequence, count):
            return None
        peer = stream.peer
        taken = MessageBatch(
            stream.topic, peer.session, peer.name, sequence, timestamp_ns,
            values, timestamps, keys, headers,
        )  # fmt: skip
        delivered = stream.delivered_count + count
        stream.delivered_to, stream.delivered_count = sequence + count, delivered
        return taken

    def put_back(self, stream: Stream, messages: Message | MessageBatch, left: int) -> None:
        """Deliver the last `left` of the messages last taken of a stream again, before all else.

        It may be called again if an exception cut it short.
        """
        batch = messages if isinstance(messages, MessageBatch) else batch_of(messages)
        rest = batch.part(len(batch) - left, len(batch))
        if self._is_first(stream, rest):
            return
        frame: Frame = DecodedFrame(stream, rest, estimated_bytes(rest))
        start = rest.sequence if rest.late else stream.position - left
        entry = stream, Delivery(frame, start, 0, left, rest.late)
        to = stream.position if rest.late else rest.sequence
        delivered, held = stream.delivered_count - left, self.bytes_held + bytes_of(frame)
        # No call in between, as in `take`.
        stream.delivered_to, stream.delivered_count, self.bytes_held = to, delivered, held
        self.entries.appendleft(entry)

    def pop(self) -> Entry | None:
        """Take out what comes next, not decoded; for a relay."""
        if not self.entries:
            return None
        stream, output = self.entries[0]
        if isinstance(output, Loss):
            self._pass_loss(stream, output)
        else:
            self._pass(stream, output)
        return stream, output

    def fold(self, stream: Stream) -> None:
        """Make one entry of all that is ready of a stream, or one between each two of its losses.

        Losses keep their place. A malformed frame is counted, and becomes a loss in its place.
        """
        kept: deque[Entry] = deque()
        runs: list[tuple[Stream, Fold]] = []
        run: Fold | None = None
        malformed = 0
        for entry in self.entries:
            owner, output = entry
            if owner is not stream or isinstance(output, Loss):
                kept.append(entry)
                run = None if owner is stream else run
                continue
            one = run if run is not None else Fold(stream, len(kept))
            try:
                one.add(output)
            except FrameError as error:
                self._invalid[str(error)] += 1
                kept.append((stream, stream.note_malformed(output.sequence, output.count)))
                malformed += output.count
                run = None
                continue
            if run is None:
                run = one
                runs.append((stream, run))
                kept.append(entry)
        kept = _with_folded(kept, runs, for_taking=True)
        held, delivered = _bytes_in(kept), stream.delivered_count + malformed
        self.entries, self.bytes_held, stream.delivered_count = kept, held, delivered

    def fold_all(self) -> None:
        """Fold all streams of which only the newest values matter, in one pass over them all."""
        kept: deque[Entry] = deque()
        runs: list[tuple[Stream, Fold]] = []
        open_runs: dict[int, Fold] = {}
        malformed: dict[int, Stream] = {}
        for entry in self.entries:
            stream, output = entry
            if isinstance(output, Loss) or not self._policy.conflates(stream.topic):
                kept.append(entry)
                open_runs.pop(id(stream), None)
                continue
            run = open_runs.get(id(stream))
            one = run if run is not None else Fold(stream, len(kept))
            try:
                one.add(output)
            except FrameError:
                kept.append(entry)
                open_runs.pop(id(stream), None)
                malformed[id(stream)] = stream
                continue
            if run is None:
                open_runs[id(stream)] = one
                runs.append((stream, one))
                kept.append(entry)
        kept = _with_folded(kept, runs)
        self.added, self.folded = 0, sum(run.again for _, run in runs)
        held = _bytes_in(kept)
        self.entries, self.bytes_held = kept, held
        for stream in malformed.values():  # a stream's count changes together with the entries
            self.fold(stream)

    def recount(self) -> None:
        """Count the bytes held again, after an exception cut a call short."""
        self.bytes_held = _bytes_in(self.entries)

    def _pass(self, stream: Stream, output: Delivery[Frame]) -> None:
        count, item = output.count, output.item
        to = stream.position if output.late else output.sequence + count
        delivered = stream.delivered_count + count
        held = self.bytes_held - (len(item.data) or bytes_of(item))
        # No call in between, as in `take`.
        stream.delivered_to, stream.delivered_count, self.bytes_held = to, delivered, held
        del self.entries[0]

    def _pass_loss(self, stream: Stream, loss: Loss) -> None:
        to = stream.delivered_to
        if not isinstance(loss, Rewound):
            to = max(loss.stop, stream.position)
        stream.delivered_to = to
        del self.entries[0]

    def _pass_malformed(self, stream: Stream, output: Delivery[Frame], reason: str) -> Taken:
        self._invalid[reason] += 1
        loss = stream.note_malformed(output.sequence, output.count)
        self._pass(stream, output)
        return stream, loss, None, _NO_MESSAGES, _NO_MESSAGES

    def _is_first(self, stream: Stream, rest: MessageBatch) -> bool:
        if not self.entries:
            return False
        owner, output = self.entries[0]
        return (
            owner is stream
            and isinstance(output, Delivery)
            and isinstance(output.item, DecodedFrame)
            and (output.item.sequence, output.late) == (rest.sequence, rest.late)
        )


def _plan_sifted(
    stream: Stream, output: Delivery[Frame], frame: SiftedFrame, count_max: int, now_ns: int
) -> _Plan:
    """Plan to take what comes before the next value that does not fit, or that one itself."""
    batch, at, bad_at = frame.batch, frame.at, frame.bad_at
    total = len(batch)
    next_bad = frame.bad[bad_at] if bad_at < len(frame.bad) else total
    is_bad = next_bad == at
    stop = at + 1 if is_bad else min(at + count_max, next_bad)
    left = total - stop
    count, size = output.count - left, frame.size * (stop - at) // (total - at)
    rest: Entry | None = None
    to = stream.position if output.late else output.sequence + output.count
    if left:
        part = SiftedFrame(
            stream, batch, frame.bad, frame.size - size, now_ns + refold_ns(left),
            at=stop, bad_at=bad_at + is_bad,
        )  # fmt: skip
        rest = stream, Delivery(part, output.sequence + count, 0, left, output.late)
        to = to if output.late else part.sequence
    taken: Taken
    if is_bad:
        taken = stream, invalid_value(batch[at]), None, _NO_MESSAGES, _NO_MESSAGES
    else:
        run = batch.part(at, stop)
        values = iter(run.values)
        taken = stream, None, run, values, run.iterate(values)
    return taken, to, count, stop - at, size, rest


def _is_settled(output: Delivery[Frame] | Loss, now_ns: int) -> bool:
    """Whether a loss comes next, or the rest of a batch that was folded right before."""
    if isinstance(output, Loss):
        return True
    return isinstance(output.item, DecodedFrame) and now_ns < output.item.settled_ns


def _with_folded(
    kept: deque[Entry], runs: list[tuple[Stream, Fold]], *, for_taking: bool = False
) -> deque[Entry]:
    """Return the entries with what each run has become, where its first entry is."""
    more: dict[int, list[Entry]] = {}
    for stream, run in runs:
        first, *others = run.deliveries(for_taking=for_taking and run.at == 0)
        kept[run.at] = stream, first
        if others:
            more[run.at] = [(stream, other) for other in others]
    if not more:  # the usual case
        return kept
    return deque(each for at, entry in enumerate(kept) for each in (entry, *more.get(at, ())))


def _bytes_in(entries: deque[Entry]) -> int:
    outputs = [output for _, output in entries]
    return sum(bytes_of(output.item) for output in outputs if isinstance(output, Delivery))
