"""Where a subscriber starts."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from p2pmsg.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Start:
    """A place to start: `latest`, `earliest`, `sequence` or `time`, and its position."""

    kind: str
    position: int = 0


def parse_start(start: Any) -> Start:
    """Return the place that a user named; `ConfigError` where it is none."""
    if start in ("latest", "earliest"):
        return Start(start)
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError("start", "a datetime with a time zone", start)
        seconds = int(start.replace(microsecond=0).timestamp())
        return Start("time", seconds * 10**9 + start.microsecond * 1000)
    if type(start) is int and 0 <= start < 2**63:
        return Start("sequence", start)
    limit = '"latest", "earliest", a sequence (int of at least 0) or a datetime'
    raise ConfigError("start", limit, start)
