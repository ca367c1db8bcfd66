"""The application's `on_gap`, `on_end` and `on_invalid`: what may be given, how it is called."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from p2pmsg.checks import check, is_async, makes_values
from p2pmsg.errors import LossReport, MessagesLostError, RewoundReport
from p2pmsg.peers.reading import Report
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


def report_of(policy: GapPolicy, stream: Stream, loss: Loss) -> Report | None:
    """Return what reports a loss as the policy of its topic says; None: nothing does.

    Args:
        policy: of the subscriber.
        stream: of the loss.
        loss: what is gone, or that the publisher went back.

    """
    rewound = isinstance(loss, Rewound)
    kind = RewoundReport if rewound else LossReport
    report = kind(stream.topic, stream.peer.session, stream.peer.name, loss)
    on_gap = policy.of(stream.topic)
    if rewound or on_gap != "skip":
        logged = partial(_log.warning, "%s", report)
        return report_by(on_gap, report, MessagesLostError(report)) or logged
    return None


def report_by(how: Any, report: object, error: Exception) -> Report | None:
    """Return what reports something as the application wants it.

    Args:
        how: a callable, which gets `report`; `raise` or `stop`: `error` is raised, by C alone, so
            that an interrupt comes before or after it. Else None is returned.
        report: what has happened.
        error: the same.

    """
    if callable(how):
        return partial(how, report)
    return partial((_ for _ in ()).throw, error) if how in ("raise", "stop") else None
