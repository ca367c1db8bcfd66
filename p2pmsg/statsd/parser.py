"""Lines to metrics; pure, and nothing that comes in makes it raise.

Sources: statsd's docs/metric_types.md; DataDog's "DogStatsD datagram format", versions 1.0 to 1.6.
"""

import re

from p2pmsg.statsd import etsy
from p2pmsg.statsd.dialect import Dialect
from p2pmsg.statsd.dogstatsd import parse_event, parse_service_check
from p2pmsg.statsd.metric import BadLine, Item, Kind, LineError, Metric
from p2pmsg.statsd.numbers import clean_name, decimal
from p2pmsg.statsd.tags import split_list, split_name

LINE_BYTES_MAX = 65_536
"""A datagram holds no longer one; over TCP it bounds what is kept of a line that never ends."""
_STATISTICS = (Kind.TIMER, Kind.HISTOGRAM, Kind.DISTRIBUTION)
_KINDS = {kind.value: kind for kind in Kind}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_RATE = re.compile(r"[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?")
_SECONDS = re.compile(r"[0-9]{1,12}")
_MARKS = ("@", "#", "T", "c:", "e:", "card:")
"""How the sections begin that the protocol has, in any order, each once. External data and
cardinality, of DogStatsD 1.5 and 1.6, are known, and of no use here."""


def parse_line(line: bytes, dialect: Dialect) -> list[Item]:
    """Return what a line says: several items in the etsy grammar, else one, or none if empty."""
    if not line:
        return []
    if len(line) > LINE_BYTES_MAX:
        return [BadLine("too_long", line[:100].decode(errors="replace"))]
    if dialect.grammar == "etsy":
        return etsy.parse_line(line, dialect)
    line = line.removesuffix(b"\r")
    if not line:
        return []
    try:
        return [_parse_sections(line, dialect)]
    except UnicodeDecodeError:
        reason = "not_utf8"
    except LineError as error:
        reason = error.reason
    return [BadLine(reason, line.decode(errors="replace"))]


def _parse_sections(line: bytes, dialect: Dialect) -> Item:
    if line.startswith(b"_e"):
        head = line[:3]
        if head in (b"_e{", b"_e:"):
            return parse_event(line)
    if line.startswith(b"_sc|"):
        return parse_service_check(line)
    text = line.decode()
    name, colon, rest = text.partition(":")
    if not colon or not rest:
        raise LineError("no_value")
    name, tags = split_name(name, dialect.tag_styles)
    if dialect.clean_names:
        name = clean_name(name)
    if not name:
        raise LineError("empty_name")
    if _CONTROL.search(name):
        raise LineError("bad_name")
    sections = rest.split("|")
    if len(sections) < 2 or not sections[1]:
        raise LineError("no_type")
    kind = _parse_kind(sections[1], dialect)
    extra = _parse_extra(sections[2:], kind, dialect)
    if extra.tags and tags and dialect.tags_twice == "reject":
        raise LineError("mixed_tag_styles")
    values, relative = _parse_values(sections[0], kind, dialect)
    return Metric(
        kind, name, values, tags + extra.tags, extra.rate, relative, extra.timestamp_s,
        extra.container,
    )  # fmt: skip


def _parse_kind(text: str, dialect: Dialect) -> Kind:
    kind = _KINDS.get(text if dialect.type_case else text.lower())
    if kind is None:
        if dialect.unknown_type == "counter":
            return Kind.COUNTER
        raise LineError("unknown_type")
    return kind


def _parse_values(
    text: str, kind: Kind, dialect: Dialect
) -> tuple[tuple[float, ...] | tuple[str, ...], tuple[bool, ...]]:
    if not text:
        raise LineError("no_value")
    if kind is Kind.SET:  # DogStatsD packs no sets, so a colon belongs to the value
        return (text,), ()
    parts = text.split(":")
    if dialect.empty_values:
        parts = [part for part in parts if part]
    if len(parts) > 1 and (
        dialect.packed_values == "none"
        or (dialect.packed_values == "statistics" and kind not in _STATISTICS)
    ):
        raise LineError("packed_values")
    values = tuple(map(decimal, parts))
    if kind is Kind.GAUGE:
        return values, tuple(part[0] in "+-" for part in parts)
    return values, ()


class _Extra:
    """The sections after the type."""

    __slots__ = ("container", "rate", "tags", "timestamp_s")

    def __init__(self) -> None:
        self.rate = 1.0
        self.tags: tuple[str, ...] = ()
        self.timestamp_s: int | None = None
        self.container = ""


def _parse_extra(sections: list[str], kind: Kind, dialect: Dialect) -> _Extra:
    extra = _Extra()
    seen = set()
    for section in sections:
        mark = next(filter(section.startswith, _MARKS), "")
        if mark in seen:
            raise LineError("repeated_section")
        if mark:
            seen.add(mark)
        if mark == "@":
            extra.rate = _parse_rate(section[1:], dialect)
        elif mark == "#":
            if "dogstatsd" in dialect.tag_styles:
                extra.tags = split_list(section[1:], strip_marks=dialect.strip_tag_marks)
        elif mark == "T":
            extra.timestamp_s = _parse_timestamp(section[1:], kind, dialect)
        elif mark == "c:":
            if len(section) == 2:
                raise LineError("bad_container")
            extra.container = section[2:]
        elif not mark and dialect.unknown_section == "reject":
            raise LineError("unknown_section")
    return extra


def _parse_rate(text: str, dialect: Dialect) -> float:
    if _RATE.fullmatch(text):
        rate = float(text)
        if 0 < rate <= dialect.rate_max and 1 / rate < float("inf"):
            return rate
    if dialect.bad_rate == "ignore":
        return 1.0
    raise LineError("bad_rate")


def _parse_timestamp(text: str, kind: Kind, dialect: Dialect) -> int | None:
    if _SECONDS.fullmatch(text) and kind in (Kind.COUNTER, Kind.GAUGE):
        return int(text)
    if dialect.bad_rate == "ignore":
        return None
    raise LineError("bad_timestamp")
