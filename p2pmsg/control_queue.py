"""Control frames for the data path, apart from the messages.

::

    answers   echoes of probes: may overtake messages; at most `ANSWERS_MAX`, asked for again
    notices   heartbeats, farewells: never overtake messages, or their heads would look like gaps

The thread in `publish` never sends them, so it never waits for them. What has no room stays here.
"""

from collections import deque
from collections.abc import Collection
from typing import Final

from recovery import StallGuard
from transports.base import DataSender

ANSWERS_MAX: Final = 4096
"""Frames of answers that wait. Who is not answered asks again."""
ANSWERS_BYTES_MAX: Final = 16 * 2**20
"""Their bytes; one answer that is larger is taken where none waits."""
NOTICES_MAX: Final = 256
"""So many notices that wait keep further ones from being made."""
_AT_ONCE: Final = 64
"""Control frames that are sent before the publisher's lock is left."""
_REFUSED_MAX: Final = 8
"""How many are tried one after the other where there is no room: others' askers may have some."""
ANSWER_AGE_NS: Final = 1_000_000_000
"""An answer that could not leave for so long is dropped: the asker has asked several times."""


class ControlQueue:
    """What waits to be sent; not thread-safe.

    Attributes:
        notices: heartbeats and farewells, oldest first.
        dropped: answers that were dropped, for want of room or because they were too old.
        sent: how many control frames were sent.

    """

    def __init__(self) -> None:
        self.notices: deque[bytes] = deque()
        self._answers: deque[tuple[int, int, bytes]] = deque()
        self._pages: dict[int, int] = {}
        self._bytes = 0
        self._answers_turn = False
        self.dropped = self.sent = 0

    def __len__(self) -> int:
        return len(self._answers) + len(self.notices)

    @property
    def is_full(self) -> bool:
        """Whether no further notices should be made."""
        return len(self.notices) >= NOTICES_MAX

    def is_waiting(self, probe: int) -> bool:
        """Whether an answer to `probe` waits."""
        return probe in self._pages

    def has_room(self) -> bool:
        """Whether a further answer would be taken."""
        return len(self._answers) < ANSWERS_MAX and self._bytes < ANSWERS_BYTES_MAX

    def answer(self, probe: int, pages: list[bytes], *, now_ns: int) -> bool:
        """Add the frames that answer a probe; False, and counted, where there is no room."""
        size = sum(map(len, pages))
        if not self.has_room() or (self._answers and self._bytes + size > ANSWERS_BYTES_MAX):
            self.dropped += 1
            return False
        self._answers.extend((probe, now_ns, page) for page in pages)
        self._pages[probe] = len(pages)
        self._bytes += size
        return True

    def next(self, *, data_waits: bool) -> bytes | None:
        """Return what to send next, or None; then call `leave` or `put_back`.

        Answers and notices take turns.

        Args:
            data_waits: whether messages wait for room, which notices must not overtake.

        """
        notices = () if data_waits else self.notices
        if self._answers and (self._answers_turn or not notices):
            return self._answers[0][2]
        return notices[0] if notices else None

    def leave(self, frame: bytes) -> None:
        """Note that what `next` returned was sent."""
        self.sent += 1
        if self._answers and self._answers[0][2] is frame:
            self._forget_first()
            self._answers_turn = False
        else:
            self.notices.popleft()
            self._answers_turn = True

    def put_back(self, frame: bytes, *, now_ns: int) -> None:
        """Note that what `next` returned found no room: the next answer gets its turn.

        An answer finds no room where its asker does not read; the others' askers may.
        """
        if not self._answers or self._answers[0][2] is not frame:
            self._answers_turn = bool(self._answers)
            return
        probe, made_ns, _ = self._answers[0]
        if now_ns - made_ns > ANSWER_AGE_NS:
            self.dropped += 1
            while self._answers and self._answers[0][0] == probe:
                self._forget_first()
            return
        for _ in range(self._pages[probe]):  # its pages stay together
            self._answers.rotate(-1)
        self._answers_turn = False

    def give_back(self, frames: Collection[bytes]) -> None:
        """Take frames again that were to leave, and did not; they go first."""
        self.notices.extendleft(reversed(list(frames)))
        self.sent -= len(frames)

    def drain(self) -> list[bytes]:
        """Take out everything."""
        frames = [page for _, _, page in self._answers] + list(self.notices)
        self._answers.clear()
        self._pages.clear()
        self.notices.clear()
        self._bytes = 0
        return frames

    def _forget_first(self) -> None:
        probe, _, page = self._answers.popleft()
        self._bytes -= len(page)
        self._pages[probe] -= 1
        if not self._pages[probe]:
            del self._pages[probe]


def send_some(
    queue: ControlQueue, sender: DataSender, guard: StallGuard, *, data_waits: bool, now_ns: int
) -> None:
    """Send control frames that there is room for; it never waits.

    What has had no room for `stall_ms`, whoever it is for, is shed, so that one subscriber who
    never reads keeps no other from joining.

    Args:
        queue: what waits.
        sender: where to.
        guard: how long full queues may hold control frames up.
        data_waits: as for `ControlQueue.next`.
        now_ns: monotonic time.

    """
    refused = 0
    for _ in range(_AT_ONCE):
        frame = queue.next(data_waits=data_waits)
        if frame is None:
            return
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
