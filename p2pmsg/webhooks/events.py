"""What is in the body of a request: CloudEvents 1.0, JSON, or bytes."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote

from p2pmsg.http.asgi import RejectedError
from p2pmsg.http.bodies import json_of, kind_of, value_of
from p2pmsg.webhooks.schemes import Proof

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
    attributes = {
        name: value for name, value in found.items() if name not in ("data", "data_base64")
    }
    if "data_base64" in found:
        try:
            value: Any = base64.b64decode(found["data_base64"], validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise RejectedError(400, "body", "data_base64 is no base64") from None
    else:
        value = found.get("data")
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
