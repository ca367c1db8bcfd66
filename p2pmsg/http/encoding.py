"""Messages, losses and notices as Server-Sent Events."""

import base64
from collections.abc import Iterable
from typing import Any, Final, Literal

from p2pmsg.errors import LossReport
from p2pmsg.message import Message, MessageBatch
from p2pmsg.toolkit import time_text, to_json

Format = Literal["json", "base64"]
KEEP_ALIVE: Final = b": keep-alive\n\n"


def encode_batch(
    batch: MessageBatch | Iterable[Message], form: Format, before: str, after: str
) -> tuple[bytes, int]:
    """Return the events of messages of one stream, and how many of them have no such form.

    Args:
        batch: the messages.
        form: how their values are written.
        before: what stands before the sequence in each id; see `positions`.
        after: and what stands after it.

    """
    parts: list[str] = []
    bad = 0
    for message in batch:
        sequence = message.sequence
        try:
            data = message_text(message, form)
        except (ValueError, TypeError, RecursionError):
            bad += 1
            session, publisher = message.session, message.publisher
            fields = loss_fields(message.topic, session, sequence, sequence + 1, "malformed")
            data = to_json({**fields, "publisher": publisher})
            parts.append("event: loss\n")
        parts.append(f"id: {before}{sequence}{after}\ndata: {data}\n\n")
    return "".join(parts).encode("utf-8", "replace"), bad


def message_text(message: Message, form: Format) -> str:
    """Return a message as JSON; ValueError, TypeError, RecursionError where it has no such form."""
    value = message.value
    fields: dict[str, Any] = {
        "topic": message.topic,
        "session": f"{message.session:016x}",
        "sequence": message.sequence,
        "publisher": message.publisher,
        "timestamp": _time(message.timestamp_ns),
        "value": base64_text(value) if form == "base64" else value,
    }
    if message.key is not None:
        fields["key"] = message.key
    if message.headers:
        fields["headers"] = message.headers
    return to_json(fields)


def base64_text(value: Any) -> str:
    """Return a value in base64: bytes as they are, text as UTF-8, anything else as JSON."""
    if not isinstance(value, bytes):
        value = (value if isinstance(value, str) else to_json(value)).encode("utf-8", "replace")
    return base64.b64encode(value).decode()


def loss_fields(
    topic: str, session: int, start: int, stop: int | None, reason: str
) -> dict[str, Any]:
    """Return what an event says of a range that does not come."""
    return {
        "topic": topic, "session": f"{session:016x}", "start": start, "stop": stop,
        "reason": reason,
    }  # fmt: skip


def report_fields(report: LossReport) -> dict[str, Any]:
    """Return what an event says of a loss, or of a publisher that has gone back."""
    place = report.topic, report.session, report.start, report.stop
    return {**loss_fields(*place, report.reason.value), "publisher": report.publisher}


def encode_event(kind: str, fields: dict[str, Any], event_id: str | None = None) -> bytes:
    """Return an event that is no message: `loss`, `rewound` or `error`."""
    text = f"event: {kind}\n"
    if event_id is not None:
        text += f"id: {event_id}\n"
    return f"{text}data: {to_json(fields)}\n\n".encode("utf-8", "replace")


def encode_id(event_id: str) -> bytes:
    """Return a block that only says where the connection is; a browser makes no event of it."""
    return f"id: {event_id}\n\n".encode()


def _time(timestamp_ns: int) -> str | None:
    try:
        return time_text(timestamp_ns)
    except (OverflowError, ValueError, OSError):
        return None  # beyond the years 1 to 9999
