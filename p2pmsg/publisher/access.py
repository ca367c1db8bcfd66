"""What those who ask may have: which topics, and how much history.

A request comes over a connection, and a connection has one user, whose key it was made with. What
is decided here is decided for each request, and again when what was asked for is sent.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple, Protocol

from p2pmsg.publisher.served import ServedSession

REQUESTERS_MAX: Final = 65_536
"""Requesters whose users are remembered; what one that is forgotten has asked for is not sent."""
FLOORS_MAX: Final = 1_000_000
"""Streams of all requesters of which it is remembered where they were joined."""
_LIMITS_MAX: Final = 65_536
LIMIT_NS: Final = 1_000_000_000
"""How long it counts where the history begins that a user may have: later it begins later."""


class AccessRules(Protocol):
    """Who may what, by user id; `p2pmsg.security.access_rules.AccessRules` is one."""

    def may(self, user: str, verb: str, topic: str) -> bool:
        """Return whether a user may, for a topic, or for all that a prefix and `*` mean."""

    def why(self, user: str, verb: str, topic: str) -> str:
        """Return why a user may not: which rule, in words that it may read."""

    def has_any(self, user: str, verb: str) -> bool:
        """Return whether a user has a right at all, for any topic."""

    def has_limit(self, user: str) -> bool:
        """Return whether a user may have only a part of the history of any topic."""

    def history_ns(self, user: str, topic: str) -> int | None:
        """Return how old what a user is sent again of a topic may be, in ns; None: all of it."""


class _Joined(NamedTuple):
    """Where a requester joined."""

    topic_count: int
    """How many topics the session had then: what began later is no history for it at all."""
    floors: dict[str, int]
    """By topic that it asked for, the sequence from which on all is live for it."""


class Access:
    """Decides for all sessions that are served; not thread-safe.

    Args:
        access_rules: who may what.

    Attributes:
        denied_requests: requests that were denied, as a whole or in part.

    """

    def __init__(self, access_rules: AccessRules) -> None:
        self._access_rules = access_rules
        self._users: OrderedDict[bytes, str] = OrderedDict()
        self._floors: OrderedDict[bytes, dict[int, _Joined]] = OrderedDict()
        self._floor_count = 0
        self._limits: OrderedDict[tuple[str, int, str], tuple[int, int]] = OrderedDict()
        self._wall_offset_ns = 0
        self.denied_requests = 0

    def note(self, requester: bytes, user: str, *, now_ns: int, wall_ns: int) -> bool:
        """Note who asks; False where the requester's id was another user's."""
        self._wall_offset_ns = wall_ns - now_ns
        former = self._users.get(requester, user)
        self._users[requester] = user
        self._users.move_to_end(requester)
        if len(self._users) > REQUESTERS_MAX:
            self._users.popitem(last=False)
        if former != user:
            self._forget_floors(requester)
        return former == user

    def user_of(self, requester: bytes) -> str:
        """Return the user of a requester; "" where it is not known."""
        return self._users.get(requester, "")

    def may(self, requester: bytes, topic: str) -> bool:
        """Whether a requester may have a topic, or all that a pattern means."""
        return self._access_rules.may(self.user_of(requester), "subscribe", topic)

    def has_any(self, requester: bytes) -> bool:
        """Whether a requester may have anything at all."""
        return self._access_rules.has_any(self.user_of(requester), "subscribe")

    def denied(self, requester: bytes, patterns: Iterable[str]) -> list[str]:
        """Return those patterns, once each, of which a requester may not have everything."""
        return [pattern for pattern in dict.fromkeys(patterns) if not self.may(requester, pattern)]

    def why(self, requester: bytes, topic: str) -> str:
        """Return why a requester may not have a topic, for itself."""
        return self._access_rules.why(self.user_of(requester), "subscribe", topic)

    def is_limited(self, requester: bytes) -> bool:
        """Whether a requester may have only a part of the history of any topic."""
        return self._access_rules.has_limit(self.user_of(requester))

    def join(self, served: ServedSession, requester: bytes, topics: Iterable[str]) -> None:
        """Remember where a requester joined: what comes from now on is no history for it.

        Of a topic that it has asked for before, that stays where it is.
        """
        if not self.is_limited(requester):
            return
        sessions = self._floors.setdefault(requester, {})
        joined = sessions.get(served.session)
        if joined is None:
            joined = sessions[served.session] = _Joined(len(served.streams), {})
            self._floor_count += 1
        floors = joined.floors
        before = len(floors)
        for topic in topics:
            stream = served.streams.get(topic)
            if topic not in floors and stream is not None and stream.number < joined.topic_count:
                floors[topic] = served.head(topic)[1]
        self._floor_count += len(floors) - before
        while self._floor_count > FLOORS_MAX and len(self._floors) > 1:
            self._forget_floors(next(iter(self._floors)))

    def _forget_floors(self, requester: bytes) -> None:
        for joined in self._floors.pop(requester, {}).values():
            self._floor_count -= len(joined.floors) + 1

    def forget(self, requester: bytes) -> None:
        """Forget a requester that has gone."""
        self._users.pop(requester, None)
        self._forget_floors(requester)

    def revoke(self, users: Collection[str]) -> list[bytes]:
        """Forget those whose keys were revoked; return which requesters they were."""
        gone = [requester for requester, user in self._users.items() if user in users]
        for requester in gone:
            self.forget(requester)
        return gone

    def limit(self, served: ServedSession, requester: bytes, topic: str, *, now_ns: int) -> int:
        """Return the sequence before which a requester may have nothing of a topic.

        How old a message is its timestamp says. Since a requester joined, all is live and no
        history, so that what it then misses is repaired however old it is.
        """
        user = self.user_of(requester)
        history_ns = self._access_rules.history_ns(user, topic)
        if history_ns is None:
            return 0
        key = user, served.session, topic
        until_ns, limit = self._limits.get(key, (now_ns, 0))
        if until_ns <= now_ns:
            oldest_ns = now_ns + self._wall_offset_ns - history_ns
            kept = served.first_at(topic, oldest_ns) if history_ns else None
            limit = served.head(topic)[1] if kept is None else kept.start
            self._limits[key] = now_ns + LIMIT_NS, limit
            self._limits.move_to_end(key)
            if len(self._limits) > _LIMITS_MAX:
                self._limits.popitem(last=False)
        joined = self._floors.get(requester, {}).get(served.session)
        stream = served.streams.get(topic)
        if joined is None or stream is None:
            return limit
        if stream.number >= joined.topic_count:
            return 0
        return min(limit, joined.floors.get(topic, limit))
