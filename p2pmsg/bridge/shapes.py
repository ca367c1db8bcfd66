"""From a message of parts to topic and value, and back."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from p2pmsg import codec
from p2pmsg.errors import MessageError
from p2pmsg.toolkit import check_topic

Parts = bytes | list[bytes]
SEPARATOR: Final = b" "
"""What ends a topic that is a prefix."""
_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "json": codec.json_decode,
    "msgpack": codec.decode,
}
_ENCODERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "json": codec.json_encode,
    "msgpack": codec.encode,
}


class Reader:
    """Makes topics and values of messages.

    Args:
        topic: of messages that have none.
        topic_at: where a topic is: `part`, `prefix` or `none`.
        topics: what is wanted: topics, and prefixes that end in `*`; None: all.
        codec_name: `bytes`, `json` or `msgpack`.

    Attributes:
        without_topic: messages in which no topic was found; they got `topic`, and are whole.
        undecoded: messages, or parts of one, that are not what `codec_name` says; they stay bytes.

    """

    def __init__(
        self, topic: str, topic_at: str, topics: Sequence[str] | None, codec_name: str
    ) -> None:
        self._topic = topic
        self._topic_at = topic_at
        self._decode = _DECODERS.get(codec_name)
        names = None if topics is None or "*" in topics else topics
        self._exact = None if names is None else {name for name in names if name[-1] != "*"}
        self._prefixes = tuple(name[:-1] for name in names or () if name[-1] == "*")
        self.without_topic = self.undecoded = 0

    def prefixes(self) -> tuple[bytes, ...]:
        """Return what a SUB socket subscribes to."""
        if self._exact is None or self._topic_at == "none":
            return (b"",)
        return tuple(name.encode() for name in (*sorted(self._exact), *self._prefixes))

    def group(self, messages: list[Parts]) -> dict[str, list[Any]]:
        """Return values by topic, as they came; those of topics that are not wanted are left out.

        A message of several parts, apart from its topic, is a list of bytes.
        """
        if self._topic_at == "none":
            return {self._topic: list(messages)} if messages else {}
        found: dict[str, list[Any]] = {}
        for parts in messages:
            topic, value = self._split(parts)
            if self._exact is None or topic in self._exact or topic.startswith(self._prefixes):
                group = found.get(topic)
                if group is None:
                    group = found[topic] = []
                group.append(value)
        return found

    def decode(self, values: list[Any]) -> list[Any]:
        """Return values as the codec reads them."""
        if self._decode is None:
            return values
        return [
            [self._decoded(part) for part in value] if type(value) is list else self._decoded(value)
            for value in values
        ]

    def _decoded(self, data: bytes) -> Any:
        assert self._decode is not None
        try:
            return self._decode(data)
        except (codec.CodecError, ValueError, RecursionError, OverflowError):
            self.undecoded += 1
            return data

    def _split(self, parts: Parts) -> tuple[str, Any]:
        is_list = type(parts) is list
        if self._topic_at == "part":
            if is_list:
                topic = _topic_of(parts[0])
                if topic is not None:
                    return topic, parts[1] if len(parts) == 2 else parts[1:]
        else:
            first: bytes = parts[0] if is_list else parts  # type: ignore[assignment]
            name, ended, rest = first.partition(SEPARATOR)
            topic = _topic_of(name) if ended else None
            if topic is not None:
                return topic, [rest, *parts[1:]] if is_list else rest
        self.without_topic += 1
        return self._topic, parts


@lru_cache(maxsize=65_536)
def _topic_of(name: bytes) -> str | None:
    """Return the topic of these bytes; None where they are none."""
    try:
        topic = name.decode()
        check_topic(topic)
    except (UnicodeDecodeError, MessageError):
        return None
    return topic


class Writer:
    """Makes messages of topics and values.

    Args:
        topic_at: as for `Reader`.
        codec_name: `bytes`: bytes, text and lists of them go as they are, and other values are
            refused. `json`, `msgpack`: every value is one part.
        one_part: whether a message cannot have several.

    """

    def __init__(self, topic_at: str, codec_name: str, *, one_part: bool = False) -> None:
        self._one_part = one_part
        self._topic_at = topic_at
        self._encode = _ENCODERS.get(codec_name)
        self._name = codec_name

    def parts(self, topic: str, value: Any) -> list[bytes]:
        """Return a message; `ValueError` where the value does not go into one."""
        if self._encode is None:
            parts = _plain(value)
        else:
            try:
                parts = [self._encode(value)]
            except (codec.CodecError, TypeError, ValueError, RecursionError) as error:
                raise ValueError(f"its value is not {self._name}: {error}") from error
        if self._one_part and len(parts) > 1:
            raise ValueError(f"its value has {len(parts)} parts, and a message here one")
        if self._topic_at == "part":
            return [topic.encode(), *parts]
        if self._topic_at == "prefix":
            name = topic.encode()
            if SEPARATOR in name:
                raise ValueError("its topic has a space, and would be read as another")
            return [name + SEPARATOR + parts[0], *parts[1:]]
        return parts


def _plain(value: Any) -> list[bytes]:
    if type(value) is bytes:
        return [value]
    if type(value) is str:
        return [value.encode()]
    if type(value) is list and value and all(type(part) in (bytes, str) for part in value):
        return [part if type(part) is bytes else part.encode() for part in value]
    kind = type(value).__name__
    raise ValueError(f"its value is neither bytes, text nor a list of them but {kind}; see codec")
