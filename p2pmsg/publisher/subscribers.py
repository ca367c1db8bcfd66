"""The subscribers that have confirmed that they receive, and those of them that fell silent."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from transports.own_log import own_log as _log
from transports.trouble import Rarely

SUBSCRIBERS_MAX: Final = 65_536
"""Subscribers that are counted; further ones are served all the same."""
FORGOTTEN_MAX: Final = 1024
"""Those who fell silent and are remembered; of others, the oldest first, there is only a count."""


class State(Enum):
    """What is known of a subscriber of a session."""

    JOINED = auto()
    """It receives, and has not said that it has everything."""
    COMPLETE = auto()
    """It has said that it has everything."""
    SILENT = auto()
    """It was not heard of for `subscriber_timeout`, and had not said that it has everything."""
    GONE = auto()
    """Nothing is known of it any more."""


class Event(Enum):
    """What happens to a subscriber."""

    LACKS = auto()
    """It reports that it is there, and does not have everything."""
    HAS_ALL = auto()
    """It reports that it has everything."""
    CLOSING = auto()
    """The session is closed: all are to say again that they have everything."""
    SILENCE = auto()
    LEAVE = auto()
    """It leaves, its key is revoked, or another one of its name has come for it."""


TRANSITIONS: Final = {
    State.GONE: {Event.LACKS: State.JOINED, Event.HAS_ALL: State.COMPLETE},
    State.JOINED: {
        Event.LACKS: State.JOINED, Event.HAS_ALL: State.COMPLETE, Event.CLOSING: State.JOINED,
        Event.SILENCE: State.SILENT, Event.LEAVE: State.GONE,
    },
    State.COMPLETE: {
        Event.LACKS: State.JOINED, Event.HAS_ALL: State.COMPLETE, Event.CLOSING: State.JOINED,
        Event.SILENCE: State.GONE, Event.LEAVE: State.GONE,
    },
    State.SILENT: {
        Event.LACKS: State.JOINED, Event.HAS_ALL: State.COMPLETE, Event.CLOSING: State.SILENT,
        Event.LEAVE: State.GONE,
    },
}  # fmt: skip
_PRESENT: Final = (State.JOINED, State.COMPLETE)


@dataclass(slots=True)
class KnownSubscriber:
    """A subscriber of one session."""

    requester: bytes
    name: str
    user: str
    last_heard_ns: int
    settles: bool = False
    """Whether it says that it has everything only when that is processed, or kept by a relay."""
    state: State = State.GONE


class Subscribers:
    """Who has confirmed that the data path works, by session and subscriber; not thread-safe.

    Args:
        timeout_ns: who was not heard of for so long is waited for no more.

    """

    def __init__(self, timeout_ns: int) -> None:
        self._timeout_ns = timeout_ns
        self._known: dict[tuple[int, int], KnownSubscriber] = {}
        self._silent: dict[tuple[int, int], KnownSubscriber] = {}
        self._others = 0
        self._rarely = Rarely()

    def get(self, session: int, subscriber: int) -> KnownSubscriber | None:
        """Return a subscriber that is there, or None."""
        return self._known.get((session, subscriber))

    def has_space(self, known: KnownSubscriber | None) -> bool:
        """Whether a report of `known`, or of one that is new, would be taken."""
        return known is not None or len(self._known) < SUBSCRIBERS_MAX

    def report(self, session: int, subscriber: int, said: KnownSubscriber, event: Event) -> bool:
        """Take what a subscriber says of itself; False where there are too many."""
        key = session, subscriber
        before = self._known.get(key)
        if before is None and len(self._known) >= SUBSCRIBERS_MAX:
            return False
        if before is not None:
            said.state = before.state
        elif self._silent:
            said.state = State.GONE if key not in self._silent else State.SILENT
            for one in [one for one, each in self._silent.items() if _is_same(said, each)]:
                self.on_event(one, Event.LEAVE)
        self._move(key, said, event)
        return True

    def on_event(self, key: tuple[int, int], event: Event) -> bool:
        """Change the state of a subscriber, by (session, id); False where it is not there."""
        known = self._known.get(key) or self._silent.get(key)
        if known is None:
            return False
        was_there = known.state in _PRESENT
        self._move(key, known, event)
        return was_there

    def _move(self, key: tuple[int, int], known: KnownSubscriber, event: Event) -> None:
        known.state = TRANSITIONS[known.state][event]
        self._silent.pop(key, None)
        if known.state in _PRESENT:
            self._known[key] = known
            return
        self._known.pop(key, None)
        if known.state is State.SILENT:
            self._silent[key] = known
            if len(self._silent) > FORGOTTEN_MAX:
                del self._silent[next(iter(self._silent))]
                self._others += 1

    def expire(self, has_streams: Callable[[int], bool], now_ns: int) -> list[int]:
        """Wait no more for those who were not heard of; returns who that is.

        Args:
            has_streams: whether a session has any: else nobody lacks anything.
            now_ns: the time.

        """
        late = [
            key for key, known in self._known.items()
            if now_ns - known.last_heard_ns > self._timeout_ns
        ]  # fmt: skip
        for key in late:
            known = self._known[key]
            self.on_event(key, Event.SILENCE if has_streams(key[0]) else Event.LEAVE)
            if known.state is State.SILENT and self._rarely.is_due():
                _log.warning(
                    "subscriber %s was not heard of for %g s, and is waited for no more; it had "
                    "not confirmed that it has everything. So forgotten, now: %d",
                    repr(known.name) if known.name else f"{key[1]:016x}", self._timeout_ns / 1e9,
                    sum(self.forgotten_names().values()),
                )  # fmt: skip
        return [subscriber for _, subscriber in late]

    def revoke(self, users: Collection[str]) -> list[int]:
        """Forget those whose keys were revoked; returns who that is."""
        gone = [key for key, known in self._known.items() if known.user in users]
        for key in gone:
            self.on_event(key, Event.LEAVE)
        return [subscriber for _, subscriber in gone]

    def begin_close(self) -> None:
        """Wait for every subscriber to say again that it has everything."""
        for key in list(self._known):
            self.on_event(key, Event.CLOSING)

    def forget_session(self, session: int) -> None:
        """Forget the subscribers of a session that is served no more."""
        for key in [key for key in (*self._known, *self._silent) if key[0] == session]:
            self.on_event(key, Event.LEAVE)

    def by_id(self) -> dict[int, KnownSubscriber]:
        """Return those who are there for any session, by their ids."""
        return {subscriber: known for (_, subscriber), known in self._known.items()}

    def incomplete(self) -> int:
        """Return how many have not said that they have everything, of those who are there."""
        lacking = {key[1] for key, one in self._known.items() if one.state is State.JOINED}
        return len(lacking)

    def undelivered(self) -> int:
        """Return how many have not said so, those who fell silent included."""
        return self.incomplete() + sum(self.forgotten_names().values())

    def settlers(self) -> int:
        """Return how many have said that all of it is processed, or kept by a relay."""
        return sum(one.state is State.COMPLETE and one.settles for one in self._known.values())

    def forgotten_names(self) -> dict[str, int]:
        """Return how many fell silent of each name; "": they have none, or are too many."""
        there, names = self.by_id(), dict[int, str]()
        for (_, subscriber), known in self._silent.items():
            if subscriber not in there:
                names[subscriber] = known.name
        found = Counter(names.values())
        if self._others:
            found[""] += self._others
        return dict(found)


def _is_same(said: KnownSubscriber, known: KnownSubscriber) -> bool:
    """Whether one that speaks is another process of the name of one that fell silent."""
    return bool(said.name) and said.name == known.name
