"""Names of topics."""

from typing import Any

from p2pmsg import wire
from p2pmsg.errors import MessageError


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
