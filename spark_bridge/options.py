"""The options of the source and of the sink, checked by name and value."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

import p2pmsg
from spark_bridge.errors import BridgeError, OptionError
from spark_bridge.keys import Keys, may_be_key, split_pin

EARLIEST: Final = -2
LATEST: Final = -1
"""In the JSON of offsets, as Kafka's source has them."""
EVERYBODY: Final = "*"

Wanted = dict[str, dict[str, int]]
"""Offsets by topic, then by who publishes: a session, an endpoint, a publisher's name, or `*`."""

_FILE: Final = "file:"
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "path")
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger",)
_TABLE: Final = {"provider", "owner"}
"""What Spark adds to the options when it makes a table of its catalogue."""
_NO_TABLES: Final = (
    "format p2pmsg has no tables, since Spark keeps the options of CREATE TABLE and gives a Python "
    "source none of them when the table is read. CREATE TEMPORARY VIEW … USING p2pmsg OPTIONS (…) "
    "reads what there is when it is made"
)
_KEYS: Final = ("security", "securitySecret", "trust", "access")
_SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
COMMIT_TOPIC: Final = "spark.commits"
"""Where each task of the sink says which rows are those of which batch; see `CommittedRows`."""
_PORTS: Final = re.compile(r"(tcp://.+):(\d+)-(\d+)")
_PORTS_MAX: Final = 1024
_SPARKS_OWN: Final = {"checkpointlocation", "queryname"}
"""Options of a query that Spark gives to its sink as well."""
_ENDPOINT: Final = re.compile(r"tcp://.+:\d{1,5}|ipc://.+")


Check = Callable[[str, str], Any]
"""Makes the value of an option, by name and text; `OptionError` where the text is wrong."""


def _paths(name: str, text: str) -> tuple[str, ...]:
    paths = tuple(_local_path(name, item) for item in _list(name, text))
    for path in paths:
        if not Path(path).is_dir():
            raise OptionError(name, f"has no directory {path!r}")
    return paths


def _peers(name: str, text: str) -> tuple[str, ...]:
    if text.strip().startswith(_FILE):
        path = _local_path(name, text.strip())
        read_peers_file(path)
        return (f"{_FILE}{path}",)
    peers = _list(name, text.strip())
    for peer in peers:
        _check_peer(peer)
    return peers


def _topics(name: str, text: str) -> tuple[str, ...]:
    topics = _list(name, text)
    if any(topic.endswith("*") for topic in topics):
        reason = f"takes whole topics; prefixes are for 'subscribePattern': {text!r}"
        raise OptionError(name, reason)
    return topics


def _pattern(name: str, text: str) -> str:
    try:
        if not text.strip():
            raise OptionError(name, f"must be a regular expression, not {text!r}")
        re.compile(text)
    except re.error as error:
        raise OptionError(name, f"must be a regular expression, not {text!r}: {error}") from error
    return text


def _assignment(name: str, text: str) -> dict[str, tuple[str, ...]]:
    found = _json_object(name, text)
    if not found:
        raise OptionError(name, "names no topic")
    for topic, who in found.items():
        if not (isinstance(who, list) and who and all(isinstance(each, str) for each in who)):
            raise OptionError(name, f"must have a list of publishers for {topic!r}: {who!r}")
    return {topic: tuple(who) for topic, who in found.items()}


def _offsets(name: str, text: str) -> str | Wanted:
    word = text.strip().lower()
    if word == "latest" or (word == "earliest" and name != "endingOffsets"):
        return word
    if not word.startswith("{"):
        words = "latest or JSON" if name == "endingOffsets" else "latest, earliest or JSON"
        raise OptionError(name, f"must be {words}, not {text!r}")
    found = _json_object(name, text)
    for topic, offsets in found.items():
        if isinstance(offsets, int) and not isinstance(offsets, bool):
            found[topic] = offsets = {EVERYBODY: offsets}
        if not isinstance(offsets, dict):
            raise OptionError(name, f"must have offsets by publisher for {topic!r}: {offsets!r}")
        for who, offset in offsets.items():
            if type(offset) is not int or not EARLIEST <= offset < 2**63:
                raise OptionError(
                    name, f"must have integers from -2 (earliest) on; {topic!r}, {who!r}: {offset}"
                )
            if name == "endingOffsets" and offset == EARLIEST:
                raise OptionError(name, f"cannot be -2 (earliest): {topic!r}, {who!r}")
    return found


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(name, f"must be a JSON object, not {text!r}: {error}") from error
    if not isinstance(found, dict):
        raise OptionError(name, f"must be a JSON object by topic, not {text!r}")
    return found


