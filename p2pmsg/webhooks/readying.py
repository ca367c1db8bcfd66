"""From an event to what `publish` is called with; and whether that will take it."""

from collections.abc import Callable
from typing import Any, Final

from p2pmsg.config import PublisherConfig
from p2pmsg.errors import MessageError, MessageTooLargeError
from p2pmsg.http.asgi import RejectedError
from p2pmsg.toolkit import check_message, check_topic
from p2pmsg.webhooks.events import Hook

TYPE: Final = "{type}"
Topic = str | Callable[[Hook], str]
_GROWTH: Final = 3
_HEADERS_BYTES: Final = 2**18
"""For a key and headers out of the request's headers, which have 64 KiB."""


def message_bytes_of(body_bytes: int) -> int:
    """Return the `message_bytes_max` with which a publisher takes what such a body becomes.

    An item of a JSON list, `0.1,`, takes 9 bytes, and each byte of text that is no UTF-8 takes 3.
    """
    return min(_GROWTH * body_bytes + _HEADERS_BYTES, 2**31 - 1)


def readied(event: Hook, topic: Topic, key: Callable[[Hook], str | None]) -> dict[str, Any]:
    """Return what `publish` is called with for an event, by name.

    Args:
        event: the event.
        topic: a topic in which `{type}` stands for the event's type, or a function.
        key: returns a message's key.

    Raises:
        RejectedError: the topic is none, which is the request's fault.
        Others: as the functions raise.

    """
    name = topic(event) if callable(topic) else topic.replace(TYPE, event.type or "unknown")
    if not isinstance(name, str):
        raise TypeError(f"topic= returned no str, but {name!r}")
    try:
        check_topic(name)
    except MessageError as error:
        raise RejectedError(400, "topic", str(error)) from error
    found = key(event)
    if found is not None and not isinstance(found, str):
        raise TypeError(f"key= returned no str and not None, but {found!r}")
    headers = {
        "webhook-id": event.id,
        "webhook-type": event.type,
        "source": str(event.attributes.get("source", "")),
    }
    given = {name: text for name, text in headers.items() if text}
    return {
        "topic": name, "value": event.value, "key": found, "timestamp_ns": event.timestamp_ns,
        "headers": given or None,
    }  # fmt: skip


def check_readied(ready: dict[str, Any], config: PublisherConfig | None) -> None:
    """Raise `MessageError` where `publish` would, and where it is close to the limit.

    Args:
        ready: what it is to be called with.
        config: the publisher's; None: not known.

    """
    others = {name: ready[name] for name in ("key", "timestamp_ns", "headers")}
    size = check_message(ready["value"], **others)
    if config is not None and size > config.message_bytes_max:
        raise MessageTooLargeError("message", size, config.message_bytes_max)
