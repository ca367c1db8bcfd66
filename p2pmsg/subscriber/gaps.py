"""Schedules repair requests over all streams with gaps, and limits them to what fits.

::

    missing ──▶ due ──a turn is free──▶ asked ──answer──▶ due again, or nothing is missing
                 └────none──▶ waiting ────▲

A late joiner may miss something of ten thousand streams at once. Requests beyond what the queues to
the publisher hold would be dropped, and count as attempts.
"""

from collections.abc import Iterator
from typing import Any, Final

from p2pmsg.subscriber.sessions import Stream
from p2pmsg.wire import Frame
from recovery import DeadlineHeap, StreamReceiver
from recovery.receiver import FRAMES_MAX

TURNS_MAX: Final = 256
"""Streams with a request and no answer yet. It fills 10 ms of a round trip at 25,000 frames a
second, and is a quarter of the ranges that a publisher keeps for a requester."""
_WINDOW_MIN: Final = 1024
"""Messages after the first gap that are asked for, however little fits."""
_GROUP_WINDOW_MIN: Final = 16
"""The same in a multicast, where a repair that does not fit was sent to all for nothing."""


class GapScheduler:
    """Holds the streams that miss something, or whose beginning is not known yet.

    Every call that changes what a stream's receiver misses is followed by `note` or `discard`.
    The streams of a multicast take no turns: its back-off does that.

    Args:
        deadline_ns: after so long without any answer, what waits for its turn is given up.

    Attributes:
        bytes_held: bytes of frames that wait for what is missing before them.

    """

    def __init__(self, deadline_ns: int) -> None:
        self._deadline_ns = deadline_ns
        self._streams: dict[int, Stream] = {}
        self._bytes: dict[int, int] = {}
        self._due: DeadlineHeap[int] = DeadlineHeap()
        self._asked: set[int] = set()
        self._waiting: dict[int, int] = {}  # since when, the longest first
        self._answered_ns = 0
        self._quiet_until_ns = self._paused_until_ns = 0
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
        if key not in self._waiting:
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
        self._asked.discard(key)
        self._waiting.pop(key, None)
        return True

    def clear(self) -> None:
        """Forget all streams."""
        self._streams.clear()
        self._bytes.clear()
        self._noted.clear()
        self._due.clear()
        self._asked.clear()
        self._waiting.clear()
        self.bytes_held = 0

    def answering(self, came_ns: int) -> None:
        """Note that an answer comes, of whichever stream, that is not whole yet."""
        self._answered_ns = max(self._answered_ns, came_ns)

    def pass_on(self, stream: Stream) -> None:
        """End the turn of a stream of which nothing was to be asked for."""
        self._asked.discard(id(stream))

    def postpone(self, *, now_ns: int, delay_ns: int, stopped_ns: int | None = None) -> None:
        """Ask for nothing before `now_ns + delay_ns`, and give nothing up for that.

        Who has no space calls it at each look, without `stopped_ns`: that costs the same for many
        streams as for one, since each takes note of it when its turn comes.
        """
        self._quiet_until_ns = max(self._quiet_until_ns, now_ns + delay_ns)
        self._answered_ns = max(self._answered_ns, now_ns)
        if stopped_ns is None:
            self._pauses += 1
            self._paused_until_ns = self._quiet_until_ns
            return
        for key, stream in self._streams.items():
            if key in self._waiting:
                continue  # its time counts from the start of its turn
            self._on_pauses(key, stream)
            stream.receiver.nacks.postpone(now_ns=now_ns, delay_ns=delay_ns, stopped_ns=stopped_ns)
            self._set_due(key, stream.receiver.next_deadline_ns())

    def take_due(self, *, now_ns: int) -> list[Stream]:
        """Return the streams of which something is due and that have a turn."""
        found: list[Stream] = []
        while (key := self._due.pop_due(now_ns)) is not None:
            stream = self._streams[key]
            self._on_pauses(key, stream)
            if stream.peer.feedback is not None or stream.peer.gone or key in self._asked:
                found.append(stream)
            else:
                self._waiting[key] = now_ns
        while self._waiting and len(self._asked) < TURNS_MAX:
            key = next(iter(self._waiting))
            stream, since_ns = self._streams[key], self._waiting.pop(key)
            self._asked.add(key)
            self._noted[key] = self._pauses
            if since_ns < now_ns:
                stream.receiver.nacks.postpone(
                    now_ns=now_ns, delay_ns=0, stopped_ns=now_ns - since_ns
                )
            found.append(stream)
        if self._waiting and now_ns >= self._given_up_ns():
            self._answered_ns = now_ns
            for key in self._waiting:
                self._noted[key] = self._pauses
                found.append(self._streams[key])
            self._waiting.clear()
        return found

    def next_deadline_ns(self) -> int | None:
        """Return when `take_due` has something, or None."""
        if not self._streams:
            return None
        first = self._due.first()
        due_ns = None if first is None else max(first[0], self._paused_until_ns)
        if self._waiting:
            free = len(self._asked) < TURNS_MAX
            turn_ns = self._quiet_until_ns if free else self._given_up_ns()
            turn_ns = max(turn_ns, self._paused_until_ns)
            due_ns = turn_ns if due_ns is None else min(due_ns, turn_ns)
        return due_ns

    def _on_pauses(self, key: int, stream: Stream) -> None:
        """Let a stream follow the calls of `postpone` since it did so last."""
        if self._noted[key] != self._pauses:
            self._noted[key] = self._pauses
            stream.receiver.nacks.postpone(now_ns=self._paused_until_ns, delay_ns=0)

    def _given_up_ns(self) -> int:
        since_ns = next(iter(self._waiting.values()))
        return max(self._answered_ns, since_ns) + self._deadline_ns

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
