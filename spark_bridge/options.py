"""The options of the source, checked by name and value."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

import p2pmsg
from spark_bridge.errors import BridgeError, OptionError

EARLIEST: Final = -2
LATEST: Final = -1
"""In the JSON of offsets, as Kafka's source has them."""
EVERYBODY: Final = "*"

Wanted = dict[str, dict[str, int]]
"""Offsets by topic, then by who publishes: a session, an endpoint, a publisher's name, or `*`."""

_BOOLEANS: Final = {"true": True, "false": False}
_FORMATS: Final = ("raw", "msgpack", "json")
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "path")
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "headRefreshMs")
_TABLE: Final = {"provider", "owner"}
"""What Spark hands over beside the options when it makes a table of its catalogue."""
_NO_TABLES: Final = (
    "format p2pmsg has no tables, since Spark keeps the options of CREATE TABLE and gives a Python "
    "source none of them when the table is read. CREATE TEMPORARY VIEW … USING p2pmsg OPTIONS (…) "
    "reads what there is when it is made"
)
_SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a user set. Field names are the options' names as Spark users write such names."""

    peers: tuple[str, ...] = ()
    """Endpoints of publishers, separated by commas. `peers` or `path` is required."""

    peers_file: str | None = None
    """Where `peers` is `file:PATH`: one endpoint a line, read again when the file changes."""

    path: tuple[str, ...] = ()
    """Directories of local logs, separated by commas; for batches only."""

    subscribe: tuple[str, ...] = ()
    """Topics, separated by commas. One of this and the next two is required."""

    subscribePattern: str | None = None
    """A regular expression that a whole topic matches; topics that come later are read, too."""

    assign: Mapping[str, tuple[str, ...]] | None = None
    """JSON: by topic, which publishers (by name, endpoint, or session as 16 hex digits)."""

    startingOffsets: str | Wanted | None = None
    """Where a new query starts: `latest` (default of streams, as Spark's Kafka source has it),
    `earliest` (default of batches), or JSON. A query that has a checkpoint goes on from there."""

    endingOffsets: str | Wanted = "latest"
    """Where a batch ends."""

    startingTimestamp: int | None = None
    """Start at the first message of this time or later, in ns; goes before `startingOffsets`."""

    endingTimestamp: int | None = None
    """End before the first message of this time or later, in ns."""

    maxOffsetsPerTrigger: int | None = None
    """At most so many messages a batch, shared out by what each stream has. Default: no limit."""

    maxPartitions: int = 4
    """At most so many tasks a batch. 4: the source cannot see how many cores there are, two tasks
    read 1.6 times what one reads, and small batches get one task whatever this says."""

    minPartitions: int = 1
    """At least so many tasks a batch, if it has so many messages. 1: a task costs some 10 ms."""

    failOnDataLoss: bool = True
    """Whether a range that is gone fails the query. False: it is skipped, exactly, and logged."""

    includeHeaders: bool = True
    """Whether there is a column `headers`."""

    failOnPeerAway: bool | None = None
    """Whether a peer that gives no answer fails the query, or the batch. Default None: no for
    streams, where a peer that is away keeps its place and must not stop the others; for batches
    what `failOnDataLoss` says, since no later batch makes up for it."""

    fetchTimeoutMs: int = 10_000
    """How long a task goes on without any progress, in ms. 10 s outlast a reconnection."""

    fetchRetries: int = 3
    """How often a fetch that ran into that time is begun anew, over new connections. 3, as
    Kafka's source has it."""

    headRefreshMs: int = 50
    """How old the peers' heads may be, in ms. Spark asks up to 60 times a second when idle."""

    valueFormat: str = ""
    """`raw`: a column `value` of bytes. `msgpack`, `json`: the schema's columns out of the value.
    Default: `raw`, and `msgpack` where a schema is given, which is what dict values are."""


