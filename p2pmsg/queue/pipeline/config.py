"""Settings of a pipeline, and what its ends count."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from p2pmsg.checks import check, check_fields
from p2pmsg.stats import Stats

_FRAME_BYTES_LIMIT: Final = 8 * 2**20
DEALT_BYTES_MAX: Final = 4 * 2**20
"""Bytes that one puller may have and not have confirmed; it has less while it is slow: what it did
in 0.2 s, or 64 jobs, or one frame."""
GRACE_NS: Final = 200_000_000
"""How long a puller whose connection broke has to come back before its share is dealt to others: a
connection is made again within some 50 ms."""
PULLERS_MAX: Final = 256
"""How many pullers there may be; each has a socket of its own. Others wait until one leaves."""
FRAME_BYTES: Final = 128 * 1024
"""Gathered jobs are dealt when they have this many bytes: jobs of 128 bytes travel 8 % faster than
with half of it, and no faster with twice as much. A quarter of `buffer_bytes_max` at most."""
FRAME_JOBS: Final = 1024
"""… or when they are so many; with slow pullers sooner: when they are an eighth of what the fastest
may have, and 256 at least."""
LINGER_MS: Final = 1.0
"""How long a job waits at most for others to share its frame, while jobs follow one another
closely."""


def refuse_queue_options(known: Collection[str], options: dict[str, Any]) -> None:
    """Raise `ConfigError` for an option that a pipeline does not have, such as `log`."""
    for option, value in options.items():
        limit = 'left out with mode="pipeline", which has ' + ", ".join(known)
        check(option, value, option in known, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """How a pipeline's pusher works. `ConfigError` for a value out of its limits."""

    buffer_bytes_max: int = 64 * 2**20
    """Bytes of jobs that are accepted and not confirmed. 64 MiB: a second of work at 500,000 jobs
    of 128 bytes a second."""

    on_full: Literal["block", "raise"] = "block"
    """What `push` does at `buffer_bytes_max`: wait, with a warning when that takes 5 s, or raise
    `SendQueueFullError`."""

    ack_timeout: float = 5.0
    """How long a puller may be silent, in seconds, before its share is dealt to others. 5.0: fifty
    signs of life; it need not be as long as a job, since a thread of its own sends them."""

    message_bytes_max: int = 1024 * 1024
    """Largest job, packed. 1 MiB, as for messages."""

    def __post_init__(self) -> None:
        check_fields(
            self, buffer_bytes_max=64 * 1024, ack_timeout=0.5,
            message_bytes_max=(64, _FRAME_BYTES_LIMIT),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PipelinePullerStats(Stats):
    """One puller, as the pusher sees it."""

    name: str
    """Its name, for people."""
    in_hand: int
    """Jobs dealt to it that it has not confirmed."""
    done: int
    """Jobs that it confirmed."""
    allowed: int
    """How many jobs it may have."""


@dataclass(frozen=True, slots=True)
class PipelinePusherStats(Stats):
    """A pipeline pusher's counters; `pushed = done + in_flight + undeliverable`, at any moment."""

    endpoint: str
    """Where pullers connect to."""
    pushed: int
    """Jobs accepted."""
    done: int
    """Jobs that a puller confirmed."""
    in_flight: int
    """Jobs that nobody has confirmed: gathered, waiting or with a puller."""
    buffered_bytes: int
    """What these take of `buffer_bytes_max`, in bytes."""
    redealt: int
    """Jobs that were dealt again, since their puller died, fell silent or left."""
    retransmitted: int
    """Frames sent again on the recovery channel, since a puller missed them."""
    refused: int
    """Confirmations of what was never dealt, and what was said of a share that is gone."""
    frames_invalid: int
    """Frames that were dropped, since they could not be read, and those of pullers that are refused
    (256 are there)."""
    pullers: list[PipelinePullerStats] = field(default_factory=list)
    """The pullers that are there."""
    connections_refused: int = 0
    """Connections of pullers that were refused by their keys, with `security`."""
    denied: int = 0
    """Frames of those whose keys have no right to `pull`, with an access file."""
    connections_revoked: int = 0
    """Connections that were ended since their keys were revoked, or are known no more."""
    undeliverable: int = 0
    """Jobs that were given up, since the connection of their puller ended each time that they were
    sent, five times alone; logged as errors. They may be too large for what is between."""


@dataclass(frozen=True, slots=True)
class PipelinePullerCounters(Stats):
    """A pipeline puller's counters."""

    received: int
    """Jobs that the application was given."""
    ready: int
    """Frames that are there and were not begun."""
    lost: int
    """Frames that a pusher had sent and that did not come before it died. What it had not sent
    nobody can count here."""
    duplicates: int
    """Frames that came twice, and were dropped."""
    frames_invalid: int
    """Frames that were dropped, since they could not be read."""
    connected: int
    """How many of the pushers have it as a puller now."""
    answering: dict[str, bool] = field(default_factory=dict)
    """The same by endpoint."""
    invalid: int = 0
    """Jobs whose value did not fit `type`; they are not in `received`."""
    denied: dict[str, str] = field(default_factory=dict)
    """By endpoint, what is denied there now: a pusher gives us no right to `pull`, or has none to
    `push` here."""
    frames_late: int = 0
    """Frames that were dropped, since they are of a share that it does not have, as when its share
    was dealt to others: their jobs are done there."""
