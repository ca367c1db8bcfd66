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

    def keep(self, is_needed: Callable[[T], bool]) -> int:
        """Forget what was not taken and is not needed; return how many items that were."""
        before = len(self)
        for line in filter(None, self._waiting.values()):
            for name in [name for name, item in line.items() if not is_needed(item)]:
                self._remove(line, name)
        ready, self._ready = self._ready, deque()
        for key, item in ready:
            if is_needed(item):
                self._ready.append((key, item))
            elif key is not NO_KEY:
                self._next_of(key)
        return before - len(self)

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
    """A message that was read and is not done.

    Attributes:
        message: the message.
        number: its place in the order in which messages were read.
        last: what can be committed once it, and those before it, are done: itself, or a message
            after it that is done already.
        count: how many messages these are, itself included.
        before, after: its neighbours in the stream.

    """

    message: Message
    number: int
    last: Message
    before: "Entry | None"
    count: int = 1
    after: "Entry | None" = None


@dataclass(slots=True, eq=False)
class _Stream:
    """Messages of a stream that cannot be committed yet.

    Attributes:
        newest: the last entry.
        begun: the number of the last one whose handler was called, or 0.
        left: the number of the first one that will not be done, or None.

    """

    newest: Entry | None = None
    begun: int = 0
    left: int | None = None


class InOrder:
    """Finds how far each stream can be committed: up to the first message that is not done.

    Attributes:
        due: the last message to commit, by stream, since `due` was last emptied.
        held: how many messages were read and cannot be committed yet, without the replaced ones.

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
        stream = self._streams.setdefault((message.session, message.topic), _Stream())
        entry = Entry(message, self._number, message, stream.newest)
        if stream.newest is not None:
            stream.newest.after = entry
        stream.newest = entry
        self.held += 1
        return entry

    def begin(self, entry: Entry) -> None:
        """Note that its handler is called."""
        stream = self._stream_of(entry)
        stream.begun = max(stream.begun, entry.number)

    def done(self, entry: Entry) -> None:
        """Note that its handler has ended."""
        name = entry.message.session, entry.message.topic
        before, after = entry.before, entry.after
        if after is not None:
            after.before = before
        elif before is not None:
            self._streams[name].newest = before
        else:
            del self._streams[name]
        if before is not None:
            before.after, before.last = after, entry.last
            before.count += entry.count
        else:
            self.held -= entry.count
            self.due[name] = entry.last
            self._on_due()

    def replaced(self, entry: Entry) -> None:
        """Note that a newer message came in its place, so that it is done, and held no more."""
        self.held -= 1
        entry.count -= 1
        self.done(entry)

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