_NAMES: Final = {
    field.name.lower(): field.name for field in fields(SourceOptions) if field.name != "peers_file"
}


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the options. Names may be in any case.

    Raises:
        OptionError: names what is wrong.
        BridgeError: they are those of a table.

    """
    if options.keys() >= _TABLE:
        raise BridgeError(_NO_TABLES)
    given = _named(options)
    if "peers" not in given and "path" not in given:
        hint = "" if given else f". Where this is a table: {_NO_TABLES}"
        raise OptionError("peers", f"is required to read (and 'endpoint' to write){hint}")
    if "peers" in given and "path" in given:
        raise OptionError("path", "cannot be given together with 'peers'")
    named = [name for name in _SUBSCRIPTIONS if name in given]
    if not named:
        raise OptionError("subscribe", "is required, or 'subscribePattern', or 'assign'")
    if len(named) > 1:
        raise OptionError(named[1], f"cannot be given together with {named[0]!r}")
    least, most = _partitions(given)
    subscription, positions = _subscription(given), _positions(given)
    _check_topics(subscription, positions)
    return SourceOptions(
        **_places(given),
        **subscription,
        **positions,
        maxOffsetsPerTrigger=_integer_if(given, "maxOffsetsPerTrigger", 1, 2**63 - 1),
        maxPartitions=most,
        minPartitions=least,
        failOnDataLoss=_boolean(given, "failOnDataLoss", default=True),
        failOnPeerAway=_boolean_if(given, "failOnPeerAway"),
        includeHeaders=_boolean(given, "includeHeaders", default=True),
        fetchTimeoutMs=_integer(given, "fetchTimeoutMs", 10_000, 10),
        fetchRetries=_integer(given, "fetchRetries", 3, 0, 1000),
        headRefreshMs=_integer(given, "headRefreshMs", 50, 1),
        valueFormat=_one_of(given, "valueFormat", _FORMATS, ""),
    )


def check_use(options: Mapping[str, str], *, streaming: bool) -> None:
    """Refuse options that this kind of read does not have, by name."""
    given = _named(options)
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if name in given:
            kind = "batches" if streaming else "streams"
            raise OptionError(name, f"is for {kind} only")
    if not streaming and given.get("startingOffsets", "").strip().lower() == "latest":
        raise OptionError("startingOffsets", "cannot be 'latest' in a batch, which would be empty")


def read_peers_file(path: str) -> tuple[str, ...]:
    """Return the endpoints in a file of peers; `OptionError` where it cannot be used."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError("peers", f"names the file {path!r}, which cannot be read: {error}") from (
            error
        )
    peers = dict.fromkeys(line.partition("#")[0].strip() for line in lines)
    peers.pop("", None)
    for peer in peers:
        _check_peer(peer)
    return tuple(peers)


