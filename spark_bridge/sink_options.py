"""The options of the sink, checked by name and value."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from spark_bridge.errors import OptionError

COMMIT_TOPIC: Final = "spark.commits"
_PORTS: Final = re.compile(r"(tcp://.+):(\d+)-(\d+)")
_PORTS_MAX: Final = 1024
_SPARKS_OWN: Final = ("checkpointlocation", "queryname")
"""Options of a query that Spark hands to its sink as well."""
_ENDPOINT: Final = re.compile(r"tcp://.+:\d{1,5}|ipc://.+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a user set. Field names are the options' names as Spark users write such names."""

    endpoint: tuple[str, ...]
    """Where tasks publish: endpoints separated by commas, or `tcp://HOST:FIRST-LAST`; a task takes
    the first that is free on its machine, and subscribers connect to all of them. Required."""

    topic: str | None = None
    """The topic of rows without one (no column `topic`, or null)."""

    commitTopic: str = COMMIT_TOPIC
    """Where each task says which rows are those of which batch; see `CommittedRows`."""

    minSubscribers: int = 1
    """A task waits for so many subscribers before it publishes. 1: rows that nobody receives would
    be lost without a word."""

    timeoutMs: int = 30_000
    """How long a task waits for a free endpoint, for subscribers, and until they have everything,
    each, in ms. 30 s: a restarted subscriber is back by then."""

    writeId: str | None = None
    """Of a batch: who writes it. A batch that is written again with the same `writeId` and
    `writeBatch` is received once. Default: each write is another one."""

    writeBatch: int = 0
    """Of a batch with a `writeId`: its number, from 0 on, as `foreachBatch` has it."""

    replayBytes: int = 256 * 2**20
    """How much of what a task published it keeps for repairs, in bytes."""


_NAMES: Final = {field.name.lower(): field.name for field in fields(SinkOptions)}


def is_sink(options: Mapping[str, str]) -> bool:
    """Whether these options are a sink's."""
    names = {name.lower() for name in options}
    return "endpoint" in names and not names & {"peers", "path"}


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return the options; `OptionError` names what is wrong. Names may be in any case."""
    given: dict[str, str] = {}
    for key, value in options.items():
        if key.lower() in _SPARKS_OWN:
            continue
        name = _NAMES.get(key.lower())
        if name is None:
            known = ", ".join(_NAMES.values())
            raise OptionError(key, f"is unknown to the sink; there are {known}")
        given[name] = value
    if "endpoint" not in given:
        raise OptionError("endpoint", "is required")
    for name, other in (("writeId", "writeBatch"), ("writeBatch", "writeId")):
        if other in given and name not in given:
            raise OptionError(name, f"is required with {other!r}")
    if not given.get("writeId", "x"):
        raise OptionError("writeId", "must not be empty")
    for name in ("topic", "commitTopic"):
        if name in given:
            _check_topic(name, given[name])
    return SinkOptions(
        endpoint=_endpoints(given["endpoint"]),
        topic=given.get("topic"),
        commitTopic=given.get("commitTopic", COMMIT_TOPIC),
        minSubscribers=_integer(given, "minSubscribers", 1, 0),
        timeoutMs=_integer(given, "timeoutMs", 30_000, 10),
        writeId=given.get("writeId"),
        writeBatch=_integer(given, "writeBatch", 0, 0, 2**63 - 1),
        replayBytes=_integer(given, "replayBytes", 256 * 2**20, 2**20, 2**40),
    )


def _endpoints(text: str) -> tuple[str, ...]:
    found: list[str] = []
    for item in (each.strip() for each in text.split(",")):
        ports = _PORTS.fullmatch(item)
        if ports is None:
            found.append(item)
            continue
        host, first, last = ports[1], int(ports[2]), int(ports[3])
        if not 0 < first <= last < 65_536 or last - first >= _PORTS_MAX:
            raise OptionError("endpoint", f"has no range of at most {_PORTS_MAX} ports: {item!r}")
        found += [f"{host}:{port}" for port in range(first, last + 1)]
    for each in found:
        if not _ENDPOINT.fullmatch(each):
            raise OptionError("endpoint", f"must be tcp://HOST:PORT or ipc://PATH, not {each!r}")
    return tuple(found)


def _check_topic(name: str, topic: str) -> None:
    size = len(topic.encode("utf-8", "replace"))
    if not 1 <= size <= 255 or "\0" in topic or topic.endswith("*"):
        raise OptionError(
            name, f"must have 1 to 255 bytes, no zero byte, and no * at its end, not {topic!r}"
        )


def _integer(
    given: Mapping[str, str], name: str, default: int, least: int, most: int = 2**31 - 1
) -> int:
    text = given.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise OptionError(name, f"must be an integer from {least} to {most}, not {text!r}")
    return value
