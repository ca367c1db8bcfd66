"""Which event is next: as many at once as there are tasks, those of one key one after the other."""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from p2pmsg.message import Message

T = TypeVar("T")
_NO_KEY: Final = object()
WINDOW_MAX: Final = 10_000
"""So many messages may be done before an earlier one of their stream is, which holds up commits."""


class KeyQueue(Generic[T]):
    """Items that wait; of one key only the first can be taken until it is done.

    Without keys each item can be taken at once.
    """

    def __init__(self) -> None:
        self._ready: deque[tuple[Hashable, T]] = deque()
        self._waiting: dict[Hashable, deque[T]] = {}
        self._blocked = 0

    def __len__(self) -> int:
        return len(self._ready) + self._blocked

    def put(self, item: T, key: Hashable = _NO_KEY) -> None:
        """Add an item; with a key it waits until the earlier ones of that key are done."""
        if key is _NO_KEY:
            self._ready.append((key, item))
        elif key in self._waiting:
            self._waiting[key].append(item)
            self._blocked += 1
        else:
            self._waiting[key] = deque()
            self._ready.append((key, item))

    def take(self) -> tuple[Hashable, T] | None:
        """Return the next item and its key; None: none can be taken."""
        return self._ready.popleft() if self._ready else None

    def done(self, key: Hashable) -> None:
        """Note that an item of this key, which was taken, is done."""
        if key is _NO_KEY:
            return
        line = self._waiting[key]
        if line:
            self._ready.append((key, line.popleft()))
            self._blocked -= 1
        else:
            del self._waiting[key]

    def clear(self) -> int:
        """Forget what was not taken; return how many items that were."""
        left = len(self)
        self._ready.clear()
        for line in self._waiting.values():
            line.clear()
        self._blocked = 0
        return left


@dataclass(slots=True, eq=False)
class Entry:
    """A message that was read.

    Attributes:
        message: the message.
        is_done: whether its handler has ended.

    """

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

    def begin(self, message: Message) -> Entry:
        """Note that a message was read; those of a stream come in order."""
        entry = Entry(message)
        stream = message.session, message.topic
        self._streams.setdefault(stream, deque()).append(entry)
        self.held += 1
        return entry

    def done(self, entry: Entry) -> None:
        """Note that its handler has ended."""
        entry.is_done = True
        stream = entry.message.session, entry.message.topic
        entries = self._streams[stream]
        last = None
        while entries and entries[0].is_done:
            last = entries.popleft().message
            self.held -= 1
        if not entries:
            del self._streams[stream]
        if last is not None:
            self.due[stream] = last
            self._on_due()
