"""Schedules repair requests over all streams with gaps, and limits them to what fits.

::

    missing ──▶ due ──a turn is free──▶ asked ──answer──▶ due again, or nothing is missing
                 └────none──▶ waiting ────▲

A late joiner may miss something of ten thousand streams at once. Requests beyond what the queues to
the publisher hold would be dropped, and count as attempts. Each publisher has turns of its own: one
that is silent keeps no other's waiting.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from p2pmsg.subscriber.sessions import Session, Stream
from p2pmsg.wire import Frame
from recovery import DeadlineHeap, StreamReceiver
from recovery.receiver import FRAMES_MAX

TURNS_MAX: Final = 256
"""Streams of a publisher with a request and no answer yet. It fills 10 ms of a round trip at 25,000
frames a second, and is a quarter of the ranges that a publisher keeps for a requester."""
_WINDOW_MIN: Final = 1024
"""Messages after the first gap that are asked for, however little fits."""
_GROUP_WINDOW_MIN: Final = 16
"""The same in a multicast, where a repair that does not fit was sent to all for nothing."""
_NEVER_NS: Final = 2**62


@dataclass(slots=True)
class _Turns:
    """The streams of one publisher that were asked for, and those that wait for that."""

    asked: set[int] = field(default_factory=set)
    waiting: dict[int, int] = field(default_factory=dict)
    """Since when, the longest first."""


class GapScheduler:
    """Holds the streams that miss something, or whose beginning is not known yet.

    Every call that changes what a stream's receiver misses is followed by `note` or `discard`.
    The streams of a multicast take no turns: its back-off does that.

    Args:
        deadline_ns: after so long without any answer of its publisher, what waits for its turn is
            given up.

    Attributes:
        bytes_held: bytes of frames that wait for what is missing before them.

    """

    def __init__(self, deadline_ns: int) -> None:
        self._deadline_ns = deadline_ns
        self._streams: dict[int, Stream] = {}
        self._bytes: dict[int, int] = {}
        self._due: DeadlineHeap[int] = DeadlineHeap()
        self._turns: dict[Session, _Turns] = {}
        self._turn_ns = _NEVER_NS  # when one begins, or what waits for it is given up
        self._quiet_until_ns = self._paused_until_ns = self._postponed_ns = 0
        self._pauses = 0
        self._noted: dict[int, int] = {}  # which of them a stream follows
        self.bytes_held = 0

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self._streams.values()))

    def note(self, stream: Stream) -> bool:
        """Note what a stream holds, and when it is due; True: it was not here before."""
        key, receiver = id(stream), stream.receiver
        held = receiver.bytes_held
        self.bytes_held += held - self._bytes.get(key, 0)
        self._bytes[key] = held
        if not self._is_waiting(key, stream):
            self._set_due(key, receiver.next_deadline_ns())
        if key in self._streams:
            return False
        self._streams[key] = stream
        self._noted[key] = self._pauses
        return True

    def discard(self, stream: Stream) -> bool:
        """Forget a stream; False: it was not here."""
        key = id(stream)
        if self._streams.pop(key, None) is None:
            return False
        self.bytes_held -= self._bytes.pop(key)
        del self._noted[key]
        self._due.discard(key)
        self._end_turn(key, stream.peer)
        return True

    def clear(self) -> None:
        """Forget all streams."""
        self._streams.clear()
        self._bytes.clear()
        self._noted.clear()
        self._due.clear()
        self._turns.clear()
        self._turn_ns = _NEVER_NS
        self.bytes_held = 0

    def pass_on(self, stream: Stream) -> None:
        """End the turn of a stream of which nothing was to be asked for."""
        self._end_turn(id(stream), stream.peer)

    def postpone(self, *, now_ns: int, delay_ns: int, stopped_ns: int | None = None) -> None:
        """Ask for nothing before `now_ns + delay_ns`, and give nothing up for that.

        Who has no space calls it at each look, without `stopped_ns`: that costs the same for many
        streams as for one, since each takes note of it when its turn comes.
        """
        self._quiet_until_ns = max(self._quiet_until_ns, now_ns + delay_ns)
        self._postponed_ns = now_ns
        if stopped_ns is None:
            self._pauses += 1
            self._paused_until_ns = self._quiet_until_ns
            return
        for key, stream in self._streams.items():
            if self._is_waiting(key, stream):
                continue  # its time counts from the start of its turn
            self._on_pauses(key, stream)
            stream.receiver.nacks.postpone(now_ns=now_ns, delay_ns=delay_ns, stopped_ns=stopped_ns)
            self._set_due(key, stream.receiver.next_deadline_ns())

    def take_due(self, *, now_ns: int) -> list[Stream]:
        """Return the streams of which something is due and that have a turn."""
        found: list[Stream] = []
        while (key := self._due.pop_due(now_ns)) is not None:
            stream = self._streams[key]
            peer, turns = stream.peer, self._turns.get(stream.peer)
            self._on_pauses(key, stream)
            if peer.feedback is not None or peer.gone or (turns and key in turns.asked):
                found.append(stream)
            else:
                self._turns.setdefault(peer, _Turns()).waiting[key] = now_ns
        self._turn_ns = _NEVER_NS
        for peer, turns in self._turns.items():
            if turns.waiting:
                found += self._begin_turns(peer, turns, now_ns)
        return found

    def _begin_turns(self, peer: Session, turns: _Turns, now_ns: int) -> Iterator[Stream]:
        """Yield the streams whose turn begins, or all that wait where no answer comes."""
        waiting = turns.waiting
        while waiting and len(turns.asked) < TURNS_MAX:
            key = next(iter(waiting))
            stream, since_ns = self._streams[key], waiting.pop(key)
            turns.asked.add(key)
            self._noted[key] = self._pauses
            if since_ns < now_ns:
                stream.receiver.nacks.postpone(
                    now_ns=now_ns, delay_ns=0, stopped_ns=now_ns - since_ns
                )
            yield stream
        if not waiting:
            return
        since_ns = next(iter(waiting.values()))
        given_up_ns = max(peer.answered_ns, self._postponed_ns, since_ns) + self._deadline_ns
        if now_ns < given_up_ns:
            self._turn_ns = min(self._turn_ns, given_up_ns)
            return
        for key in waiting:
            self._noted[key] = self._pauses
            yield self._streams[key]
        waiting.clear()

    def next_deadline_ns(self) -> int | None:
        """Return when `take_due` has something, or None."""
        if not self._streams:
            return None
        first = self._due.first()
        due_ns = None if first is None else max(first[0], self._paused_until_ns)
        if self._turn_ns < _NEVER_NS:
            turn_ns = max(self._turn_ns, self._quiet_until_ns)
            due_ns = turn_ns if due_ns is None else min(due_ns, turn_ns)
        return due_ns

    def _is_waiting(self, key: int, stream: Stream) -> bool:
        """Whether a stream waits for its turn."""
        turns = self._turns.get(stream.peer)
        return turns is not None and key in turns.waiting

    def _end_turn(self, key: int, peer: Session) -> None:
        """Let the next stream of a publisher have the turn of this one."""
        turns = self._turns.get(peer)
        if turns is None:
            return
        turns.asked.discard(key)
        turns.waiting.pop(key, None)
        if turns.waiting:
            self._turn_ns = 0
        elif not turns.asked:
            del self._turns[peer]

    def _on_pauses(self, key: int, stream: Stream) -> None:
        """Let a stream follow the calls of `postpone` since it did so last."""
        if self._noted[key] != self._pauses:
            self._noted[key] = self._pauses
            stream.receiver.nacks.postpone(now_ns=self._paused_until_ns, delay_ns=0)

    def _set_due(self, key: int, due_ns: int | None) -> None:
        if due_ns is None:
            self._due.discard(key)
        else:
            self._due.set(key, due_ns)


class ReceiveWindow:
    """Limits how far after the first gap of a stream repairs are asked for, and taken.

    Args:
        bytes_max: what may wait for the application or for a repair, over all streams.

    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._frames = self._messages = self._bytes = 0

    def note(self, frame: Frame) -> None:
        """Take note of a frame that came."""
        self._frames += 1
        self._messages += frame.count
        self._bytes += len(frame.data)

    def window(self) -> int:
        """Return how many messages fit, twice: while they come, others are read."""
        if not self._frames:
            return _WINDOW_MIN
        return max(_WINDOW_MIN, self._fitting(2 * self._bytes_max))

    def window_in(self, bytes_free: int) -> int:
        """Return how many messages fit into so many bytes, for answers that nothing holds back."""
        return max(_GROUP_WINDOW_MIN, self._fitting(bytes_free)) if self._frames else _WINDOW_MIN

    def _fitting(self, size: int) -> int:
        by_bytes = size * self._messages // self._bytes
        return min(by_bytes, FRAMES_MAX * self._messages // self._frames)

    def is_crowded(self, bytes_held: int) -> bool:
        """Whether most of what is asked for would have to be dropped."""
        return 4 * bytes_held >= 3 * self._bytes_max

    def admit_repair(
        self, receiver: StreamReceiver[Any], frame: Frame, *, bytes_held: int, now_ns: int
    ) -> bool:
        """Whether a repair fits; later frames of its stream are evicted for it.

        What can be delivered at once always fits. What does not is asked for again.
        """
        if bytes_held < self._bytes_max or frame.sequence <= receiver.expected:
            return True
        free = self._bytes_max - bytes_held + receiver.bytes_held
        stop, size = frame.sequence + frame.count, len(frame.data)
        return receiver.evict_beyond(stop, size, now_ns=now_ns, bytes_max=free)
