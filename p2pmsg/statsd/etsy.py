"""The grammar of statsd 0.9's own code.

Each piece between colons is a metric of its own: `foo:1|c:320|ms` is two. What follows the rate is
ignored, an unknown type is a counter, and `|#` may stand anywhere before the tags. Two differences
remain: statsd ends with a TypeError at `@+0.5` and `@ 0.1`, and takes infinite values; both are bad
lines here.
"""

import re

from p2pmsg.statsd.dialect import Dialect
from p2pmsg.statsd.metric import BadLine, Item, Kind, LineError, Metric
from p2pmsg.statsd.numbers import SPACES, clean_name, javascript_number

_RATE = re.compile(r"@([0-9.]+)")
_SIGNED = re.compile(r"[-+]")


def parse_line(line: bytes, dialect: Dialect) -> list[Item]:
    """Return the metrics and the bad pieces of a line, in order."""
    text = line.decode(errors="replace")
    head, *rest = text.split("|#")
    name, *pieces = head.split(":")
    if rest and rest[0]:
        name += "".join(
            ";" + tag.replace(";", "_", 1).replace(":", "=", 1) for tag in rest[0].split(",")
        )
    if dialect.clean_names:
        name = clean_name(name)
    items: list[Item] = []
    for piece in pieces or ["1"]:
        try:
            items.append(_parse_piece(name, piece))
        except LineError as error:
            items.append(BadLine(error.reason, text))
    return items


def _parse_piece(name: str, piece: str) -> Metric:
    fields = piece.split("|")
    if len(fields) < 2:
        raise LineError("no_type")
    value, written = fields[0], fields[1]
    _check_rate(fields)
    if written != "s":
        if not value:
            raise LineError("no_value")
        number = javascript_number(value)
        if written == "ms" and number < 0:
            raise LineError("negative_timer")
    rate = _rate(fields)
    kind = written.strip(SPACES)
    if kind == "s":
        return Metric(Kind.SET, name, (value or "0",))
    if kind == "g":
        return Metric(Kind.GAUGE, name, (number,), relative=(bool(_SIGNED.match(value)),))
    return Metric(Kind.TIMER if kind == "ms" else Kind.COUNTER, name, (number,), rate=rate)


def _check_rate(fields: list[str]) -> None:
    """Refuse what statsd's `isValidSampleRate` refuses."""
    if len(fields) < 3:
        return
    text = fields[2]
    if len(text) < 2 or text[0] != "@" or text[1] == "-":
        raise LineError("bad_rate")
    try:
        javascript_number(text[1:])
    except LineError:
        raise LineError("bad_rate") from None


def _rate(fields: list[str]) -> float:
    if len(fields) < 3:
        return 1.0
    match = _RATE.match(fields[2])
    if match is None:
        raise LineError("crashes_statsd")
    try:
        rate = float(match[1])
    except ValueError:
        raise LineError("bad_rate") from None
    if not (0 < rate < float("inf") and 1 / rate < float("inf")):
        raise LineError("bad_rate")
    return rate