def _time(name: str, text: str) -> int:
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


def _list(name: str, text: str) -> tuple[str, ...]:
    items = tuple(dict.fromkeys(item.strip() for item in text.split(",")))
    if not all(items):
        raise OptionError(name, f"must be a list separated by commas, not {text!r}")
    return items


def _local_path(name: str, text: str) -> str:
    if not text.startswith(_FILE):
        return text
    parsed = urlparse(text)
    if parsed.netloc not in ("", "localhost") or not parsed.path:
        raise OptionError(name, f"must name a local file, not {text!r}")
    return unquote(parsed.path)


def _check_peer(peer: str) -> None:
    try:
        p2pmsg.reader.RangeReader(peer).close()
    except p2pmsg.ConfigError as error:
        if error.field == "security":  # it pins a key, of which more is known later
            return
        raise OptionError("peers", f"has no usable endpoint {peer!r}: {error}") from error


def _word(words: Mapping[str, Any]) -> Check:
    def check(name: str, text: str) -> Any:
        word = text.strip().lower()
        if word not in words:
            raise OptionError(name, f"must be {' or '.join(words)}, not {text!r}")
        return words[word]

    return check


_boolean: Final = _word({"true": True, "false": False})
_format: Final = _word({each: each for each in ("raw", "msgpack", "json")})


