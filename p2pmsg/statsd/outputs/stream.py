"""The stream `metrics`: one message a metric and flush, for subscribers and for Spark."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from p2pmsg import Publisher, codec
from p2pmsg.statsd.metric import Event, ServiceCheck
from p2pmsg.statsd.outputs.base import Output
from p2pmsg.statsd.snapshot import Row, Snapshot
from p2pmsg.toolkit import checked

_SECOND_NS = 1_000_000_000
_encode = codec.json_encode


class StreamOutput(Output):
    """Publishes JSON objects: `name`, `type`, `tags` and the metric's fields.

    JSON because every reader can parse it, Spark's `from_json` too. The message's key is the name
    with its tags, its timestamp the flush's. Distributions have a `sketch`: see `read_sketch`, also
    for merging those of several collectors. Events and service checks go to the topics
    `<topic>.events` and `<topic>.checks`.

    Args:
        publisher: where to publish; the caller closes it.
        topic: the topic. Default `metrics`.

    """

    name = "stream"

    @checked()
    def __init__(self, publisher: Publisher, topic: str = "metrics") -> None:
        self._publisher = publisher
        self._topic = topic
        self._published = 0
        self._last_s = 0.0

    def write_event(self, event: Event | ServiceCheck) -> None:
        """Publish `event`, or a service check."""
        kind = "events" if isinstance(event, Event) else "checks"
        self._publisher.publish(f"{self._topic}.{kind}", _encode(event), _event_key(event))

    def write(self, row: Row) -> None:
        """Publish `row`."""
        value, at_ns = _encode(row_object(row)), int(row.timestamp_s * _SECOND_NS)
        self._publisher.publish(self._topic, value, row.key, at_ns)
        self._published += 1

    def end(self, snapshot: Snapshot) -> None:
        """Send what was gathered."""
        self._publisher.flush()
        self._last_s = time.time()

    def status(self) -> Iterable[tuple[str, float]]:
        """Return counters."""
        return (("last_flush", self._last_s), ("messages", self._published))


def _event_key(event: Event | ServiceCheck) -> str:
    return event.aggregation_key or event.title if isinstance(event, Event) else event.name


def row_object(row: Row) -> dict[str, Any]:
    """Return a row as an object, its tags as one too: `key:value`, or `key` with an empty value."""
    found: dict[str, Any] = {
        "name": row.name,
        "type": row.kind.name.lower(),
        "tags": tag_object(row.tags),
        **row.fields,
    }
    if row.sketch is not None:
        found["sketch"] = row.sketch
    return found


def tag_object(tags: Sequence[str]) -> dict[str, str]:
    """Return tags by key; values of the same key are joined by commas."""
    found: dict[str, str] = {}
    for tag in tags:
        key, _, value = tag.partition(":")
        found[key] = f"{found[key]},{value}" if key in found else value
    return found
