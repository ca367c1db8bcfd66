"""Which topics a subscriber asked for although no publisher that it has joined has them."""

from collections.abc import Iterable, Sequence
from typing import Final

WAIT_NS: Final = 5_000_000_000
"""How long after joining it is said: a publisher and its first message may start one by one."""
LOOK_NS: Final = 1_000_000_000
_NEVER_NS: Final = 2**63
_TOPICS_MAX: Final = 8
"""Topics that are named one by one; the others are counted."""
_PUBLISHERS_MAX: Final = 4
_COMPARED_MAX: Final = 1000
"""How many known topics are compared with a missing one: 1,000 take about 10 ms."""


class UnpublishedTopics:
    """Decides what to say of each exact topic, once; never of prefixes.

    Attributes:
        next_ns: when `look` has something to do.

    """

    def __init__(self, topics: Iterable[str]) -> None:
        self._missing = [topic for topic in dict.fromkeys(topics) if not topic.endswith("*")]
        self._joined_ns: int | None = None
        self.next_ns = 0 if self._missing else _NEVER_NS

    def look(self, known: set[str], publishers: Sequence[str], now_ns: int) -> list[str]:
        """Return what to say now.

        Args:
            known: the topics of which publishers have streams.
            publishers: the names of those that have been asked.
            now_ns: monotonic time.

        """
        self._missing = [topic for topic in self._missing if topic not in known]
        self.next_ns = now_ns + LOOK_NS if self._missing else _NEVER_NS
        if not publishers:
            self._joined_ns = None
        elif self._joined_ns is None:
            self._joined_ns = now_ns
        if self._joined_ns is None or now_ns - self._joined_ns < WAIT_NS:
            return []
        said = [_describe(topic, known, publishers) for topic in self._missing[:_TOPICS_MAX]]
        if len(self._missing) > _TOPICS_MAX:
            rest = len(self._missing) - _TOPICS_MAX
            said.append(f"nobody has published on {rest:,} other topics yet")
        self._missing, self.next_ns = [], _NEVER_NS
        return said


def _describe(topic: str, known: set[str], publishers: Sequence[str]) -> str:
    import difflib  # most programs never need it

    names = ", ".join(map(repr, publishers[:_PUBLISHERS_MAX]))
    if len(publishers) > _PUBLISHERS_MAX:
        names += f" and {len(publishers) - _PUBLISHERS_MAX:,} others"
    text = f"nobody has published on {topic!r} yet; asked for {WAIT_NS / 1e9:.0f} s: {names}"
    similar = difflib.get_close_matches(topic, sorted(known)[:_COMPARED_MAX])
    return f"{text}. Similar topics: {', '.join(map(repr, similar))}" if similar else text
