"""What becomes of an event whose handler raised."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from p2pmsg.app.events import Event
from p2pmsg.toolkit import at_least, check, check_fields, check_runs, check_topic

_WORDS = ("log", "retry", "dead_letter", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Keeps what no handler could do, and goes on with the next.

    A dead letter is a dict of `handler`, `error`, `attempts`, `topic`, `publisher`, `session`,
    `sequence`, `key`, `timestamp_ns`, `headers` and `value`; of `error` the first 16,384
    characters. Give one of `publish`, `push` and `call`. Where it cannot be kept, the app stops,
    and the message is not committed.
    """

    publish: str | None = None
    """Endpoint at which the app publishes dead letters. Default None."""

    topic: str = "dead_letters"
    """The topic under which it does."""

    push: str | None = None
    """Endpoint at which the app pushes them as jobs, for pullers. Default None."""

    log: str | Path | None = None
    """Directory of that publisher's or pusher's log. Default None: what nobody has taken is gone
    when the app ends."""

    message_bytes_max: int | None = None
    """Largest dead letter, packed, in bytes. Default None: what readers take by default, less
    512 KiB for the rest of a frame: 3.5 MiB with `publish` and 15.5 MiB with `push`, so that what
    wraps a message of 1 MiB fits. For more, its readers' configuration needs a `frame_bytes_max`
    that is 512 KiB larger than it: one with less is disconnected at such a letter."""

    call: Callable[[Event, Exception], Any] | None = None
    """Called with the event and the exception instead, plain or async. Default None."""

    def __post_init__(self) -> None:
        check_fields(self, message_bytes_max=1024)
        given = [each for each in (self.publish, self.push, self.call) if each is not None]
        check("DeadLetter", self, len(given) == 1, "given one of publish, push and call")
        check_runs("call", self.call)
        check_topic(self.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Tries again, some times, with a pause that doubles.

    A message is tried again in its place: the next one of its key, or of its stream where
    `concurrency` is 1, waits. A job goes back to its pusher, and may be tried by another worker.
    """

    attempts: int = 3
    """How often it is tried in all; for jobs, how often it is delivered. 3: enough for what passes
    by itself in a second. A job whose pusher has a lower `deliveries_max` (5 by default) gets no
    more than that: `then` is applied at its last delivery, and a warning says so."""

    delay: float = 0.1
    """The first pause, in seconds; each further one is twice as long. 0.1."""

    delay_max: float = 30.0
    """The longest pause, in seconds. 30.0, as the queue has it."""

    then: Any = "log"
    """What becomes of it after that: `log`, `stop`, for jobs `dead_letter`, a `DeadLetter`, or a
    callable. Default `log`. A job that has failed `deliveries_max` times before its `attempts` is
    not acknowledged by `log`: it becomes a dead letter of its pusher."""

    def __post_init__(self) -> None:
        check_fields(self, attempts=1)
        at_least("delay_max", self.delay_max, self.delay)
        ok = self.then in ("log", "stop", "dead_letter") if isinstance(self.then, str) else True
        ok = ok and (isinstance(self.then, str | DeadLetter) or callable(self.then))
        check("then", self.then, ok, '"log", "stop", "dead_letter", a DeadLetter or a callable')

    def pause(self, attempt: int) -> float:
        """Return how long to wait after the attempt number `attempt`, in seconds."""
        return float(min(self.delay_max, self.delay * 2.0 ** min(attempt - 1, 60)))


OnError = (
    Literal["log", "retry", "dead_letter", "stop"]
    | Retry
    | DeadLetter
    | Callable[[Event, Exception], Any]
)
"""What becomes of an event whose handler raised; see `App.subscriber` and `App.worker`."""


def parse(on_error: Any, kind: str) -> tuple[Retry | None, Any]:
    """Return how to try again (None: not at all), and what follows, for a kind of event."""
    retry: Retry | None = None
    if on_error == "retry" and kind == "message":
        on_error = Retry()
    elif on_error == "retry" and kind == "job":
        return None, "reject"  # by the pusher's own rules
    if isinstance(on_error, Retry):
        retry, on_error = on_error, on_error.then
    ok = isinstance(on_error, DeadLetter) or callable(on_error) or on_error in _WORDS
    check("on_error", on_error, ok, f"one of {_WORDS}, a Retry, a DeadLetter or a callable")
    check_runs("on_error", on_error)
    if on_error == "dead_letter":
        limit = "a DeadLetter that says where to (the word alone is for workers)"
        check("on_error", on_error, kind == "job", limit)
    if kind in ("request", "timer"):
        ok = retry is None and on_error in ("log", "stop")
        check("on_error", on_error, ok, f'"log" or "stop" for a {kind}')
    if retry is not None:
        check("on_error", retry, isinstance(retry, Retry), "a Retry")
    return retry, on_error
