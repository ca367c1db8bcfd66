"""Where a publisher's streams stand: makes the bodies of its answers, ECHO and HEADS.

Making them takes some 3 µs a stream, and the askers may be many, or hostile. So the answer to
the same question is used again for a while, each asker has a budget, and all together have one.
Who gets no answer asks again, ever more rarely. An asker that compares the heads with what it has
received asks for an answer of its own (`Probe.newer`).
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Final

from p2pmsg import control, wire
from p2pmsg.publisher.access import Access
from p2pmsg.publisher.served import ServedSession
from p2pmsg.wire import Frame, Kind
from recovery.budget import TokenBucket

CACHED_HEADS_MIN: Final = 64
"""An answer with fewer heads is made each time."""
CACHE_NS_PER_HEAD: Final = 10_000
"""How long an answer is used again: three times as long as making it takes."""
_CACHED_MAX: Final = 8
_CACHED_PATTERNS_MAX: Final = 16
HEADS_PER_S: Final = 200_000
"""What all askers may have made, in heads and patterns: half of one processor."""
ASKER_HEADS_PER_S: Final = HEADS_PER_S // 2
"""What one of them may: it leaves as much for the others."""
HEADS_AT_ONCE: Final = 1_000_000
"""The same after a pause: 15 times the heads of a publisher that has all topics it may have."""
ALL_AT_ONCE: Final = 250_000
"""What all of them may have at once: more keeps messages waiting for seconds."""
_SEARCH_COST: Final = 20
"""What a head counts for where a time is looked for: a frame is decoded, perhaps read from disk."""
_ASKERS_MAX: Final = 4096

_Question = tuple[int, str, bool, str, int, bool, tuple[str, ...]]


class HeadsMaker:
    """Makes the bodies of ECHO and HEADS; part of `RequestHandler`.

    Attributes:
        throttled: questions that were not answered, because their asker, or all, had used up their
            budget.
        access: what those who ask may have; None: everything.

    """

    def __init__(self) -> None:
        self._indexes: dict[int, TopicIndex] = {}
        self._budgets: OrderedDict[bytes, TokenBucket] = OrderedDict()
        self._cached: OrderedDict[_Question, tuple[int, list[bytes]]] = OrderedDict()
        self.throttled = 0
        self.access: Access | None = None
        self._all = TokenBucket(HEADS_PER_S, ALL_AT_ONCE)

    def forget_session(self, session: int) -> None:
        """Forget a session that is served no more."""
        self._indexes.pop(session, None)

    def bodies(
        self,
        served: ServedSession,
        requester: bytes,
        frame: Frame,
        probe: control.Probe | None,
        *,
        now_ns: int,
    ) -> list[bytes] | None:
        """Return the bodies, a page each, of an ECHO or HEADS; None: they are not made.

        A HEADS_REQUEST without `probe` is about all topics.
        """
        is_echo = frame.kind == Kind.PROBE
        budget = self._budget(requester)
        patterns = ["*"] if probe is None else probe.topics
        if not budget.try_take(1 + len(patterns), now_ns):
            self.throttled += 1
            return None
        newer = probe is not None and probe.newer
        access, owner = self.access, ""
        denied: list[str] = []
        if access is not None:
            if is_echo:  # the data path carries what is covered as a whole, and nothing of others
                denied = access.denied(requester, patterns)
                refused = set(denied)
                patterns = [one for one in patterns if one not in refused]
                if len(denied) > control.DENIED_MAX:
                    denied = ["*"]
            owner = self._owner(access, requester, patterns)
        question: _Question | None = None
        if len(patterns) + len(denied) <= _CACHED_PATTERNS_MAX:
            kind, position = ("", 0) if probe is None else (probe.start, probe.position)
            question = served.session, owner, is_echo, kind, position, served.closing, (
                *patterns, *(("", *denied) if denied else ())
            )  # fmt: skip
            until_ns, bodies = self._cached.get(question, (0, []))
            if now_ns < until_ns and not newer:
                return bodies
        if self._all.available(now_ns) < 1:
            self.throttled += 1
            return None
        topics = self._index_of(served).matching(patterns)
        is_search = probe is not None and probe.start == "time"
        if access is not None:
            if owner and not is_echo:
                topics = [topic for topic in topics if access.may(requester, topic)]
            is_search = is_search or access.is_limited(requester)
            if is_echo:
                access.join(served, requester, topics)
        cost = len(topics) * (_SEARCH_COST if is_search else 1)
        budget.take(cost, now_ns)
        self._all.take(1 + len(patterns) + cost, now_ns)
        bodies = self._pages(
            served, topics, probe, requester, denied, is_echo=is_echo, now_ns=now_ns
        )
        if question is not None and len(topics) >= CACHED_HEADS_MIN and not owner:
            self._cached[question] = now_ns + len(topics) * CACHE_NS_PER_HEAD, bodies
            self._cached.move_to_end(question)
            while len(self._cached) > _CACHED_MAX:
                self._cached.popitem(last=False)
        return bodies

    def _index_of(self, served: ServedSession) -> "TopicIndex":
        index = self._indexes.get(served.session)
        if index is None:
            index = self._indexes[served.session] = TopicIndex(served.streams)
        return index

    def _owner(self, access: Access, requester: bytes, patterns: list[str]) -> str:
        """Return whose answer it is; "" where it is that of all who may ask for these patterns."""
        if access.is_limited(requester) or access.denied(requester, patterns):
            return access.user_of(requester) or "nobody"
        return ""

    def _budget(self, requester: bytes) -> TokenBucket:
        budget = self._budgets.get(requester)
        if budget is None:
            budget = self._budgets[requester] = TokenBucket(ASKER_HEADS_PER_S, HEADS_AT_ONCE)
            while len(self._budgets) > _ASKERS_MAX:
                self._budgets.popitem(last=False)
        self._budgets.move_to_end(requester)
        return budget

    def _pages(
        self,
        served: ServedSession,
        topics: list[str],
        probe: control.Probe | None,
        requester: bytes,
        denied: list[str],
        *,
        is_echo: bool,
        now_ns: int,
    ) -> list[bytes]:
        access = self.access
        is_limited = access is not None and access.is_limited(requester)
        heads: list[control.Head] = []
        for topic in topics:
            earliest, following = served.head(topic)
            if access is not None and is_limited:
                limit = access.limit(served, requester, topic, now_ns=now_ns)
                earliest = max(earliest, min(limit, following))
            start = 0 if probe is None else _start(served, topic, probe, earliest, following)
            if is_echo:
                earliest = served.answered_from(topic)
            began = served.streams[topic].began if is_echo else None
            heads.append(control.Head(topic, earliest, following, start, began))
        floor = served.floor if is_echo else 0
        page = control.Heads(
            served.name, heads, floor, incarnation=served.incarnation, denied=denied
        )
        pages = control.pages_of(page)
        return [wire.encoder.encode(page) for page in pages]


def _start(
    served: ServedSession, topic: str, probe: control.Probe, earliest: int, following: int
) -> int:
    """Return where an asker is to begin."""
    if probe.start == "earliest":
        return earliest
    if probe.start == "sequence":
        return max(0, probe.position)
    if probe.start != "time":
        return following
    # What was lost right before may have been of that time, and is to be reported.
    return served.with_lost_before(topic, _at_time(served, topic, probe.position, following))


def _at_time(served: ServedSession, topic: str, time_ns: int, following: int) -> int:
    """Return the first sequence of what is kept from a time on."""
    kept = served.first_at(topic, time_ns)
    if kept is None:
        return following
    timestamps = wire.decode_columns(Frame(bytes(kept.frame)))[1]
    for index, timestamp in enumerate(timestamps or ()):
        if timestamp >= time_ns:
            return kept.start + index
    return kept.start if timestamps is None else kept.stop


class TopicIndex:
    """The topics of a session, in order where that is needed.

    Args:
        topics: a container whose keys are the topics; topics may be added to it, not removed.

    """

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = topics
        self._ordered: list[str] = []

    def matching(self, patterns: Iterable[str]) -> list[str]:
        """Return the topics that patterns mean: each a topic, or a prefix with a `*` after it.

        It takes as long as there are patterns and topics found, and not their product: prefixes
        that another one covers are left out. Most of the topics come in the order of the container.
        """
        prefixes: list[str] = []
        found: dict[str, None] = {}
        for pattern in patterns:
            if pattern == "*":
                return list(self._topics)
            if pattern.endswith("*"):
                prefixes.append(pattern[:-1])
            elif pattern in self._topics:
                found[pattern] = None
        if prefixes:
            self._add_prefixes(prefixes, found)
        if 4 * len(found) > len(self._topics):
            return [topic for topic in list(self._topics) if topic in found]
        return list(found)

    def _add_prefixes(self, prefixes: list[str], found: dict[str, None]) -> None:
        if len(self._ordered) != len(self._topics):
            self._ordered = sorted(self._topics)
        ordered = self._ordered
        prefixes.sort()
        former: str | None = None
        for prefix in prefixes:
            if former is not None and prefix.startswith(former):
                continue
            former = prefix
            at = bisect_left(ordered, prefix)
            while at < len(ordered) and ordered[at].startswith(prefix):
                found[ordered[at]] = None
                at += 1
