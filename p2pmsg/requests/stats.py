"""What requesters and responders count."""

from dataclasses import dataclass

from p2pmsg.stats import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class AskingStats(Stats):
    """A requester's counters."""

    retries: int
    """How often a request was asked again."""
    strays: int
    """Answers that came, and that nobody waited for any more."""
    reconnects: int
    """Connections that were made again. ZeroMQ had given them up, as it does after a frame of more
    than 16 MiB or one that breaks its protocol, or requests that were over had filled the queue."""
    unanswered: dict[str, str]
    """What is found at endpoints that have never answered a request, by endpoint. It looks when a
    quarter of a request's time has passed; when all of it has, that is logged as a warning, once,
    and stands in the `TimeoutError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponderStats(Stats):
    """A responder's counters."""

    answered: int
    """Replies that were sent."""
    raised: int
    """Handlers that raised."""
    refused: int
    """Requests that were not taken, since too many waited."""
    expired: int
    """Requests that were not begun, since their requester had stopped waiting by then: its
    time-out, counted from when they were received here, was over."""
    unsent: int
    """Replies that did not fit into the requester's queue."""
    cached: int
    """Requests that were answered from the cache, or were at work already."""
    frames_invalid: dict[str, int]
    """Frames that were dropped, by reason."""
    values_invalid: int
    """Requests whose value did not fit its type; all were answered so."""
    denied: int
    """Requests that were denied, as their keys have no right to `request` that topic."""
    connections_refused: int
    """Connections that were refused by their keys, with `security`."""
    connections_revoked: int
    """Connections that were ended since their keys were revoked, or are known no more."""
