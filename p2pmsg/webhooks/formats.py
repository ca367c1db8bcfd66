"""What a message looks like as a request: Standard Webhooks, CloudEvents 1.0, or plain JSON."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args
from urllib.parse import quote

from p2pmsg.message import Message
from p2pmsg.toolkit import time_text, to_json

Format = Literal[
    "standard", "cloudevents", "cloudevents-structured", "cloudevents-batch", "json"
]  # fmt: skip
FORMATS: Final = get_args(Format)
_JSON: Final = "application/json"
_EXTENSION: Final = re.compile(r"[a-z0-9]{1,20}")
_TAKEN: Final = frozenset(
    ("specversion", "id", "source", "type", "datacontenttype", "dataschema", "subject", "time",
     "data", "data_base64", "sequence", "partitionkey")
)  # fmt: skip
_SAFE: Final = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')


@dataclass(frozen=True, slots=True)
class Request:
    """A message as it is sent.

    Attributes:
        headers: without those of the signature.
        body: what is signed and sent.

    """

    headers: dict[str, str]
    body: bytes


def message_id(session: int, topic: str, sequence: int) -> str:
    """Return the id of a message: always the same, and of no other message."""
    place = session.to_bytes(8, "big") + sequence.to_bytes(8, "big") + topic.encode()
    return f"msg_{hashlib.blake2b(place, digest_size=16).hexdigest()}"


def encode(message: Message, form: Format, hook_id: str) -> Request:
    """Return a message as a request in a format; one of a batch is as a structured one.

    Raises:
        ValueError, TypeError, RecursionError: the value has no such form.

    """
    if form == "json":
        return Request({"content-type": _JSON}, to_json(message.value).encode())
    if form == "standard":
        return Request({"content-type": _JSON}, to_json(_standard(message)).encode())
    attributes = _attributes(message, hook_id)
    if form == "cloudevents":
        return _binary(message, attributes)
    event = {**attributes, **_data(message.value)}
    return Request(
        {"content-type": "application/cloudevents+json; charset=utf-8"}, to_json(event).encode()
    )


def join(requests: Sequence[Request]) -> Request:
    """Return structured events as one batch."""
    body = b"[" + b",".join(each.body for each in requests) + b"]"
    return Request({"content-type": "application/cloudevents-batch+json; charset=utf-8"}, body)


def percent_encoded(text: str) -> str:
    """Return a CloudEvents attribute as it stands in a header."""
    return quote(text, safe=_SAFE)


def _standard(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": message.topic,
        "timestamp": time_text(message.timestamp_ns),
        "data": message.value,
    }
    if message.key is not None:
        found["key"] = message.key
    if message.headers:
        found["headers"] = message.headers
    return found


def _attributes(message: Message, hook_id: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: value if isinstance(value, bool | int) else str(value)
        for name, value in (message.headers or {}).items()
        if _EXTENSION.fullmatch(name) and name not in _TAKEN and value is not None
    }
    found |= {
        "specversion": "1.0",
        "id": hook_id,
        "source": f"/p2pmsg/{message.session:016x}",
        "type": message.topic,
        "time": time_text(message.timestamp_ns),
        "sequence": f"{message.sequence:020}",
    }
    if message.key is not None:
        found["partitionkey"] = message.key
    return found


def _binary(message: Message, attributes: dict[str, Any]) -> Request:
    headers = {
        f"ce-{name}": percent_encoded(json.dumps(value) if isinstance(value, bool) else str(value))
        for name, value in attributes.items()
    }
    if isinstance(message.value, bytes):
        headers["content-type"] = "application/octet-stream"
        return Request(headers, message.value)
    headers["content-type"] = _JSON
    return Request(headers, to_json(message.value).encode())


def _data(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {
            "datacontenttype": "application/octet-stream",
            "data_base64": base64.b64encode(value).decode(),
        }
    return {"datacontenttype": _JSON, "data": value}
