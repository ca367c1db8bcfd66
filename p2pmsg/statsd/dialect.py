"""The differences between StatsD servers, each as a setting."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from p2pmsg.statsd.metric import Kind
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
