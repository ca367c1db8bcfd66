"""What is in a request: CloudEvents 1.0, JSON or bytes; and what `publish` is called with."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote

from p2pmsg.config import PublisherConfig
from p2pmsg.errors import MessageError, MessageTooLargeError
from p2pmsg.http.asgi import RejectedError, json_of, kind_of, value_of
from p2pmsg.toolkit import check_message, check_topic
from p2pmsg.webhooks.signatures import Proof

_BATCH: Final = "application/cloudevents-batch+json"
_STRUCTURED: Final = "application/cloudevents+json"
_EVENTS_MAX: Final = 10_000
_NEEDED: Final = ("id", "source", "type", "specversion")


@dataclass(frozen=True, slots=True)
class Hook:
    """One event of a request, as it is to be published.

    Attributes:
        id: the request's, or a CloudEvent's source and id; empty where it has none.
        type: what kind of event it is; empty where that is not known.
        value: the data: parsed JSON, text, or bytes.
        path: the path of the request.
        headers: the request's, by lower-case names.
        attributes: of a CloudEvent; else empty.

    """

    id: str
    type: str
    value: Any
    path: str
    headers: Mapping[str, str]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seen_as(self) -> str:
        """By what it is taken once; empty if it has no id. No CloudEvent's begins with a space."""
        return self.id if self.attributes else self.id and f" {self.id}"

    @property
    def timestamp_ns(self) -> int | None:
        """When it happened, as a CloudEvent says; None: it does not."""
        text = self.attributes.get("time")
        try:
            moment = datetime.fromisoformat(str(text)) if text else None
            if moment is None or moment.tzinfo is None:
                return None
            return max(0, int(moment.timestamp() * 1_000_000) * 1000)
        except (ValueError, OverflowError):
            return None


def events_of(headers: Mapping[str, str], body: bytes, proof: Proof, path: str) -> list[Hook]:
    """Return the events of a request; raises `RejectedError`."""
    kind = kind_of(headers)
    if kind == _BATCH:
        batch = json_of(body)
        if not isinstance(batch, list) or len(batch) > _EVENTS_MAX:
            raise RejectedError(400, "body", f"no list of at most {_EVENTS_MAX} events")
        return [_event(each, path, headers) for each in batch]
    if kind == _STRUCTURED:
        return [_event(json_of(body), path, headers)]
    if "ce-specversion" in headers:
        attributes = {
            name[3:]: unquote(value) for name, value in headers.items() if name.startswith("ce-")
        }
        return [_cloud_event(attributes, value_of(headers, body, "replace"), path, headers)]
    value = value_of(headers, body, "replace")
    named = value.get("type") if isinstance(value, dict) else None
    return [Hook(proof.id, proof.type or (named if isinstance(named, str) else ""), value, path,
                 headers)]  # fmt: skip


def _event(found: Any, path: str, headers: Mapping[str, str]) -> Hook:
    if not isinstance(found, dict):
        raise RejectedError(400, "body", "an event is no JSON object")
    attributes = dict(found)
    value, coded = attributes.pop("data", None), attributes.pop("data_base64", None)
    if coded is not None:
        try:
            value = base64.b64decode(coded, validate=True)
        except (TypeError, ValueError):
            raise RejectedError(400, "body", "data_base64 is no base64") from None
    return _cloud_event(attributes, value, path, headers)


def _cloud_event(
    attributes: Mapping[str, Any], value: Any, path: str, headers: Mapping[str, str]
) -> Hook:
    for name in _NEEDED:
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            raise RejectedError(400, "body", f"the CloudEvent has no {name!r}")
    if attributes["specversion"] != "1.0":
        raise RejectedError(400, "body", "the CloudEvent is not of version 1.0")
    name = f"{_escaped(attributes['source'])} {_escaped(attributes['id'])}"
    return Hook(name, attributes["type"], value, path, headers, attributes)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace(" ", "%20")


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
