"""What is given to a pusher, checked."""

import ipaddress
import time
from dataclasses import replace
from typing import Any, Final

import transports
from p2pmsg.config import at_least, of_kind
from p2pmsg.errors import ConfigError, translated
from p2pmsg.publisher.batch import (
    PACKING_ERRORS,
    check_key,
    check_size,
    pack_headers,
    packing_error,
)
from p2pmsg.queue.config import PusherConfig
from p2pmsg.queue.journal.records import JournalState
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.queue.rules import PRIORITY_MAX, QueuedJob
from p2pmsg.wire import encoder

_DELAY_MAX: Final = 366 * 86400.0
_MESSAGE_ID_BYTES_MAX: Final = 255


def job_of(
    value: Any, key: Any, priority: Any, delay: Any, message_id: Any, headers: Any, bytes_max: int
) -> QueuedJob:
    """Return a job that has no sequence yet, or raise as `Pusher.push` says."""
    check_key(key)
    if type(priority) is not int or not 0 <= priority <= PRIORITY_MAX:
        raise ConfigError("priority", f"an int from 0 to {PRIORITY_MAX}", priority)
    at_least("delay", delay, 0)
    if delay > _DELAY_MAX:
        raise ConfigError("delay", f"at most {_DELAY_MAX:.0f} s", delay)
    if message_id is not None:
        ok = isinstance(message_id, str) and message_id != ""
        if not ok or len(message_id.encode(errors="replace")) > _MESSAGE_ID_BYTES_MAX:
            limit = f"a str of 1 to {_MESSAGE_ID_BYTES_MAX} bytes"
            raise ConfigError("message_id", limit, message_id)
    try:
        payload = encoder.encode(value)
    except PACKING_ERRORS as error:
        raise packing_error("value", value, error) from error
    raw = pack_headers(headers)
    packed_headers = None if raw is None else bytes(raw)
    check_size("job", len(payload) + len(packed_headers or b""), bytes_max)
    wall_ns = time.time_ns()
    due_ns = wall_ns + round(delay * 1e9) if delay else 0
    return QueuedJob(0, payload, wall_ns, key, priority, message_id, packed_headers, due_ns)


def bind(endpoint: str) -> transports.ZmqQueueServer:
    """Return a bound socket."""
    with translated():
        return transports.ZmqQueueServer(endpoint, context=transports.context())


def admin_refusal(admin: str, endpoint: str) -> str | None:
    """Return why dead letters are not administered over the wire; None where they are."""
    if admin == "always" or (admin == "local" and is_local(endpoint)):
        return None
    if admin == "never":
        return 'the pusher administers no dead letters over the wire (admin="never")'
    return (
        f"the pusher is bound to {endpoint}, neither loopback nor a Unix socket, so anybody could "
        'do this; PusherConfig(admin="always") allows it, and a log can be read by its directory'
    )


def is_local(endpoint: str) -> bool:
    """Whether only this machine can connect."""
    at = transports.parse_endpoint(endpoint)
    if at.scheme != "tcp":
        return at.scheme in ("ipc", "inproc")
    try:
        return ipaddress.ip_address(at.host).is_loopback
    except ValueError:
        return at.host == "localhost"


def config_of(
    config: PusherConfig | None,
    ack_timeout: float | None,
    deliveries_max: int | None,
    in_flight_max: int | None,
    job_timeout: float | None,
) -> PusherConfig:
    """Return `config` with the keywords that were given."""
    if config is None:
        config = PusherConfig()
    of_kind("config", config, PusherConfig)
    queue: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    if ack_timeout is not None:
        at_least("ack_timeout", ack_timeout, 0.05)
        queue["ack_timeout_ms"] = ack_timeout * 1000
    if deliveries_max is not None:
        if type(deliveries_max) is not int or not 1 <= deliveries_max <= 1_000_000:
            raise ConfigError("deliveries_max", "an int from 1 to 1000000", deliveries_max)
        queue["deliveries_max"] = deliveries_max
    if job_timeout is not None:
        at_least("job_timeout", job_timeout, 0)
        changes["job_timeout_ms"] = job_timeout * 1000
    if in_flight_max is not None:
        changes["in_flight_max"] = in_flight_max
    if queue:
        changes["queue"] = replace(config.queue, **queue)
    return replace(config, **changes) if changes else config


def restore(core: PusherCore, state: JournalState, *, now_ns: int) -> int:
    """Take over what an earlier run left in the log; returns how many jobs."""
    store = core.queue.store
    count = 0
    if state.is_incomplete:
        # Who was given what right before it is not known.
        store.close_keys(now_ns=now_ns)
        state.holders.clear()
    for job, holder in state.jobs():
        store.restore(job, holder, now_ns=now_ns)
        count += 1
    holders = {holder for holder, _ in state.holders.values()}
    core.expect({w: state.processes[w] for w in holders if w in state.processes})
    for dead in sorted(state.dead.values(), key=lambda dead: dead.at_ns):
        store.restore_dead(dead)
    for message_id, (sequence, pushed_ns) in _by_time(state.seen):
        age_ns = max(0, store.wall_ns(now_ns) - pushed_ns)
        store.dedup.add(message_id, sequence, now_ns=now_ns - age_ns)
    return count


def _by_time(seen: dict[str, tuple[int, int]]) -> list[tuple[str, tuple[int, int]]]:
    """Sort message ids as they are forgotten; in the log, copies come late."""
    return sorted(seen.items(), key=lambda item: item[1][1])
