"""What to do about missing messages, by topic."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from p2pmsg.errors import ConfigError
from p2pmsg.start import Start, parse_start
from p2pmsg.topics import ByTopic

MODES = ("wait", "raise", "skip", "latest")
_LIMIT = '"wait", "raise", "skip", "latest" or a callable'


class GapPolicy:
    """One policy for all topics, or one for each pattern of topics.

    Args:
        on_gap: a policy, or policies by topic or by prefix followed by `*`. Of several that fit,
            the topic itself goes first, then the longest prefix; without any, `wait`.

    Raises:
        ConfigError: it is no policy.

    Attributes:
        any_skips, any_conflates: whether a policy is `skip`, or `latest`.
        callables: those of the policies that are callables.

    """

    def __init__(self, on_gap: Any) -> None:
        by_topic = dict(on_gap) if isinstance(on_gap, Mapping) else {"*": on_gap}
        limit = "policies by topic, or prefix with a '*'"
        self._policies: ByTopic[Any] = ByTopic("on_gap", by_topic, "wait", limit)
        for policy in by_topic.values():
            if not callable(policy) and policy not in MODES:
                raise ConfigError("on_gap", _LIMIT, policy)
        self.any_conflates = any(policy == "latest" for policy in by_topic.values())
        self.callables = [policy for policy in by_topic.values() if callable(policy)]
        self.any_skips = any(policy == "skip" for policy in by_topic.values())

    def of(self, topic: str) -> Any:
        """Return the policy for a topic."""
        return self._policies.of(topic)

    def skips(self, topic: str) -> bool:
        """Whether what is missing of a topic is not waited for."""
        return bool(self.of(topic) == "skip")

    def check_start(self, start: str | int | datetime, *, has_cursor: bool) -> Start:
        """Return where a subscriber begins; `ConfigError` where that does not go with `skip`.

        What came before is a gap, and skipping is not to wait for gaps.
        """
        first = parse_start(start)
        if self.any_skips and (first.kind != "latest" or has_cursor):
            raise ConfigError("start", '"latest", without a cursor, where on_gap is "skip"', start)
        return first

    def conflates(self, topic: str) -> bool:
        """Whether only the newest value of each key matters."""
        return bool(self.of(topic) == "latest")
