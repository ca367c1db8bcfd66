"""Decides what is sent to an endpoint next, and what may be committed: no clock, no sockets.

A message is *acknowledged* when the subscriber need not bring it again: it was delivered, or is on
this machine's disk, as a dead letter or *parked* (it failed, and waits for its next attempt while
others go on). Per stream, the cursor may move up to the first message that is not acknowledged.

The shell calls `take` until it returns nothing, and sends what that returns as one request; then it
calls `succeeded` or `failed`. After each call it does what `effects` has.
"""

import heapq
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Any, Final, Literal

from p2pmsg.webhooks.endpoint import Endpoint, EndpointStats

_S: Final = 1_000_000_000
_AWAY: Final = (None, 408, 425, 429, 502, 503, 504)
"""Answers (None: no answer) that are about the endpoint rather than the message."""
_GONE: Final = 410
_HELD: Final = (429, 503)
"""Answers whose `Retry-After` asks for a pause, which uses up no attempt."""
_PAUSE_S: Final = 1.0
"""The shortest pause that a `Retry-After` asks for."""
_PAUSE_MAX_S: Final = 86_400.0
"""The longest one: an endpoint that asks for more is asked again after a day."""
_RELEASE_NS: Final = 2 * _S
"""Within how long, after an endpoint came back, all that failed meanwhile is tried again."""
_JITTER: Final = 0.1
"""How much longer or shorter a wait is: senders that failed together do not come back together."""
_FAILURES: Final = 5
"""After how many failures in a row only probes are sent. A message that is refused counts once."""
_FAILURES_OF_STREAM: Final = 2
"""The same where a stream keeps its order: there a retry is a probe."""
_PROBE_S: Final = 5.0
"""How long until the first probe, where `retry` has no wait; it doubles each time."""
_PROBE_MAX_S: Final = 300.0
"""The longest time between two: an endpoint that comes back is found within five minutes."""
_WINDOW_BYTES: Final = 64 * 2**20
_PARKED_BYTES: Final = 64 * 2**20


class State(Enum):
    """Where a message is."""

    WAITING = auto()
    IN_FLIGHT = auto()
    DYING = auto()
    """It is to become a dead letter, and is not on the disk yet."""
    DONE = auto()


