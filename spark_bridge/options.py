"""The options of the source, checked by name and value."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

import p2pmsg
from spark_bridge.errors import OptionError

_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a user set. Field names are the options' names as Spark users write such names."""

    peers: tuple[str, ...]
    """Endpoints of publishers, separated by commas. Required."""

    subscribe: tuple[str, ...]
    """Topics, separated by commas. Required."""

    startingOffsets: str = "latest"
    """Where a new query starts: `latest`, as Spark's Kafka source does, or `earliest`, the earliest
    that each peer keeps. A query that has a checkpoint goes on from there."""

    failOnDataLoss: bool = True
    """Whether a range that is gone fails the query. False: it is skipped, exactly, and logged."""

    maxPartitions: int = 4
    """At most so many tasks a batch. 4: the source cannot see how many cores there are, two tasks
    read 1.6 times what one reads, and small batches get one task whatever this says."""

    fetchTimeoutMs: int = 10_000
    """How long a task goes on without any progress, in ms. 10 s outlast a reconnection."""

    headRefreshMs: int = 50
    """How old the peers' heads may be, in ms. Spark asks up to 60 times a second when idle."""


_NAMES: Final = {field.name.lower(): field.name for field in fields(SourceOptions)}


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the options; `OptionError` names what is wrong. Names may be in any case."""
    given: dict[str, str] = {}
    for key, value in options.items():
        name = _NAMES.get(key.lower())
        if name is None:
            known = ", ".join(_NAMES.values())
            raise OptionError(key, f"is unknown; there are {known}")
        given[name] = value
    for name in ("peers", "subscribe"):
        if name not in given:
            raise OptionError(name, "is required")
    peers = _list("peers", given["peers"])
    for peer in peers:
        _check_peer(peer)
    starting = given.get("startingOffsets", "latest").strip().lower()
    if starting not in ("latest", "earliest"):
        raise OptionError(
            "startingOffsets", f"must be latest or earliest, not {given['startingOffsets']!r}"
        )
    return SourceOptions(
        peers=peers,
        subscribe=_list("subscribe", given["subscribe"]),
        startingOffsets=starting,
        failOnDataLoss=_boolean("failOnDataLoss", given.get("failOnDataLoss", "true")),
        maxPartitions=_integer("maxPartitions", given.get("maxPartitions", "4"), 1, 10_000),
        fetchTimeoutMs=_integer("fetchTimeoutMs", given.get("fetchTimeoutMs", "10000"), 10),
        headRefreshMs=_integer("headRefreshMs", given.get("headRefreshMs", "50"), 1),
    )


def _list(name: str, text: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise OptionError(name, f"must be a list separated by commas, not {text!r}")
    if len(set(items)) != len(items):
        raise OptionError(name, f"names one twice: {text!r}")
    if name == "subscribe" and any(item.endswith("*") for item in items):
        raise OptionError(name, f"takes whole topics, not prefixes: {text!r}")
    return items


def _check_peer(peer: str) -> None:
    try:
        p2pmsg.RangeReader(peer).close()
    except p2pmsg.ConfigError as error:
        raise OptionError("peers", f"has no usable endpoint {peer!r}: {error}") from error


def _boolean(name: str, text: str) -> bool:
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise OptionError(name, f"must be true or false, not {text!r}")
    return value


def _integer(name: str, text: str, least: int, most: int = 2**31 - 1) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise OptionError(name, f"must be an integer from {least} to {most}, not {text!r}")
    return value
