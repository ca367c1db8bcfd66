"""Constructors' keywords laid over a configuration."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import transports
from p2pmsg.checks import check, time_to_wait
from p2pmsg.config import OnEnd, PublisherConfig, SubscriberConfig
from p2pmsg.errors import ClosedError, ConfigError, MessageError, P2PError, translated
from p2pmsg.publisher.packing import PACKING_ERRORS, packing_error
from p2pmsg.topics import check_topic

if TYPE_CHECKING:
    from pathlib import Path

    from p2pmsg.queue.config import PusherConfig
    from recovery import CursorConfig
    from recovery.log import LogConfig

Commit = Literal["explicit", "message"]
TOPICS_BYTES_MAX: Final = 60_000
"""All topics of a subscriber go to the publisher in one request, which has 64 KiB at most."""
_FOREVER_S: Final = 1e9
C = TypeVar("C", PublisherConfig, SubscriberConfig, "PusherConfig")


def laid_over(config: C, **given: Any) -> C:
    """Return `config` with the keywords that are not None."""
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(config, **changes) if changes else config


def check_on_end(on_end: OnEnd) -> OnEnd:
    """Return `on_end`, or raise `ConfigError`."""
    ok = callable(on_end) or on_end in ("wait", "stop")
    check("on_end", on_end, ok, '"wait", "stop" or a callable')
    return on_end


def check_commit(commit: Any, interval: float | None) -> tuple[Commit, float | None]:
    """Return `commit` and `commit_interval`, or raise `ConfigError`."""
    check("commit", commit, commit in ("explicit", "message"), '"explicit" or "message"')
    if interval is not None:
        check("commit", commit, commit == "explicit", "left out where commit_interval is given")
    return commit, interval


def cursor_config(
    cursor: "str | Path | CursorConfig | None", commit: str, interval: float | None
) -> "CursorConfig | None":
    """Return the settings of a cursor, or None without one."""
    if cursor is None:
        check("commit", commit, commit == "explicit", "left out without a cursor")
        check("commit_interval", interval, interval is None, "left out without a cursor")
        return None
    from recovery import CursorConfig

    if isinstance(cursor, CursorConfig):
        return cursor
    try:
        return CursorConfig(cursor)
    except ValueError as error:
        raise ConfigError("cursor", "a path or a CursorConfig", cursor) from error


def log_config(log: "LogConfig | str | Path | None") -> "LogConfig | None":
    """Return the settings of a log, of which the folder alone may be given; None without one."""
    if not isinstance(log, str | os.PathLike):
        return log
    from recovery.log import LogConfig

    check("log", log, bool(os.fspath(log)), "a folder")
    return LogConfig(log)


def check_columns(
    values: Any, keys: Sequence[str | None] | None, timestamps_ns: Sequence[int] | None
) -> int:
    """Return how many values there are to publish; raise where that is not clear."""
    odd = isinstance(values, str | bytes | bytearray | Mapping)
    if odd or not (hasattr(values, "__len__") and hasattr(values, "__getitem__")):
        kind = type(values).__name__
        raise MessageError("values", f"must be a list or another sequence, not of type {kind}")
    count = len(values)
    for field, column in (("keys", keys), ("timestamps_ns", timestamps_ns)):
        if column is not None and len(column) != count:
            raise ConfigError(f"len({field})", f"len(values) = {count}", len(column))
    if not count:
        raise ConfigError("len(values)", "at least 1", 0)
    return count


def publish_error(error: BaseException, topic: Any, value: Any) -> BaseException:
    """Return what `publish` raises instead of `error`."""
    if isinstance(error, P2PError):
        return error
    if isinstance(error, transports.TransportError):
        return ClosedError("the publisher", str(error))
    if isinstance(error, TypeError) and not isinstance(topic, str):
        return MessageError("topic", f"must be a str, not {topic!r}")
    if isinstance(error, PACKING_ERRORS):
        return packing_error("value", value, error)
    return error


def check_name(name: Any) -> str:
    """Return `name`, or raise `ConfigError`."""
    if not isinstance(name, str) or len(name.encode(errors="replace")) > 255:
        raise ConfigError("name", "a str of at most 255 bytes", name)
    return name


def parse_endpoint(text: str) -> transports.Endpoint:
    """Return an endpoint's parts, or raise `ConfigError`."""
    with translated():
        return transports.parse_endpoint(text)


def check_endpoints(endpoints: str | Sequence[str]) -> list[transports.Endpoint]:
    """Return the endpoints that a subscriber connects to, or raise `ConfigError`."""
    texts = [endpoints] if isinstance(endpoints, str) else list(endpoints)
    if not texts:
        raise ConfigError("endpoints", "at least one endpoint", endpoints)
    with translated():
        return [transports.parse_endpoint(text).require_connectable() for text in texts]


def check_topics(topics: str | Sequence[str] | None) -> list[str]:
    """Return the topics and prefixes that a subscriber takes; empty: all."""
    if topics is None:
        return []
    names = [topics] if isinstance(topics, str) else list(topics)
    check("topics", names, bool(names), "at least one, or None or '*' for all")
    for name in names:
        try:
            if name != "*":
                check_topic(name.removesuffix("*") if isinstance(name, str) else name)
        except MessageError as error:
            limit = f"topics, or prefixes ending in '*' ({error})"
            raise ConfigError("topics", limit, name) from error
    size = sum(len(name.encode()) + 3 for name in names)
    check("topics", size, size <= TOPICS_BYTES_MAX, f"of {TOPICS_BYTES_MAX} bytes at most")
    return names


def seconds_ns(timeout: float) -> int:
    """Return so many seconds in ns; `ConfigError` for no number."""
    if type(timeout) is not float or not 0.0 <= timeout <= _FOREVER_S:
        # What most give is spared this: 1 µs with cold caches.
        timeout = time_to_wait("timeout", timeout)
    return int(timeout * 1e9)
