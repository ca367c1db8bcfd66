"""Lines into metrics, events and service checks: one grammar, whose dialects are tables.

Pure; no input makes `parse_line` raise. Sources: statsd's docs/metric_types.md; DataDog's
"DogStatsD datagram format", versions 1.0 to 1.6.

Python's own `float` accepts `1_000`, `nan`, `infinity`, digits of any script and surrounding
blanks; none of them is a number here.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from p2pmsg.statsd.metric import STATISTICS, BadLine, Event, Item, Kind, Metric, ServiceCheck
from p2pmsg.toolkit import check, check_fields

TAG_STYLES = ("dogstatsd", "influx", "librato", "graphite", "signalfx")
"""`n:1|c|#k:v`, `n,k=v:1|c`, `n#k=v:1|c`, `n;k=v:1|c`, `n[k=v]:1|c`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How lines are read. The defaults are the strict reading of the documents.

    `ConfigError` for a value that is not one of those named.
    """

    name: str = "strict"
    """The key in `DIALECTS`."""
    grammar: Literal["sections", "etsy"] = "sections"
    """`sections`: DogStatsD's, which contains plain StatsD. `etsy`: statsd 0.9's own. Each
    `value|type` after a colon is a metric of its own, what comes after its rate is ignored, unknown
    types are counters, and a last line without a line feed is dropped and counted where the others
    take it."""
    tag_styles: frozenset[str] = frozenset({"dogstatsd"})
    """Of `TAG_STYLES`. Only DogStatsD's by default: the others take characters from names."""
    bad_rate: Literal["reject", "ignore"] = "reject"
    """`ignore`: statsd_exporter and telegraf count the line as if the rate were 1."""
    rate_max: float = 1.0
    """A rate is a probability. statsd takes `@2` and halves the value."""
    unknown_section: Literal["reject", "ignore"] = "reject"
    """`ignore`: DataDog's agent and gostatsd."""
    packed_values: Literal["all", "statistics", "none"] = "all"
    """Which types may pack values: `all` with numbers (DataDog), `statistics` (ms h d), `none`."""
    empty_values: bool = False
    """Whether empty values in a pack are left out (gostatsd)."""
    type_case: bool = True
    """Whether `C` differs from `c` (not in brubeck)."""
    clean_names: bool = False
    """Whether names are cleaned on the way in: spaces to `_`, `/` to `-`, other characters dropped.
    Off by default, since two names may become one; outputs clean names themselves."""
    strip_tag_marks: bool = False
    """Whether `#a,#b` is `#a,b` (statsd_exporter)."""
    tags_twice: Literal["reject", "merge"] = "reject"
    """Tags both in the name and after `|#`: `merge` takes both (telegraf)."""

    def __post_init__(self) -> None:
        check_fields(self, rate_max=(1e-9, math.inf))
        unknown = sorted(self.tag_styles - {*TAG_STYLES})
        check("tag_styles", unknown, not unknown, f"of {', '.join(TAG_STYLES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What lines may have: a row of the table of grammars.

    Attributes:
        kinds: types by how they are written; `other_kind`: any other one, None: it is refused.
        marks: how sections begin, each once and in any order. External data (`e:`, version 1.5)
            and cardinality (`card:`, 1.6) are accepted and ignored.
        sections_stop: from which one on they are not looked at, values and type included; None:
            all are.
        other_section: why one that begins otherwise is refused.
        unrated: kinds whose rate is checked and not used.
        negative_times: whether a timer may be below 0.
        has_events: whether there are events and service checks.
        tags_to_name: whether tags become a part of the name (`;key=value`), and each `value|type`
            after a colon is a metric of its own.
        decoding: what is done about bytes that are not UTF-8.

    """

    kinds: Mapping[str, Kind]
    other_kind: Kind | None = None
    marks: tuple[str, ...] = ("@", "#", "T", "c:", "e:", "card:")
    sections_stop: int | None = None
    other_section: str = "unknown_section"
    unrated: tuple[Kind, ...] = ()
    negative_times: bool = True
    has_events: bool = True
    tags_to_name: bool = False
    decoding: Literal["strict", "replace"] = "strict"


GRAMMARS: Final = {
    "sections": Grammar(kinds={kind.value: kind for kind in Kind}),
    "etsy": Grammar(
        kinds={"c": Kind.COUNTER, "g": Kind.GAUGE, "ms": Kind.TIMER, "s": Kind.SET},
        other_kind=Kind.COUNTER, marks=("@",), sections_stop=3, other_section="bad_rate",
        unrated=(Kind.GAUGE, Kind.SET), negative_times=False, has_events=False, tags_to_name=True,
        decoding="replace",
    ),
}  # fmt: skip
_LENIENT: dict[str, Any] = {"bad_rate": "ignore", "packed_values": "statistics"}
_TABLE: dict[str, dict[str, Any]] = {
    "strict": {},
    "etsy": {"grammar": "etsy", "clean_names": True, "rate_max": math.inf},
    "dogstatsd": {"unknown_section": "ignore"},
    "gostatsd": {"unknown_section": "ignore", "empty_values": True, "clean_names": True},
    "exporter": _LENIENT | {
        "strip_tag_marks": True, "rate_max": math.inf,
        "tag_styles": frozenset({"dogstatsd", "influx", "librato", "signalfx"}),
    },
    "telegraf": _LENIENT | {
        "unknown_section": "ignore", "tag_styles": frozenset({"dogstatsd", "influx"}),
        "tags_twice": "merge",
    },
    "brubeck": {"packed_values": "none", "type_case": False},
    "vector": {"clean_names": True},
}  # fmt: skip
DIALECTS = {name: Dialect(name=name, **settings) for name, settings in _TABLE.items()}
"""By name; `dataclasses.replace` makes others."""
STRICT = DIALECTS["strict"]

LINE_BYTES_MAX = 65_536
"""No datagram holds a longer line; over TCP it bounds what is kept of a line that never ends."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_SPACE_RUN = re.compile(r"\s+")
_DROPPED = re.compile(r"[^a-zA-Z_\-0-9.;=]")
_RATE = re.compile(r"[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?")
_SECONDS = re.compile(r"[0-9]{1,12}")
TIMESTAMP_MAX_S: Final = 2**62 // 10**9
"""The last second that a message's timestamp can be: in February 2116."""
_BRACKETS = re.compile(r"([^\[\]]*)\[([^\]]*)\](.*)", re.DOTALL)
_NAME_TAG_MARKS = {"librato": "#", "influx": ",", "graphite": ";"}
_EVENT_HEADER = re.compile(r"_e\{([0-9]{1,7}),([0-9]{1,7})\}:")
_EVENT_CHOICES = {
    "p": ("priority", ("normal", "low")),
    "t": ("alert_type", ("error", "warning", "info", "success")),
}
_CHECK_TEXTS = {"h": "hostname", "c": "container"}
_EVENT_TEXTS = _CHECK_TEXTS | {"k": "aggregation_key", "s": "source_type"}


def decimal(text: str) -> float:
    """Parse a decimal number; `ValueError` if it is none, or not finite as a float."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError("bad_number" if text else "no_value")
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("not_finite")
    return number


def clean_name(name: str) -> str:
    """Return a name as statsd's `sanitizeKeyName` leaves it."""
    return _DROPPED.sub("", _SPACE_RUN.sub("_", name).replace("/", "-"))


def parse_line(line: bytes, dialect: Dialect) -> list[Item]:
    """Return the items of a line: several in the etsy grammar, else one, or none if it is empty.

    Args:
        line: without its line end.
        dialect: how it is read, of `DIALECTS` or your own.

    """
    if not line:
        return []
    if len(line) > LINE_BYTES_MAX:
        return [BadLine("too_long", line[:100].decode(errors="replace"))]
    line = line.removesuffix(b"\r")
    if not line:
        return []
    table = GRAMMARS[dialect.grammar]
    try:
        if table.has_events and line.startswith((b"_e{", b"_e:")):
            return [_parse_event(line)]
        if table.has_events and line.startswith(b"_sc|"):
            return [_parse_service_check(line)]
        name, tags, pieces = _split_line(line.decode(errors=table.decoding), dialect, table)
    except UnicodeDecodeError:
        return [BadLine("not_utf8", line.decode(errors="replace"))]
    except ValueError as error:
        return [BadLine(str(error), line.decode(errors="replace"))]
    return [_parse_piece(name, tags, piece, dialect, table, line) for piece in pieces]


def _split_line(
    text: str, dialect: Dialect, table: Grammar
) -> tuple[str, tuple[str, ...], list[str]]:
    """Return the name, the tags in it, and what stands after it: one metric, or several."""
    if table.tags_to_name:
        text, _, tags = text.partition("|#")
        name, *pieces = text.split(":")
        if tags := tags.partition("|#")[0]:
            name += "".join(
                ";" + tag.replace(";", "_", 1).replace(":", "=", 1) for tag in tags.split(",")
            )
        return clean_name(name) if dialect.clean_names else name, (), pieces or [""]
    name, colon, rest = text.partition(":")
    if not colon or not rest:
        raise ValueError("no_value")
    name, found = _split_name(name, dialect.tag_styles)
    if dialect.clean_names:
        name = clean_name(name)
    if not name:
        raise ValueError("empty_name")
    if _CONTROL.search(name):
        raise ValueError("bad_name")
    return name, found, [rest]


def _parse_piece(
    name: str, tags: tuple[str, ...], rest: str, dialect: Dialect, table: Grammar, line: bytes
) -> Item:
    """Parse what stands after the name: values, type, and further sections."""
    try:
        sections = rest.split("|")
        if len(sections) < 2 or not (written := sections[1]):
            raise ValueError("no_type")
        kind = table.kinds.get(written if dialect.type_case else written.lower(), table.other_kind)
        if kind is None:
            raise ValueError("unknown_type")
        extra = {}
        if len(sections) > 2:
            extra = _parse_extra(sections[2 : table.sections_stop], kind, dialect, table)
        more_tags = extra.pop("tags", ())
        if more_tags and tags and dialect.tags_twice == "reject":
            raise ValueError("mixed_tag_styles")
        numbers, relative = _parse_values(sections[0], kind, dialect)
        if not table.negative_times and kind is Kind.TIMER and numbers[0] < 0:
            raise ValueError("negative_timer")
        return Metric(kind, name, numbers, tags + more_tags, relative=relative, **extra)
    except ValueError as error:
        return BadLine(str(error), line.decode(errors="replace"))


def _parse_values(text: str, kind: Kind, dialect: Dialect) -> tuple[Any, tuple[bool, ...]]:
    """Return numbers, or the text of a set, and of a gauge which of them are added."""
    if not text:
        raise ValueError("no_value")
    if kind is Kind.SET:  # DogStatsD packs no sets, so a colon belongs to the value
        return (text,), ()
    parts = text.split(":")
    if dialect.empty_values:
        parts = [part for part in parts if part]
    is_packed = len(parts) > 1 and dialect.packed_values != "all"
    if is_packed and (dialect.packed_values == "none" or kind not in STATISTICS):
        raise ValueError("packed_values")
    relative = tuple(part[:1] in ("+", "-") for part in parts) if kind is Kind.GAUGE else ()
    return tuple(map(decimal, parts)), relative


def _parse_extra(
    sections: list[str], kind: Kind, dialect: Dialect, table: Grammar
) -> dict[str, Any]:
    """Return the fields of a metric that stand in the sections after its type."""
    extra: dict[str, Any] = {}
    seen = set()
    for section in sections:
        mark = next(filter(section.startswith, table.marks), "")
        if not mark and table.other_section != "ignore" and dialect.unknown_section == "reject":
            raise ValueError(table.other_section)
        if mark in seen:
            raise ValueError("repeated_section")
        if mark:
            seen.add(mark)
        if mark == "@":
            rate = _parse_rate(section[1:], dialect)
            if kind not in table.unrated:
                extra["rate"] = rate
        elif mark == "#":
            if "dogstatsd" in dialect.tag_styles:
                extra["tags"] = _split_tags(section[1:], strip_marks=dialect.strip_tag_marks)
        elif mark == "T":
            extra["timestamp_s"] = _parse_timestamp(section[1:], kind, dialect)
        elif mark == "c:":
            if len(section) == 2:
                raise ValueError("bad_container")
            extra["container"] = section[2:]
    return extra


def _parse_rate(text: str, dialect: Dialect) -> float:
    if _RATE.fullmatch(text):
        rate = float(text)
        if 0 < rate <= dialect.rate_max and 1 / rate < float("inf"):
            return rate
    if dialect.bad_rate == "ignore":
        return 1.0
    raise ValueError("bad_rate")


def _parse_timestamp(text: str, kind: Kind, dialect: Dialect) -> int | None:
    is_time = _SECONDS.fullmatch(text) and int(text) <= TIMESTAMP_MAX_S
    if is_time and kind in (Kind.COUNTER, Kind.GAUGE):
        return int(text)
    if dialect.bad_rate == "ignore":
        return None
    raise ValueError("bad_timestamp")


def _split_tags(text: str, *, strip_marks: bool = False) -> tuple[str, ...]:
    """Split DogStatsD's tags `a:b,c`; empty ones are left out."""
    tags = text.split(",")
    if strip_marks:
        tags = [tag.removeprefix("#") for tag in tags]
    return tuple(tag for tag in tags if tag)


def _split_name(name: str, styles: frozenset[str]) -> tuple[str, tuple[str, ...]]:
    """Return the name without its tags, and the tags as `key:value`.

    Influx, Librato, Graphite and SignalFx write tags into the name. A tag without a key is an
    error.
    """
    if "signalfx" in styles and ("[" in name or "]" in name):
        found = _BRACKETS.fullmatch(name)  # of a lone bracket the commas may separate anything
        return (found[1] + found[3], _pairs(found[2].split(","))) if found else (name, ())
    marks = [mark for style, mark in _NAME_TAG_MARKS.items() if style in styles]
    at = min((name.find(mark) for mark in marks if mark in name), default=len(name))
    name, mark, tags = name[:at], name[at : at + 1], name[at + 1 :]
    if mark == ";":  # a comma would be the end of a tag in a metric's key
        return name, _pairs(tags.replace(",", "_").split(";"))
    return name, _pairs(tags.split(","))


def _pairs(parts: list[str]) -> tuple[str, ...]:
    tags = []
    for part in parts:
        key, equals, value = part.partition("=")
        if not key and equals:
            raise ValueError("bad_tags")
        if key:
            tags.append(f"{key}:{value}" if equals else key)
    return tuple(tags)


def _parse_event(line: bytes) -> Event:
    r"""Parse `_e{title length,text length}:title|text|…`; `\n` in the text is a line break.

    The lengths count bytes of UTF-8. As in DataDog's agent, metadata that does not parse is left
    out.
    """
    header = _EVENT_HEADER.match(line.decode())
    if header is None:
        raise ValueError("bad_event")
    title_end = header.end() + int(header[1])  # the header is ASCII
    end = title_end + 1 + int(header[2])
    bars = line[title_end : title_end + 1], line[end : end + 1]
    if not int(header[1]) or len(line) < end or bars[0] != b"|" or bars[1] not in (b"|", b""):
        raise ValueError("bad_event")
    try:
        title, content = line[header.end() : title_end].decode(), line[title_end + 1 : end].decode()
        rest = line[end + 1 :].decode()
    except UnicodeDecodeError:
        raise ValueError("bad_event") from None
    fields: dict[str, Any] = {}
    for section in rest.split("|"):
        mark, _, value = section.partition(":")
        if mark in _EVENT_CHOICES:
            field, choices = _EVENT_CHOICES[mark]
            if value in choices:
                fields[field] = value
        else:
            _read_metadata(section, _EVENT_TEXTS, fields)
    return Event(title=title, text=content.replace("\\n", "\n"), **fields)


def _parse_service_check(line: bytes) -> ServiceCheck:
    r"""Parse `_sc|name|status|…`; `m:` comes last and may hold bars; `m\:` in it is `m:`."""
    sections = line.decode().split("|")
    if len(sections) < 3 or not sections[1] or sections[2] not in ("0", "1", "2", "3"):
        raise ValueError("bad_service_check")
    fields: dict[str, Any] = {}
    for index, section in enumerate(sections[3:], 3):
        if section.startswith("m:"):
            message = "|".join(sections[index:])[2:]
            fields["message"] = message.replace("m\\:", "m:").replace("\\n", "\n")
            break
        _read_metadata(section, _CHECK_TEXTS, fields)
    return ServiceCheck(name=sections[1], status=int(sections[2]), **fields)


def _read_metadata(section: str, texts: dict[str, str], fields: dict[str, Any]) -> None:
    """Read a section that events and service checks both have."""
    mark, colon, value = section.partition(":")
    if section.startswith("#"):
        fields["tags"] = _split_tags(section[1:])
    elif mark == "d" and _SECONDS.fullmatch(value):
        fields["timestamp_s"] = int(value)
    elif colon and mark in texts:
        fields[texts[mark]] = value
