"""Control frames for the data path, apart from the messages.

::

    answers   echoes of probes: may overtake messages; at most `ANSWERS_MAX`, asked for again
    notices   heartbeats, closings: never overtake messages, or their heads would look like gaps

The thread in `publish` never sends them, so it never waits for them. What has no space stays here.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from recovery import StallGuard
from transports.base import DataSender

ANSWERS_MAX: Final = 4096
"""Answers that wait. Who is not answered asks again."""
ANSWERS_BYTES_MAX: Final = 16 * 2**20
"""Their bytes; one answer that is larger is taken where none waits."""
NOTICES_MAX: Final = 256
"""So many notices that wait keep further ones from being made."""
_AT_ONCE: Final = 64
"""Control frames that are sent before the publisher's lock is left."""
_WRITES_AT_ONCE: Final = 8192
"""The same, in queues that they are put into: 3 ms, where each goes to thousands of subscribers."""
_REFUSED_MAX: Final = 8
"""How many are tried one after the other where there is no space: others' askers may have some."""
ANSWER_AGE_NS: Final = 1_000_000_000
"""An answer that could not leave for so long is dropped: the asker has asked several times."""


class _Answer(NamedTuple):
    """What is left of an answer, and when it was made."""

    made_ns: int
    pages: deque[bytes]


class ControlQueue:
    """What waits to be sent; not thread-safe.

    Attributes:
        notices: heartbeats and closings, oldest first. One that says where a stream is now is
            made when it goes: messages that left before it count.
        dropped: answers that were dropped, for lack of space or because they were too old.
        sent: how many control frames were sent.
        connections: how many the data path has.

    """

    def __init__(self) -> None:
        self.notices: deque[bytes | Callable[[], bytes]] = deque()
        self.connections = 1
        self._answers: OrderedDict[int, _Answer] = OrderedDict()  # by probe
        self._bytes = 0
        self._answers_turn = False
        self.dropped = self.sent = 0

    def use_connections(self, count: int) -> None:
        """Take the data path to have so many connections from now on."""
        self.connections = count

    def __len__(self) -> int:
        return sum(len(one.pages) for one in self._answers.values()) + len(self.notices)

    def __bool__(self) -> bool:
        return bool(self._answers or self.notices)

    @property
    def is_full(self) -> bool:
        """Whether no further notices should be made."""
        return len(self.notices) >= NOTICES_MAX

    def is_waiting(self, probe: int) -> bool:
        """Whether an answer to `probe` waits."""
        return probe in self._answers

    def has_space(self) -> bool:
        """Whether a further answer would be taken."""
        return len(self._answers) < ANSWERS_MAX and self._bytes < ANSWERS_BYTES_MAX

    def answer(self, probe: int, pages: list[bytes], *, now_ns: int) -> bool:
        """Add the frames that answer a probe; False, and counted, where there is no space."""
        size = sum(map(len, pages))
        if not self.has_space() or (self._bytes and self._bytes + size > ANSWERS_BYTES_MAX):
            self.dropped += 1
            return False
        self._answers[probe] = _Answer(now_ns, deque(pages))
        self._bytes += size
        return True

    def reach(self, frame: bytes) -> int:
        """Return how many queues what `next` returned may be put into."""
        return 1 if self._is_answer(frame) else max(1, self.connections)

    def _is_answer(self, frame: bytes) -> bool:
        return bool(self._answers) and self._first().pages[0] is frame

    def _first(self) -> _Answer:
        return next(iter(self._answers.values()))

    def next(self, *, data_waits: bool) -> bytes | None:
        """Return what to send next, or None; then call `leave` or `put_back`.

        Answers and notices take turns; notices must not overtake messages that wait for space
        (`data_waits`).
        """
        notices = () if data_waits else self.notices
        if self._answers and (self._answers_turn or not notices):
            return self._first().pages[0]
        return _made(notices[0]) if notices else None

    def leave(self, frame: bytes) -> None:
        """Note that what `next` returned was sent."""
        self.sent += 1
        self._answers_turn = not self._is_answer(frame)
        if self._answers_turn:
            self.notices.popleft()
            return
        self._bytes -= len(self._first().pages.popleft())
        if not self._first().pages:
            self._answers.popitem(last=False)

    def put_back(self, frame: bytes, *, now_ns: int) -> None:
        """Note that what `next` returned found no space: the next answer gets its turn.

        An answer finds no space where its asker does not read; the others' askers may.
        """
        self._answers_turn = bool(self._answers) and not self._is_answer(frame)
        if not self._is_answer(frame):
            return
        probe, answer = self._answers.popitem(last=False)
        if now_ns - answer.made_ns > ANSWER_AGE_NS:
            self.dropped += 1
            self._bytes -= sum(map(len, answer.pages))
        else:
            self._answers[probe] = answer

    def give_back(self, frames: Collection[bytes]) -> None:
        """Take frames again that were to leave, and did not; they go first."""
        self.notices.extendleft(reversed(list(frames)))
        self.sent -= len(frames)

    def resync(self) -> None:
        """Count again what waits, after an exception at any line."""
        for probe in [each for each, one in self._answers.items() if not one.pages]:
            del self._answers[probe]
        self._bytes = sum(len(page) for one in self._answers.values() for page in one.pages)


def _made(notice: bytes | Callable[[], bytes]) -> bytes:
    return notice if isinstance(notice, bytes) else notice()


def send_some(
    queue: ControlQueue, sender: DataSender, guard: StallGuard, *, data_waits: bool, now_ns: int
) -> None:
    """Send control frames that there is space for; it never waits.

    What had no space for as long as `guard` allows is shed, for any subscriber, so that one that
    never reads keeps no other from joining. `data_waits` is as for `ControlQueue.next`.
    """
    refused, writes = 0, _WRITES_AT_ONCE
    for _ in range(_AT_ONCE):
        if writes <= 0:
            return
        frame = queue.next(data_waits=data_waits)
        if frame is None:
            return
        writes -= queue.reach(frame)
        if sender.send(frame):
            guard.succeeded(now_ns=now_ns)
            queue.leave(frame)
            continue
        refused += 1
        if refused <= _REFUSED_MAX:
            queue.put_back(frame, now_ns=now_ns)
        elif guard.blocked(now_ns=now_ns) > 0:
            return
        else:
            sender.send_shedding(frame)
            queue.leave(frame)
