"""The items of a line: metrics, events, service checks, bad lines; keys and numbers as texts."""

from dataclasses import dataclass
from enum import StrEnum

OWN_PREFIX = "statsd"
"""First part of the names of the collector's own metrics, as with statsd."""


class Kind(StrEnum):
    """The type of a metric; the value is how it is written in a line."""

    COUNTER = "c"
    """Added up."""
    GAUGE = "g"
    """The last value stays."""
    TIMER = "ms"
    """Values in milliseconds, whose statistics are flushed."""
    HISTOGRAM = "h"
    """As a timer, without a unit."""
    DISTRIBUTION = "d"
    """As a histogram, flushed with a sketch, so that several collectors' can be merged."""
    SET = "s"
    """Distinct values are counted."""
    METER = "m"
    """Added up as a counter; an old name for one."""


STATISTICS = (Kind.TIMER, Kind.HISTOGRAM, Kind.DISTRIBUTION)
"""Kinds whose values are kept."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a line.

    Attributes:
        kind: its type.
        name: as sent, or as the dialect cleans it.
        values: numbers, or text for a set; several where the line packs them (DogStatsD 1.1).
        tags: in the order sent, each `key:value` or `key`.
        rate: the sample rate, above 0; each value stands for 1 / rate values.
        relative: for a gauge, by value: whether it is added to what was there.
        timestamp_s: seconds since the epoch (DogStatsD 1.3), or None.
        container: the container's id (DogStatsD 1.2), or "".

    """

    kind: Kind
    name: str
    values: tuple[float, ...] | tuple[str, ...]
    tags: tuple[str, ...] = ()
    rate: float = 1.0
    relative: tuple[bool, ...] = ()
    timestamp_s: int | None = None
    container: str = ""

    @property
    def numbers(self) -> list[float]:
        """The values, of any kind but a set."""
        return [value for value in self.values if isinstance(value, float)]


@dataclass(frozen=True, slots=True)
class Event:
    """A DogStatsD event, `_e{…}`.

    Attributes:
        title, text: what happened.
        timestamp_s: when, in seconds since the epoch; 0 where none was sent.
        hostname, aggregation_key, priority, source_type, alert_type, container: as sent, or "".
        tags: `key:value` or `key`, in order.

    """

    title: str
    text: str
    timestamp_s: int = 0
    hostname: str = ""
    aggregation_key: str = ""
    priority: str = "normal"
    source_type: str = ""
    alert_type: str = "info"
    tags: tuple[str, ...] = ()
    container: str = ""


@dataclass(frozen=True, slots=True)
class ServiceCheck:
    """A DogStatsD service check, `_sc|…`.

    Attributes:
        name: of the check.
        status: 0 OK, 1 warning, 2 critical, 3 unknown.
        timestamp_s: when, in seconds since the epoch; 0 where none was sent.
        hostname, message, container: as sent, or "".
        tags: `key:value` or `key`, in order.

    """

    name: str
    status: int
    timestamp_s: int = 0
    hostname: str = ""
    message: str = ""
    tags: tuple[str, ...] = ()
    container: str = ""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line, or a part of one, that is no item.

    Attributes:
        reason: `no_value`: nothing after the name, or an empty value; `no_type`: no `|type` after
            the value; `empty_name`; `bad_name`: it has a control character; `not_utf8`;
            `bad_number`: not a decimal number; `not_finite`: beyond what a float holds, or
            infinite; `negative_timer`; `unknown_type`: none of c g ms h d s m; `bad_rate`: not @
            and a number above 0 and at most 1; `bad_tags`: they do not parse; `mixed_tag_styles`:
            tags both in the name and after `|#`; `packed_values`: several where the type or the
            dialect takes one; `bad_timestamp`: not T and seconds up to the year 2116, or with a
            type that takes none; `bad_container`: not c: and an id; `unknown_section`: no version
            of the protocol has it; `repeated_section`; `bad_event`: its lengths or fields do not
            fit; `bad_service_check`: without a name or a status from 0 to 3; `too_long`: longer
            than 64 KiB.
        text: what is bad.

    """

    reason: str
    text: str


Item = Metric | Event | ServiceCheck | BadLine
_TAGS_MARK = "|#"
"""Between name and tags in a key; in a dialect that splits at bars neither holds one itself."""


def make_key(name: str, tags: tuple[str, ...]) -> str:
    """Return name and tags as one text: the tags sorted, each once."""
    return f"{name}{_TAGS_MARK}{','.join(sorted(set(tags)))}" if tags else name


def split_key(key: str) -> tuple[str, tuple[str, ...]]:
    """Return name and tags of a key."""
    name, mark, tags = key.partition(_TAGS_MARK)
    return name, tuple(tags.split(",")) if mark else ()


def number_text(value: float) -> str:
    """Return a number with the fewest digits that are read as the same number."""
    return str(value).removesuffix(".0")
