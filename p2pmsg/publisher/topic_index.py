"""Finding the topics that patterns mean, without comparing each pattern with each topic."""

from bisect import bisect_left
from collections.abc import Collection, Iterable


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