def _integer(least: int, most: int = 2**31 - 1) -> Check:
    def check(name: str, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise OptionError(name, f"must be an integer from {least} to {most}, not {text!r}")
        return value

    return check


def _endpoints(name: str, text: str) -> tuple[str, ...]:
    found: list[str] = []
    for item in (each.strip() for each in text.split(",")):
        ports = _PORTS.fullmatch(item)
        if ports is None:
            found.append(item)
            continue
        host, first, last = ports[1], int(ports[2]), int(ports[3])
        if not 0 < first <= last < 65_536 or last - first >= _PORTS_MAX:
            raise OptionError(name, f"has no range of at most {_PORTS_MAX} ports: {item!r}")
        found += [f"{host}:{port}" for port in range(first, last + 1)]
    for each in found:
        if not _ENDPOINT.fullmatch(each):
            raise OptionError(name, f"must be tcp://HOST:PORT or ipc://PATH, not {each!r}")
    return tuple(found)


def _topic(name: str, topic: str) -> str:
    size = len(topic.encode("utf-8", "replace"))
    if not 1 <= size <= 255 or "\0" in topic or topic.endswith("*"):
        raise OptionError(
            name, f"must have 1 to 255 bytes, no zero byte, and no * at its end, not {topic!r}"
        )
    return topic


def _file_name(name: str, text: str) -> str:
    path = _local_path(name, text.strip())
    if not path:
        raise OptionError(name, "must name a file")
    if may_be_key(path):  # not shown: it may be a secret
        reason = "must name a file, and has a key; a secret key goes in 'securitySecret'"
        raise OptionError(name, reason)
    return path


def _secret_key(name: str, text: str) -> str:
    """Return a secret key's text, which no error shows."""
    if not p2pmsg.security.is_key_text(text.strip()):
        reason = "must be the secret of a key file: 43 characters of base64url, after 'secret-key'"
        raise OptionError(name, reason)
    return text.strip()


def _not_empty(name: str, text: str) -> str:
    if not text:
        raise OptionError(name, "must not be empty")
    return text


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
        if split_pin(peer)[1]:
            reason = f"names the file {path!r}, which pins a key: pin keys in the file of 'trust'"
            raise OptionError("peers", reason)
        _check_peer(peer)
    return tuple(peers)


def _option(check: Check, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a user set. Field names are the options' names as Spark users write such names."""

    peers: tuple[str, ...] = _option(_peers, ())
    """Endpoints of publishers, separated by commas, or `file:PATH`: one a line, read again when the
    file changes. `peers` or `path` is required."""

    path: tuple[str, ...] = _option(_paths, ())
    """Directories of local logs, separated by commas; for batches only."""

    subscribe: tuple[str, ...] = _option(_topics, ())
    """Topics, separated by commas. One of this and the next two is required."""

    subscribePattern: str | None = _option(_pattern, None)
    """A regular expression that a whole topic matches; topics that come later are read, too."""

    assign: Mapping[str, tuple[str, ...]] | None = _option(_assignment, None)
    """JSON: by topic, which publishers (by name, endpoint, or session as 16 hex digits)."""

    startingOffsets: str | Wanted | None = _option(_offsets, None)  # noqa: RUF009
    """Where a new query starts: `latest` (default of streams, as Spark's Kafka source has it),
    `earliest` (default of batches), or JSON. A query that has a checkpoint goes on from there."""

    endingOffsets: str | Wanted = _option(_offsets, "latest")  # noqa: RUF009
    """Where a batch ends."""

    startingTimestamp: int | None = _option(_time, None)
    """Start at the first message of this time or later, in ns; goes before `startingOffsets`."""

    endingTimestamp: int | None = _option(_time, None)
    """End before the first message of this time or later, in ns."""

    maxOffsetsPerTrigger: int | None = _option(_integer(1, 2**63 - 1), None)
    """At most so many messages a batch, shared out by what each stream has. Default: no limit."""

    minPartitions: int = _option(_integer(1, 10_000), 1)
    """At least so many tasks a batch, if it has so many messages. 1: a task costs some 10 ms."""

    failOnDataLoss: bool = _option(_boolean, True)
    """Whether a range that is gone fails the query. False: it is skipped, exactly, and logged."""

    includeHeaders: bool = _option(_boolean, True)
    """Whether there is a column `headers`."""

    fetchTimeoutMs: int = _option(_integer(10), 40_000)
    """How long a task goes on without any progress, in ms; it asks again meanwhile, over new
    connections. 40 s outlast a peer's restart."""

    valueFormat: str = _option(_format, "")
    """`raw`: a column `value` of bytes. `msgpack`, `json`: the schema's columns out of the value.
    Default: `raw`, and `msgpack` where a schema is given, which is what dict values are."""

    keys: Keys | None = None
    """Of the options `security` or `securitySecret`, and `trust`. Default None: open."""

    @property
    def peers_file(self) -> str | None:
        """The name of the file of peers; None where `peers` has the endpoints themselves."""
        is_file = any(each.startswith(_FILE) for each in self.peers)
        return self.peers[0].removeprefix(_FILE) if is_file else None

    def endpoints(self) -> tuple[str, ...]:
        """Return the peers' endpoints, as the file of peers has them now."""
        return self.peers if self.peers_file is None else read_peers_file(self.peers_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a user set. Field names are the options' names as Spark users write such names."""

    endpoint: tuple[str, ...] = _option(_endpoints)
    """Where tasks publish: endpoints separated by commas, or `tcp://HOST:FIRST-LAST`; a task takes
    the first that is free on its machine, and subscribers connect to all of them. Required."""

    topic: str | None = _option(_topic, None)
    """The topic of rows without one (no column `topic`, or null)."""

    minSubscribers: int = _option(_integer(0), 1)
    """A task waits for so many subscribers before it publishes. 1: rows that nobody receives would
    be lost silently."""

    timeoutMs: int = _option(_integer(10), 30_000)
    """How long a task waits for a free endpoint, for subscribers, and until they have everything,
    each, in ms. 30 s: a restarted subscriber is back by then."""

    writeId: str | None = _option(_not_empty, None)
    """Of a batch: who writes it. A batch that is written again with the same `writeId` and
    `writeBatch` is received once. Default: each write is another one."""

    writeBatch: int = _option(_integer(0, 2**63 - 1), 0)
    """Of a batch with a `writeId`: its number, from 0 on, as `foreachBatch` has it."""

    keys: Keys | None = None
    """Of the options `security`, `securitySecret`, `trust`, `access`. Default None: open."""


def _checks_of(options: Any, **more: Check) -> dict[str, Check]:
    """Return by name what makes the value of each option of a class."""
    found = {each.name: each.metadata["check"] for each in fields(options) if each.metadata}
    keys = {"security": _file_name, "securitySecret": _secret_key, "trust": _file_name}
    return found | keys | more


_SOURCE_CHECKS: Final = _checks_of(SourceOptions)
_SINK_CHECKS: Final = _checks_of(SinkOptions, access=_file_name)


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the options. Names may be in any case.

    Raises:
        OptionError: names what is wrong.
        BridgeError: they are those of a table.

    """
    if options.keys() >= _TABLE:
        raise BridgeError(_NO_TABLES)
    given = _given(options, _SOURCE_CHECKS)
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
    values = {name: _SOURCE_CHECKS[name](name, text) for name, text in given.items()}
    _take_keys(values, given)
    first, last = values.get("startingTimestamp"), values.get("endingTimestamp")
    if first is not None and last is not None and first > last:
        began, text = given["startingTimestamp"], given["endingTimestamp"]
        raise OptionError("endingTimestamp", f"is {text!r}, before startingTimestamp {began!r}")
    _check_offsets_topics(named[0], values)
    _check_order(values)
    return SourceOptions(**values)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return the options; `OptionError` names what is wrong. Names may be in any case."""
    own = {key: value for key, value in options.items() if key.lower() not in _SPARKS_OWN}
    given = _given(own, _SINK_CHECKS, " to the sink")
    if "endpoint" not in given:
        raise OptionError("endpoint", "is required")
    for name, other in (("writeId", "writeBatch"), ("writeBatch", "writeId")):
        if other in given and name not in given:
            raise OptionError(name, f"is required with {other!r}")
    values = {name: _SINK_CHECKS[name](name, text) for name, text in given.items()}
    _take_keys(values, given)
    return SinkOptions(**values)


def _take_keys(values: dict[str, Any], given: Mapping[str, str]) -> None:
    """Make `keys` of the options about keys, and `peers` without the keys that they pin."""
    key, secret, trust, access = (values.pop(name, None) for name in _KEYS)
    peers: dict[str, str] = dict(map(split_pin, values.get("peers", ())))
    if "peers" in values:
        values["peers"] = tuple(peers)
    pins = tuple((place, pinned) for place, pinned in peers.items() if pinned)
    if key is None and secret is None:
        for name in ("trust", "access"):
            if name in given:
                raise OptionError(name, "goes with 'security' or 'securitySecret'")
        if pins:
            reason = f"is required where 'peers' pins a key, as for {pins[0][0]}"
            raise OptionError("security", reason)
        return
    if key is not None and secret is not None:
        raise OptionError("securitySecret", "cannot be given together with 'security'")
    if "path" in given:
        name = "security" if secret is None else "securitySecret"
        raise OptionError(name, "is for peers; 'path' reads files")
    values["keys"] = Keys(key=key, secret=secret or "", trust=trust, access=access, pins=pins)


def is_sink(options: Mapping[str, str]) -> bool:
    """Whether these options are a sink's."""
    names = {name.lower() for name in options}
    return "endpoint" in names and not names & {"peers", "path"}


def check_use(options: Mapping[str, str], *, streaming: bool) -> None:
    """Refuse options that this kind of read does not have, by name."""
    given = _given(options, _SOURCE_CHECKS)
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if name in given:
            kind = "batches" if streaming else "streams"
            raise OptionError(name, f"is for {kind} only")
    if not streaming and given.get("startingOffsets", "").strip().lower() == "latest":
        raise OptionError("startingOffsets", "cannot be 'latest' in a batch, which would be empty")


def _given(options: Mapping[str, str], checks: Mapping[str, Check], of: str = "") -> dict[str, str]:
    """Return the options by their names as we write them, in the order of `checks`."""
    known = {name.lower(): name for name in checks}
    given = {}
    for key, text in options.items():
        name = known.get(key.lower())
        if name is None:
            raise OptionError(key, f"is unknown{of}; there are {', '.join(checks)}")
        given[name] = text
    return {name: given[name] for name in checks if name in given}


def _check_offsets_topics(subscription: str, values: Mapping[str, Any]) -> None:
    """Refuse offsets of topics that are not subscribed to: they would choose nothing."""
    wanted = values[subscription]
    for option in ("startingOffsets", "endingOffsets"):
        offsets = values.get(option)
        for topic in offsets if isinstance(offsets, dict) else ():
            if not (re.fullmatch(wanted, topic) if isinstance(wanted, str) else topic in wanted):
                known = repr(wanted) if isinstance(wanted, str) else ", ".join(wanted)
                raise OptionError(option, f"names the topic {topic!r}; {subscription!r} is {known}")


def _check_order(values: Mapping[str, Any]) -> None:
    """Refuse an end that is before its start."""
    first, last = values.get("startingOffsets"), values.get("endingOffsets")
    if not (isinstance(first, dict) and isinstance(last, dict)):
        return
    for topic, offsets in last.items():
        for who, stop in offsets.items():
            starts = first.get(topic, {})
            start = starts.get(who, starts.get(EVERYBODY, stop))
            if 0 <= stop < start:
                raise OptionError(
                    "endingOffsets",
                    f"has {stop} for topic {topic!r}, {who!r}; startingOffsets has {start}",
                )
