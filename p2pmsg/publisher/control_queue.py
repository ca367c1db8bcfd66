"""Control frames for the data path, apart from the messages.

::

    answers   echoes of probes: may overtake messages; at most `ANSWERS_MAX`, asked for again
    notices   heartbeats, closings: never overtake messages, or their heads would look like gaps

The thread in `publish` never sends them, so it never waits for them. What has no space stays here.

A probe and the subscription to its echo come over two connections. Where the data path reports
subscriptions, an answer waits for its own: sent before, it would reach nobody, and be asked for
again.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Final

from p2pmsg import wire
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
_WRITES_AT_ONCE: Final = 8192
"""The same, in queues that they are put into: 3 ms, where each goes to thousands of subscribers."""
_REFUSED_MAX: Final = 8
"""How many are tried one after the other where there is no space: others' askers may have some."""
ANSWER_AGE_NS: Final = 1_000_000_000
"""An answer that could not leave for so long is dropped: the asker has asked several times."""
HELD_NS: Final = 1_000_000_000
"""How long an answer waits for the subscription to it. Every subscriber of this library has sent it
before the probe; it may wait in a busy publisher's sockets."""
SUBSCRIBED_MAX: Final = 8192
"""Subscriptions to echoes that are remembered, for probes that are repeated."""
_ECHO: Final = wire.control_prefix(wire.Kind.ECHO)
_ECHO_OF_ONE: Final = len(wire.control_prefix(wire.Kind.ECHO, 0))


class ControlQueue:
    """What waits to be sent; not thread-safe.

    Attributes:
        notices: heartbeats and closings, oldest first. One that says where a stream is now is
            made when it goes: messages that left before it count.
        dropped: answers that were dropped, for lack of space or because they were too old.
        sent: how many control frames were sent.
        awaits_subscriptions: whether `on_subscription` is called for those on the data path.
        connections: how many the data path has.

    """

    def __init__(self) -> None:
        self.notices: deque[bytes | Callable[[], bytes]] = deque()
        self.awaits_subscriptions = False
        self.connections = 1
        # By probe, whether the subscription to its echo stands; False: it has been given up.
        self._subscribed: OrderedDict[int, bool] = OrderedDict()
        self._held: OrderedDict[int, tuple[int, list[bytes]]] = OrderedDict()
        self._held_pages = 0
        self._answers: deque[tuple[int, int, bytes]] = deque()
        self._pages: dict[int, int] = {}
        self._bytes = 0
        self._answers_turn = False
        self.dropped = self.sent = 0

    def use_connections(self, count: int) -> None:
        """Take the data path to have so many connections from now on."""
        self.connections = count

    def await_subscriptions(self) -> None:
        """Let answers wait for the subscriptions to them: `on_subscription` is called."""
        self.awaits_subscriptions = True

    def __len__(self) -> int:
        return len(self._answers) + self._held_pages + len(self.notices)

    @property
    def is_full(self) -> bool:
        """Whether no further notices should be made."""
        return len(self.notices) >= NOTICES_MAX

    def is_waiting(self, probe: int) -> bool:
        """Whether an answer to `probe` waits."""
        return probe in self._pages

    def has_space(self) -> bool:
        """Whether a further answer would be taken."""
        waiting = len(self._answers) + self._held_pages
        return waiting < ANSWERS_MAX and self._bytes < ANSWERS_BYTES_MAX

    def answer(self, probe: int, pages: list[bytes], *, now_ns: int) -> bool:
        """Add the frames that answer a probe; False, and counted, where there is no space.

        An impatient asker's repeated probe may come when it has its answer, and listens no more:
        then there is nothing to add.
        """
        if self._subscribed.get(probe) is False:
            return True
        size = sum(map(len, pages))
        if not self.has_space() or (self._bytes and self._bytes + size > ANSWERS_BYTES_MAX):
            self.dropped += 1
            return False
        self._pages[probe] = len(pages)
        self._bytes += size
        if self.awaits_subscriptions and not self._subscribed.get(probe):
            self._held[probe] = now_ns, pages
            self._held_pages += len(pages)
        else:
            self._answers.extend((probe, now_ns, page) for page in pages)
        return True

    def on_subscription(self, note: bytes, *, now_ns: int) -> None:
        """Take what a data path reports: 1 or 0, and a prefix that is wanted from now on or not.

        Of a prefix that several want only the first and the last carry information.
        """
        prefix, is_wanted = note[1:], note[:1] == b"\1"
        if len(prefix) == _ECHO_OF_ONE and prefix.startswith(_ECHO):
            probe = int.from_bytes(prefix[-8:], "big")
            if not is_wanted:
                if probe in self._subscribed:
                    self._subscribed[probe] = False
                return
            self._subscribed[probe] = True
            while len(self._subscribed) > SUBSCRIBED_MAX:
                self._subscribed.popitem(last=False)
            if probe in self._held:
                self._release(probe, now_ns)

    def release(self, *, now_ns: int) -> None:
        """Let answers go that have waited long enough for a subscription."""
        while self._held:
            probe, (made_ns, _) = next(iter(self._held.items()))
            if now_ns - made_ns < HELD_NS:
                return
            self._release(probe, now_ns)

    def reach(self, frame: bytes) -> int:
        """Return how many queues what `next` returned may be put into."""
        is_answer = bool(self._answers) and self._answers[0][2] is frame
        return 1 if is_answer else max(1, self.connections)

    def _release(self, probe: int, now_ns: int) -> None:
        _, pages = self._held.pop(probe)
        self._held_pages -= len(pages)
        self._answers.extend((probe, now_ns, page) for page in pages)

    def next(self, *, data_waits: bool) -> bytes | None:
        """Return what to send next, or None; then call `leave` or `put_back`.

        Answers and notices take turns; notices must not overtake messages that wait for space
        (`data_waits`).
        """
        notices = () if data_waits else self.notices
        if self._answers and (self._answers_turn or not notices):
            return self._answers[0][2]
        return _made(notices[0]) if notices else None

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
        """Note that what `next` returned found no space: the next answer gets its turn.

        An answer finds no space where its asker does not read; the others' askers may.
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

    def resync(self) -> None:
        """Count again what waits, after an exception at any line."""
        held = [page for _, pages in self._held.values() for page in pages]
        self._held_pages = len(held)
        self._bytes = sum(map(len, held)) + sum(len(page) for _, _, page in self._answers)
        self._pages = Counter(probe for probe, _, _ in self._answers)
        self._pages.update({probe: len(pages) for probe, (_, pages) in self._held.items()})

    def drain(self) -> list[bytes]:
        """Take out everything."""
        for probe in list(self._held):
            self._release(probe, 0)
        frames = [page for _, _, page in self._answers] + list(map(_made, self.notices))
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
    queue.release(now_ns=now_ns)
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