def _named(options: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for key, value in options.items():
        name = _NAMES.get(key.lower())
        if name is None:
            known = ", ".join(_NAMES.values())
            raise OptionError(key, f"is unknown; there are {known}")
        given[name] = value
    return given


def _places(given: Mapping[str, str]) -> dict[str, Any]:
    if "path" in given:
        paths = []
        for item in _list("path", given["path"]):
            path = _local_path("path", item)
            if not Path(path).is_dir():
                raise OptionError("path", f"has no directory {path!r}")
            paths.append(path)
        return {"path": tuple(paths)}
    text = given["peers"].strip()
    if text.startswith("file:"):
        path = _local_path("peers", text)
        return {"peers_file": path, "peers": read_peers_file(path)}
    peers = _list("peers", text)
    for peer in peers:
        _check_peer(peer)
    return {"peers": peers}


def _subscription(given: Mapping[str, str]) -> dict[str, Any]:
    if "subscribe" in given:
        topics = _list("subscribe", given["subscribe"])
        if any(topic.endswith("*") for topic in topics):
            text = given["subscribe"]
            raise OptionError(
                "subscribe", f"takes whole topics; prefixes are for 'subscribePattern': {text!r}"
            )
        return {"subscribe": topics}
    if "subscribePattern" in given:
        pattern = given["subscribePattern"]
        if not pattern.strip():
            raise OptionError("subscribePattern", f"must be a regular expression, not {pattern!r}")
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(
                "subscribePattern", f"must be a regular expression, not {pattern!r}: {error}"
            ) from error
        return {"subscribePattern": pattern}
    found = _json_object("assign", given["assign"])
    if not found:
        raise OptionError("assign", "names no topic")
    for topic, who in found.items():
        if not (isinstance(who, list) and who and all(isinstance(each, str) for each in who)):
            raise OptionError("assign", f"must have a list of publishers for {topic!r}: {who!r}")
    return {"assign": {topic: tuple(who) for topic, who in found.items()}}


def _positions(given: Mapping[str, str]) -> dict[str, Any]:
    starting, ending = given.get("startingOffsets"), given.get("endingOffsets", "latest")
    first, last = _time(given, "startingTimestamp"), _time(given, "endingTimestamp")
    if first is not None and last is not None and first > last:
        began, text = given["startingTimestamp"], given["endingTimestamp"]
        raise OptionError("endingTimestamp", f"is {text!r}, before startingTimestamp {began!r}")
    return {
        "startingOffsets": None if starting is None else _offsets("startingOffsets", starting),
        "endingOffsets": _offsets("endingOffsets", ending),
        "startingTimestamp": first,
        "endingTimestamp": last,
    }


def _check_topics(subscription: Mapping[str, Any], positions: Mapping[str, Any]) -> None:
    """Refuse offsets of topics that are not subscribed to: they would choose nothing."""
    ((name, wanted),) = subscription.items()
    for option in ("startingOffsets", "endingOffsets"):
        offsets = positions[option]
        for topic in offsets if isinstance(offsets, dict) else ():
            if not (re.fullmatch(wanted, topic) if isinstance(wanted, str) else topic in wanted):
                known = repr(wanted) if isinstance(wanted, str) else ", ".join(wanted)
                raise OptionError(option, f"names the topic {topic!r}; {name!r} is {known}")


def _offsets(name: str, text: str) -> str | Wanted:
    word = text.strip().lower()
    if word == "latest" or (word == "earliest" and name != "endingOffsets"):
        return word
    if not word.startswith("{"):
        words = "latest or JSON" if name == "endingOffsets" else "latest, earliest or JSON"
        raise OptionError(name, f"must be {words}, not {text!r}")
    found = _json_object(name, text)
    for topic, places in found.items():
        if isinstance(places, int) and not isinstance(places, bool):
            found[topic] = places = {EVERYBODY: places}
        if not isinstance(places, dict):
            raise OptionError(name, f"must have offsets by publisher for {topic!r}: {places!r}")
        for who, offset in places.items():
            if type(offset) is not int or not EARLIEST <= offset < 2**63:
                raise OptionError(
                    name, f"must have integers from -2 (earliest) on; {topic!r}, {who!r}: {offset}"
                )
            if name == "endingOffsets" and offset == EARLIEST:
                raise OptionError(name, f"cannot be -2 (earliest): {topic!r}, {who!r}")
    return found


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise OptionError(name, f"must be a JSON object, not {text!r}: {error}") from error
    if not isinstance(found, dict):
        raise OptionError(name, f"must be a JSON object by topic, not {text!r}")
    return found


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; Python's own reader keeps the last of two without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has {max(names, key=names.count)!r} twice")
    return found


def _time(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        if text.strip().lstrip("-").isdigit():
            return _in_range(int(text) * 1_000_000)
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            raise ValueError("it has no time zone")
        return _in_range(int(moment.timestamp() * 1_000_000) * 1000)
    except (ValueError, OverflowError) as error:
        raise OptionError(
            name, f"must be ms since the epoch or an ISO 8601 time, not {text!r}: {error}"
        ) from error


def _in_range(time_ns: int) -> int:
    if not 0 <= time_ns < 2**63:
        raise ValueError("it is not from 1970 to 2262")
    return time_ns


def _partitions(given: Mapping[str, str]) -> tuple[int, int]:
    least = _integer(given, "minPartitions", 1, 1, 10_000)
    most = _integer(given, "maxPartitions", max(4, least), 1, 10_000)
    if least > most:
        raise OptionError("minPartitions", f"must be at most maxPartitions ({most}), not {least}")
    return least, most


def _list(name: str, text: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise OptionError(name, f"must be a list separated by commas, not {text!r}")
    if len(set(items)) != len(items):
        raise OptionError(name, f"names one twice: {text!r}")
    return items


def _local_path(name: str, text: str) -> str:
    if not text.startswith("file:"):
        return text
    parsed = urlparse(text)
    if parsed.netloc not in ("", "localhost") or not parsed.path:
        raise OptionError(name, f"must name a local file, not {text!r}")
    return unquote(parsed.path)


def _check_peer(peer: str) -> None:
    try:
        p2pmsg.RangeReader(peer).close()
    except p2pmsg.ConfigError as error:
        raise OptionError("peers", f"has no usable endpoint {peer!r}: {error}") from error


def _one_of(given: Mapping[str, str], name: str, words: tuple[str, ...], default: str) -> str:
    text = given.get(name)
    if text is None:
        return default
    if text.strip().lower() not in words:
        raise OptionError(name, f"must be {' or '.join(words)}, not {text!r}")
    return text.strip().lower()


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    if name not in given:
        return default
    value = _BOOLEANS.get(given[name].strip().lower())
    if value is None:
        raise OptionError(name, f"must be true or false, not {given[name]!r}")
    return value


def _boolean_if(given: Mapping[str, str], name: str) -> bool | None:
    return _boolean(given, name, default=False) if name in given else None


def _integer_if(given: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    return _integer(given, name, least, least, most) if name in given else None


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
