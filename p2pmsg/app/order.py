"""Which event is next: as many at once as there are tasks, those of one key one after the other."""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from p2pmsg.message import Message

T = TypeVar("T")
NO_KEY: Final = object()
WINDOW_MAX: Final = 10_000
"""So many messages may be done before an earlier one of their stream is, which holds up commits."""


class KeyQueue(Generic[T]):
    """Items that wait; of one key only the first can be taken until it is done.

    Without keys each item can be taken at once.

    Attributes:
        replaceable: how many items wait for their key and would be replaced by a newer one.

    """

    def __init__(self) -> None:
        self._ready: deque[tuple[Hashable, T]] = deque()
        self._waiting: dict[Hashable, OrderedDict[Hashable, T] | None] = {}
        self._blocked = 0
        self._number = 0
        self.replaceable = 0

    def __len__(self) -> int:
        return len(self._ready) + self._blocked

    def put(
        self, item: T, key: Hashable = NO_KEY, newest_of: tuple[Hashable, ...] | None = None
    ) -> T | None:
        """Add an item; with a key it waits until the earlier ones of that key are done.

        Of those that wait for their key with the same `newest_of` only the newest is kept. Return
        the one that was replaced, if any.
        """
        if key is NO_KEY:
            self._ready.append((key, item))
            return None
        if key not in self._waiting:
            self._waiting[key] = None
            self._ready.append((key, item))
            return None
        line = self._waiting[key]
        if line is None:
            line = self._waiting[key] = OrderedDict()
        if newest_of is None:
            self._number += 1
            line[self._number] = item
            self._blocked += 1
            return None
        replaced = line.pop(newest_of, None)
        line[newest_of] = item  # after all that came before
        self._blocked += replaced is None
        self.replaceable += replaced is None
        return replaced

    def take(self) -> tuple[Hashable, T] | None:
        """Return the next item and its key; None: none can be taken."""
        return self._ready.popleft() if self._ready else None

    def done(self, key: Hashable) -> None:
        """Note that an item of this key, which was taken, is done."""
        if key is not NO_KEY:
            self._next_of(key)

    def clear(self) -> int:
        """Forget what was not taken, when no more will be put; return how many items that were."""
        count = len(self)
        self._ready.clear()
        self._waiting = dict.fromkeys(self._waiting)
        self._blocked = self.replaceable = 0
        return count

    def _next_of(self, key: Hashable) -> None:
        """Have the next item of a key be taken, if one waits."""
        line = self._waiting[key]
        if line:
            self._ready.append((key, self._remove(line, next(iter(line)))))
        else:
            del self._waiting[key]

    def _remove(self, line: OrderedDict[Hashable, T], name: Hashable) -> T:
        self._blocked -= 1
        self.replaceable -= isinstance(name, tuple)  # else it is a number of ours
        return line.pop(name)


@dataclass(slots=True, eq=False)
class Entry:
    """A message that was read and cannot be committed yet, and whether it is done."""

    message: Message
    is_done: bool = False


class InOrder:
    """Finds how far each stream can be committed: up to the first message that is not done.

    Attributes:
        due: the last message to commit, by stream, since `due` was last emptied.
        held: how many messages were read and cannot be committed yet.

    """

    def __init__(self, on_due: Callable[[], Any]) -> None:
        self._streams: dict[tuple[int, str], deque[Entry]] = {}
        self._on_due = on_due
        self.due: dict[tuple[int, str], Message] = {}
        self.held = 0

    def add(self, message: Message) -> Entry:
        """Note that a message was read; those of a stream come in order."""
        entry = Entry(message)
        self._streams.setdefault((message.session, message.topic), deque()).append(entry)
        self.held += 1
        return entry

    def done(self, entry: Entry) -> None:
        """Note that its handler has ended, or that a newer message came in its place."""
        entry.is_done = True
        name = entry.message.session, entry.message.topic
        waiting = self._streams[name]
        if not waiting[0].is_done:
            return
        while waiting and waiting[0].is_done:
            self.due[name] = waiting.popleft().message
            self.held -= 1
        if not waiting:
            del self._streams[name]
        self._on_due()
