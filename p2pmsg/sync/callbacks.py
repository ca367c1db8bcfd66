"""The application's `on_gap`, `on_end` and `on_invalid`: what may be given, how it is called."""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from p2pmsg.checks import check, is_async, makes_values
from p2pmsg.errors import LossReport, MessagesLostError, RewoundReport
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.sessions import Stream
from recovery import Loss, Rewound
from transports.own_log import own_log as _log


def check_callbacks(callbacks: Iterable[object], *, may_be_async: bool) -> None:
    """Refuse callbacks that would do nothing when they are called.

    Args:
        callbacks: what was given; what cannot be called is left to others.
        may_be_async: whether what they return is awaited.

    Raises:
        ConfigError: one has a `yield`, or is a coroutine function that nobody would await.

    """
    limit = "functions without yield"
    if not may_be_async:
        limit = "plain functions, without yield and without asyncio"
    for one in callbacks:
        ok = not makes_values(one) and (may_be_async or not is_async(one))
        check("on_gap, on_end, on_invalid", one, ok, limit)


def report_loss(
    policy: GapPolicy, stream: Stream, loss: Loss, call: Callable[[Any, Any], object]
) -> None:
    """Report a loss as the policy of its topic says: raise it, call with it, or log it.

    Args:
        policy: of the subscriber.
        stream: of the loss.
        loss: what is gone, or that the publisher went back.
        call: calls a callback with its report.

    """
    rewound = isinstance(loss, Rewound)
    kind = RewoundReport if rewound else LossReport
    report = kind(stream.topic, stream.peer.session, stream.peer.name, loss)
    on_gap = policy.of(stream.topic)
    if on_gap == "raise":
        raise MessagesLostError(report)
    if callable(on_gap):
        call(on_gap, report)
    elif rewound or on_gap != "skip":
        _log.warning("%s", report)


def call_back(
    callback: Callable[[Any], Any], report: Any, *, awaits: bool
) -> Awaitable[Any] | None:
    """Call a callback.

    Args:
        callback: of the application.
        report: what it gets.
        awaits: whether the caller awaits what it returns.

    Returns:
        What the caller is to await, if it awaits.

    """
    result = callback(report)
    return result if awaits and inspect.isawaitable(result) else None
