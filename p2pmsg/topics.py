"""Names of topics."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from p2pmsg import wire
from p2pmsg.errors import ConfigError, MessageError

V = TypeVar("V")


class ByTopic(Generic[V]):
    """Something for each topic, given by topic, or by prefix followed by `*`.

    Args:
        field: what it is called in errors.
        entries: what there is. Of several that fit a topic, the topic itself goes first, then the
            longest prefix.
        otherwise: what there is for a topic that none fits.
        limit: what the keys are, for errors.

    Raises:
        ConfigError: a key is neither a topic nor a prefix.

    """

    __slots__ = ("_otherwise", "_prefixes", "_topics")

    def __init__(self, field: str, entries: Mapping[str, V], otherwise: V, limit: str) -> None:
        for topic in entries:
            if not isinstance(topic, str) or not topic:
                raise ConfigError(field, limit, topic)
        self._otherwise = otherwise
        self._topics = {name: one for name, one in entries.items() if name[-1] != "*"}
        prefixes = [(name[:-1], one) for name, one in entries.items() if name[-1] == "*"]
        self._prefixes = sorted(prefixes, key=lambda entry: -len(entry[0]))

    def of(self, topic: str) -> V:
        """Return what there is for a topic."""
        if topic in self._topics:
            return self._topics[topic]
        fitting = (one for prefix, one in self._prefixes if topic.startswith(prefix))
        return next(fitting, self._otherwise)


def matches(topic: str, patterns: Sequence[str]) -> bool:
    """Whether `topic` is one of `patterns`, each a topic or a prefix with a `*` after it."""
    return any(
        topic.startswith(pattern[:-1]) if pattern.endswith("*") else topic == pattern
        for pattern in patterns
    )


def overlaps(pattern: str, patterns: Sequence[str]) -> bool:
    """Whether a topic may fit `pattern` and one of `patterns`: topics, or prefixes and `*`."""
    return any(_overlap(pattern, one) for one in patterns)


def _overlap(a: str, b: str) -> bool:
    if a.endswith("*") and b.endswith("*"):
        return a[:-1].startswith(b[:-1]) or b[:-1].startswith(a[:-1])
    if a.endswith("*"):
        a, b = b, a
    return a.startswith(b[:-1]) if b.endswith("*") else a == b


def check_topic(topic: Any) -> bytes:
    """Return the topic as it goes over the wire, or raise `MessageError`."""
    if type(topic) is not str:
        raise MessageError("topic", f"must be a str, not {topic!r}")
    try:
        encoded = topic.encode()
    except UnicodeEncodeError as error:
        raise MessageError("topic", f"must be UTF-8, not {topic!r}: {error.reason}") from None
    if not 0 < len(encoded) <= wire.TOPIC_BYTES_MAX:
        limit = wire.TOPIC_BYTES_MAX
        raise MessageError("topic", f"must have 1 to {limit} bytes, not {len(encoded)}")
    if b"\0" in encoded:
        raise MessageError("topic", f"must not contain a zero byte: {topic!r}")
    if encoded.endswith(b"*"):
        raise MessageError("topic", f"must not end in '*', which means a prefix: {topic!r}")
    return encoded
