"""What to do about missing messages, by topic."""

from collections.abc import Mapping
from typing import Any

from p2pmsg.errors import ConfigError

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

    """

    def __init__(self, on_gap: Any) -> None:
        by_topic = dict(on_gap) if isinstance(on_gap, Mapping) else {"*": on_gap}
        for topic, policy in by_topic.items():
            if not isinstance(topic, str) or not topic:
                raise ConfigError("on_gap", "policies by topic, or prefix with a '*'", topic)
            if not callable(policy) and policy not in MODES:
                raise ConfigError("on_gap", _LIMIT, policy)
        self._topics = {name: policy for name, policy in by_topic.items() if name[-1] != "*"}
        prefixes = [(name[:-1], policy) for name, policy in by_topic.items() if name[-1] == "*"]
        self._prefixes = sorted(prefixes, key=lambda entry: -len(entry[0]))
        self.any_conflates = any(policy == "latest" for policy in by_topic.values())
        self.any_skips = any(policy == "skip" for policy in by_topic.values())

    def of(self, topic: str) -> Any:
        """Return the policy for a topic."""
        if topic in self._topics:
            return self._topics[topic]
        return next((one for prefix, one in self._prefixes if topic.startswith(prefix)), "wait")

    def skips(self, topic: str) -> bool:
        """Whether what is missing of a topic is not waited for."""
        return bool(self.of(topic) == "skip")

    def conflates(self, topic: str) -> bool:
        """Whether only the newest value of each key matters."""
        return bool(self.of(topic) == "latest")
