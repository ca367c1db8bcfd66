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

    def keep(self, is_needed: Callable[[T], bool]) -> int:
        """Forget what was not taken and is not needed; return how many items that were."""
        before = len(self)
        for key, line in [*self._waiting.items()]:
            self._waiting[key] = deque(item for item in line if is_needed(item))
        ready, self._ready = self._ready, deque()
        for key, item in ready:
            if is_needed(item):
                self._ready.append((key, item))
            elif key is not _NO_KEY and (line := self._waiting[key]):
                self._ready.append((key, line.popleft()))
            else:
                self._waiting.pop(key, None)
        self._blocked = sum(map(len, self._waiting.values()))
        return before - len(self)


@dataclass(slots=True, eq=False)
class Entry:
    """A message that was read.

    Attributes:
        message: the message.
        number: its place in the order in which messages were read.
        is_done: whether its handler has ended.

    """

    message: Message
    number: int
    is_done: bool = False


@dataclass(slots=True, eq=False)
class _Stream:
    """Messages of a stream that cannot be committed yet.

    Attributes:
        entries: in order.
        begun: the number of the last one whose handler was called, or 0.
        left: the number of the first one that will not be done, or None.

    """

    entries: deque[Entry]
    begun: int = 0
    left: int | None = None


class InOrder:
    """Finds how far each stream can be committed: up to the first message that is not done.

    Attributes:
        due: the last message to commit, by stream, since `due` was last emptied.
        held: how many messages were read and cannot be committed yet.

    """

    def __init__(self, on_due: Callable[[], Any]) -> None:
        self._streams: dict[tuple[int, str], _Stream] = {}
        self._on_due = on_due
        self._number = 0
        self.due: dict[tuple[int, str], Message] = {}
        self.held = 0

    def add(self, message: Message) -> Entry:
        """Note that a message was read; those of a stream come in order."""
        self._number += 1
        entry = Entry(message, self._number)
        stream = message.session, message.topic
        if (found := self._streams.get(stream)) is None:
            found = self._streams[stream] = _Stream(deque())
        found.entries.append(entry)
        self.held += 1
        return entry

    def begin(self, entry: Entry) -> None:
        """Note that its handler is called."""
        stream = self._stream_of(entry)
        stream.begun = max(stream.begun, entry.number)

    def done(self, entry: Entry) -> None:
        """Note that its handler has ended."""
        entry.is_done = True
        entries = self._stream_of(entry).entries
        last = None
        while entries and entries[0].is_done:
            last = entries.popleft().message
            self.held -= 1
        name = entry.message.session, entry.message.topic
        if not entries:
            del self._streams[name]
        if last is not None:
            self.due[name] = last
            self._on_due()

    def leave(self, entry: Entry) -> None:
        """Note that it will not be done, so nothing after it can be committed."""
        stream = self._stream_of(entry)
        if stream.left is None or entry.number < stream.left:
            stream.left = entry.number

    def is_needed(self, entry: Entry) -> bool:
        """Whether commits of later messages, which have begun or are done, wait for this one."""
        stream = self._stream_of(entry)
        return entry.number < stream.begun and (stream.left is None or entry.number < stream.left)

    def _stream_of(self, entry: Entry) -> _Stream:
        return self._streams[entry.message.session, entry.message.topic]
