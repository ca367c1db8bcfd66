"""Constructors' keywords laid over a configuration."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import transports
from p2pmsg.config import OnFull, PublisherConfig, SubscriberConfig, at_least
from p2pmsg.errors import ConfigError, EndpointError, MessageError
from p2pmsg.publisher_core import check_topic


def publisher_config(
    config: PublisherConfig | None,
    replay_bytes: int | None,
    on_full: OnFull | None,
    stall_ms: float | None,
) -> PublisherConfig:
    """Return `config` with the keywords that were given."""
    config = config or PublisherConfig()
    changes: dict[str, Any] = {}
    if replay_bytes is not None:
        at_least("replay_bytes", replay_bytes, 0)
        changes["replay"] = replace(config.replay, bytes_max=replay_bytes)
    if on_full is not None:
        changes["on_full"] = on_full
    if stall_ms is not None:
        changes["stall_ms"] = stall_ms
    return replace(config, **changes) if changes else config


def subscriber_config(
    config: SubscriberConfig | None, receive_bytes: int | None, repair_timeout: float | None
) -> SubscriberConfig:
    """Return `config` with the keywords that were given."""
    config = config or SubscriberConfig()
    changes: dict[str, Any] = {}
    if receive_bytes is not None:
        changes["receive_bytes"] = receive_bytes
    if repair_timeout is not None:
        at_least("repair_timeout", repair_timeout, 0.001)
        changes["nack"] = replace(config.nack, deadline_ms=repair_timeout * 1000)
    return replace(config, **changes) if changes else config


def check_name(name: Any) -> str:
    """Return `name`, or raise `ConfigError`."""
    if not isinstance(name, str) or len(name.encode(errors="replace")) > 255:
        raise ConfigError("name", "a str of at most 255 bytes", name)
    return name


def check_endpoints(endpoints: str | Sequence[str]) -> list[transports.Endpoint]:
    """Return the endpoints that a subscriber connects to, or raise `EndpointError`."""
    texts = [endpoints] if isinstance(endpoints, str) else list(endpoints)
    if not texts:
        raise ConfigError("endpoints", "at least one endpoint", endpoints)
    try:
        return [transports.parse_endpoint(text).require_connectable() for text in texts]
    except transports.EndpointError as error:
        raise EndpointError(error) from error


def check_topics(topics: str | Sequence[str] | None) -> list[str]:
    """Return the topics and prefixes that a subscriber takes; empty: all."""
    if topics is None:
        return []
    names = [topics] if isinstance(topics, str) else list(topics)
    for name in names:
        try:
            if name != "*":
                check_topic(name.removesuffix("*") if isinstance(name, str) else name)
        except MessageError as error:
            limit = f"topics, or prefixes ending in '*' ({error})"
            raise ConfigError("topics", limit, name) from error
    return names