@dataclass(slots=True, eq=False)
class Item:
    """A message on its way to an endpoint.

    Attributes:
        id: the same for each attempt, and after a restart.
        stream: (session, topic).
        key: its key, for `order="key"`.
        size: bytes that it takes.
        content: what the shell sends, and
        message: where it came from; neither is looked at.
        attempts: how many failed.
        due_ns: when it may be sent.
        reason: why the last attempt failed.

    """

    id: str
    stream: Hashable
    key: str | None
    size: int
    content: Any
    message: Any = None
    number: int = 0
    group: Hashable = None
    attempts: int = 0
    due_ns: int = 0
    reason: str = ""
    state: State = State.WAITING
    is_parked: bool = False
    is_parking: bool = False
    is_acknowledged: bool = False
    is_alone: bool = False
    is_early: bool = False
    is_probe: bool = False
    was_away: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed.

    Attributes:
        reason: for people.
        status: the answer's status; None without an answer.
        retry_after: what the answer asked for, in seconds.
        is_final: whether trying again is of no use.

    """

    reason: str
    status: int | None = None
    retry_after: float | None = None
    is_final: bool = False


EffectKind = Literal["park", "unpark", "dead", "stopped", "held", "opened", "closed"]


@dataclass(frozen=True, slots=True)
class Effect:
    """What the shell has to do, or to report.

    `park` and `dead` bring the item to the disk, and are answered by `persisted`; `unpark` removes
    it there. `stopped`, `held`, `opened` and `closed` are about the endpoint.
    """

    kind: EffectKind
    item: Item | None = None
    reason: str = ""


class Delivery:
    """The state of the delivery to one endpoint.

    Args:
        endpoint: where to, and how.
        rng: for the jitter.
        batch_max: messages of one request. Default 1.
        window: messages in memory that are not delivered; the publisher's log has the others.
        parked_max: messages that failed and wait on this machine's disk, so that others go on.

    Attributes:
        stats: what happened, and how it stands.
        effects: what the shell has to do; it takes them from the left.
        held: messages in memory that are not parked, and `held_bytes` their size.
        parked_bytes: the size of the messages that are parked.

    """

    def __init__(
        self, endpoint: Endpoint, rng: Random, *, batch_max: int = 1, window: int = 1000,
        parked_max: int = 10_000,
    ) -> None:  # fmt: skip
        self._endpoint = endpoint
        self._retry = tuple(endpoint.retry)
        self._batch_max, self._window, self._parked_max = batch_max, window, parked_max
        self._rng = rng
        self.stats = EndpointStats(name=endpoint.name)
        self.effects: deque[Effect] = deque()
        self.held = self.held_bytes = self.parked_bytes = 0
        self._number = 0
        self._groups: dict[Hashable, deque[Item]] = {}
        self._heap: list[tuple[int, int, Item]] = []
        self._unacknowledged: dict[Hashable, deque[Item]] = {}
        self._committable: dict[Hashable, Item] = {}
        self._streak = 0
        self._hold_ns = self._probe_ns = 0
        self._cooldown_s = 0.0
        self._is_probing = False

    @property
    def wants(self) -> int:
        """How many more messages may be offered; 0 while what is here is enough."""
        if self.stats.stopped is not None or self.held_bytes >= _WINDOW_BYTES:
            return 0
        return max(0, self._window - self.held)

    def offer(self, item: Item, now_ns: int) -> None:
        """Take a message, the next one of its stream."""
        self.stats.received += 1
        self._unacknowledged.setdefault(item.stream, deque()).append(item)
        self.held += 1
        self.held_bytes += item.size
        self._enqueue(item, now_ns)
        group = self._groups.get(item.group)
        if group is not None and (group[0].is_parked or group[0].is_parking):
            self._park(item)

    def restore(self, item: Item, now_ns: int, attempts: int = 0) -> None:
        """Take a message whose letter is on the disk: one that was parked, or is sent again."""
        item.is_parked = item.is_acknowledged = True
        item.attempts = min(attempts, len(self._retry) - 1)
        self.stats.parked += 1
        self.parked_bytes += item.size
        self._enqueue(item, now_ns)

    def take(self, now_ns: int) -> list[Item]:
        """Return the messages of the next request, or none where there is nothing to do now."""
        due_ns = self.next_deadline_ns()
        if due_ns is None or now_ns < due_ns:
            return []
        self._is_probing = self.stats.is_open
        items = self._take_items(now_ns, 1 if self.stats.is_open else self._batch_max)
        for item in items:
            item.state = State.IN_FLIGHT
            item.is_early = item.due_ns > now_ns
            item.is_probe = self.stats.is_open
        self.stats.in_flight += 1
        self.stats.requests += 1
        return items

    def succeeded(self, items: Sequence[Item], now_ns: int, status: int = 200) -> None:
        """Note that a request was answered with a status from 200 to 299."""
        self._answered(status)
        self._streak = 0
        self._is_probing = False
        self.stats.delivered += len(items)
        for item in items:
            if item.is_parked:
                self.effects.append(Effect("unpark", item))
            self._finish(item, now_ns)
        if self.stats.is_open:
            self.stats.is_open = False
            self.effects.append(Effect("closed"))
            self._release(now_ns)

    def failed(self, items: Sequence[Item], now_ns: int, failure: Failure) -> None:
        """Note that a request failed: each of its messages waits, or becomes a dead letter."""
        self._answered(failure.status)
        self.stats.failures += 1
        self.stats.reason = failure.reason
        was_probe = items[0].is_probe
        self._is_probing &= not was_probe
        is_away = failure.status in _AWAY and not failure.is_final
        if failure.status == _GONE:
            self._stop(items, now_ns, failure.reason)
            return
        is_held = failure.retry_after is not None and failure.status in _HELD
        if failure.retry_after is not None:
            self._hold(now_ns, failure.retry_after)
        for item in items:
            item.reason = failure.reason
            item.is_alone = item.is_alone or len(items) > 1
            item.was_away = is_away
            self._wait(item, now_ns, failure.is_final, is_held)
        is_new = is_away or any(item.attempts == 1 for item in items)
        self._streak += is_new and not (failure.is_final or is_held)
        self._open_if_due(now_ns, was_probe)
        for item in items:
            if item.state is State.WAITING:
                self._park_group(item)
        for item in reversed(items):
            self._requeue(item)

    def persisted(self, effect: Effect, now_ns: int) -> None:
        """Note that what `park` or `dead` asked for is on the disk."""
        item = effect.item
        assert item is not None
        if effect.kind == "dead":
            self.stats.dead += 1
            self._finish(item, now_ns)
            return
        item.is_parking = False
        if item.state is State.DONE:  # it was delivered meanwhile
            self.effects.append(Effect("unpark", item))
            return
        item.is_parked = True
        self.held -= 1
        self.held_bytes -= item.size
        self._acknowledge(item)

    def resume(self, now_ns: int) -> None:
        """Send again to an endpoint that was stopped, asked for a pause, or counts as down."""
        self.stats.stopped = None
        self.stats.is_open = self._is_probing = False
        self._hold_ns = self._streak = 0
        self._release(now_ns)

    def committable(self) -> list[Item]:
        """Return the last message before one that is not acknowledged, by stream that moved."""
        found = [*self._committable.values()]
        self._committable.clear()
        return found

    def next_deadline_ns(self) -> int | None:
        """Return when to call `take` again at the latest; None: only after another call."""
        stats = self.stats
        is_busy = stats.in_flight >= self._endpoint.concurrency or self._is_probing
        if stats.stopped is not None or is_busy or not self._heap:
            return None
        due_ns = self._probe_ns if stats.is_open else self._heap[0][0]
        return max(due_ns, self._hold_ns)

    def held_ns(self, now_ns: int) -> int:
        """Return for how long nothing is sent yet, since a `Retry-After` asked for that."""
        return max(0, self._hold_ns - now_ns)

    @property
    def has_space(self) -> bool:
        """Whether more may be parked."""
        return self.stats.parked < self._parked_max

    @property
    def waiting(self) -> int:
        """How many messages are here, delivered ones excepted."""
        return self.held + self.stats.parked

    def _enqueue(self, item: Item, now_ns: int) -> None:
        self._number += 1
        item.number = self._number
        item.due_ns = now_ns
        if self._endpoint.order == "stream":
            item.group = item.stream
        elif self._endpoint.order == "key" and item.key is not None:
            item.group = (item.stream, item.key)
        if item.group is not None:
            self._groups.setdefault(item.group, deque()).append(item)
        self._requeue(item)

    def _push(self, item: Item) -> None:
        heapq.heappush(self._heap, (item.due_ns, item.number, item))

    def _take_items(self, now_ns: int, count_max: int) -> list[Item]:
        first = heapq.heappop(self._heap)[2]
        items = [first]
        if first.is_alone or count_max == 1:
            return items
        if first.group is not None:
            for item in [*self._groups[first.group]][1:count_max]:
                if item.is_alone or item.state is not State.WAITING:
                    break
                items.append(item)
            return items
        while self._heap and len(items) < count_max and self._heap[0][0] <= now_ns:
            if self._heap[0][2].is_alone or self._heap[0][2].group is not None:
                break
            items.append(heapq.heappop(self._heap)[2])
        return items

    def _answered(self, status: int | None) -> None:
        self.stats.in_flight -= 1
        if status is not None:
            self.stats.statuses[status] = self.stats.statuses.get(status, 0) + 1

    def _finish(self, item: Item, now_ns: int) -> None:
        """Take an item out of its group, whose next one may go."""
        item.state = State.DONE
        if item.is_parked or item.is_parking:
            self.stats.parked -= 1
            self.parked_bytes -= item.size
        if not item.is_parked:
            self.held -= 1
            self.held_bytes -= item.size
        self._acknowledge(item)
        group = self._groups.get(item.group)
        if group is None:
            return
        was_first = group[0] is item
        group.remove(item)
        if not group:
            del self._groups[item.group]
        elif was_first:
            group[0].due_ns = max(now_ns, group[0].due_ns)
            self._requeue(group[0])

    def _acknowledge(self, item: Item) -> None:
        if item.is_acknowledged:
            return
        item.is_acknowledged = True
        stream = self._unacknowledged[item.stream]
        last = None
        while stream and stream[0].is_acknowledged:
            last = stream.popleft()
        if last is not None:
            self._committable[item.stream] = last
        if not stream:
            del self._unacknowledged[item.stream]

    def _wait(self, item: Item, now_ns: int, is_final: bool, is_held: bool) -> None:
        item.state = State.WAITING
        if is_held:
            item.due_ns = self._hold_ns
        elif is_final or not item.is_early:  # else a probe: its own attempt is yet to come
            item.attempts += 1
            if is_final or item.attempts >= len(self._retry):
                item.state = State.DYING
                self.effects.append(Effect("dead", item, item.reason))
            else:
                item.due_ns = now_ns + self._jittered(self._retry[item.attempts])

    def _requeue(self, item: Item) -> None:
        """Put an item that waits where `take` finds it, if it is the first of its group."""
        is_first = item.group is None or self._groups[item.group][0] is item
        if item.state is State.WAITING and is_first:
            self._push(item)

    def _jittered(self, seconds: float) -> int:
        return int(seconds * (1 + _JITTER * (2 * self._rng.random() - 1)) * _S)

    def _hold(self, now_ns: int, seconds: float) -> None:
        """Send nothing for so long; reported where a pause begins, or is longer by a second."""
        until_ns = now_ns + int(min(max(_PAUSE_S, seconds), _PAUSE_MAX_S) * _S)
        is_longer = self._hold_ns <= now_ns or until_ns - self._hold_ns >= int(_PAUSE_S * _S)
        self._hold_ns = max(self._hold_ns, until_ns)
        if is_longer:
            self.effects.append(Effect("held", None, self.stats.reason))

    def _open_if_due(self, now_ns: int, was_probe: bool) -> None:
        if self.stats.is_open and was_probe:
            self._cooldown_s = min(2 * self._cooldown_s, _PROBE_MAX_S)
            self._probe_ns = now_ns + self._jittered(self._cooldown_s)
        few = self._endpoint.order == "stream"
        if self.stats.is_open or self._streak < (_FAILURES_OF_STREAM if few else _FAILURES):
            return
        self.stats.is_open = True
        self._is_probing = False
        first_s = next((wait for wait in self._retry[1:] if wait), _PROBE_S)
        self._cooldown_s = min(first_s, _PROBE_MAX_S)
        self._probe_ns = now_ns + self._jittered(self._cooldown_s)
        self.effects.append(Effect("opened", None, self.stats.reason))

    def _park_group(self, item: Item) -> None:
        """Park what failed and, in its group, what waits for it: others are to go on."""
        if self.stats.is_open or self._endpoint.order == "stream":
            return  # the endpoint is away, or must wait: the publisher's log keeps the rest
        for each in self._groups[item.group] if item.group is not None else (item,):
            if not self._park(each):
                return

    def _park(self, item: Item) -> bool:
        """Ask for an item to be parked; False where no more may be."""
        if item.is_parked or item.is_parking:
            return True
        is_full = self.stats.parked >= self._parked_max
        if is_full or self.parked_bytes + item.size > _PARKED_BYTES or self.stats.is_open:
            return False
        item.is_parking = True
        self.stats.parked += 1
        self.parked_bytes += item.size
        self.effects.append(Effect("park", item))
        return True

    def _stop(self, items: Sequence[Item], now_ns: int, reason: str) -> None:
        if self.stats.stopped is None:
            self.stats.stopped = reason
            self.effects.append(Effect("stopped", None, reason))
        for item in reversed(items):
            item.state, item.due_ns, item.reason = State.WAITING, now_ns, reason
            self._requeue(item)

    def _release(self, now_ns: int) -> None:
        """Have all that failed because the endpoint was away tried again soon."""
        former, self._heap = self._heap, []
        for _, _, item in former:
            if item.was_away:
                soon_ns = now_ns + int(self._rng.random() * _RELEASE_NS)
                item.due_ns = min(item.due_ns, soon_ns)
            self._push(item)
