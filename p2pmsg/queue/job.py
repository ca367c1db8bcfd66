"""A job that a worker has."""

from collections.abc import Callable
from typing import Any, Final, Generic, Literal, Protocol, Self

from p2pmsg import codec
from p2pmsg.checks import at_least, check, time_to_wait
from p2pmsg.errors import ConfigError, InvalidValueError
from p2pmsg.message import T_co
from p2pmsg.queue.frames import Detail
from transports.own_log import own_log as _log

HELD, ACKED, REJECTED, DISCARDED, GONE = range(5)
STATES = ("held", "acked", "rejected", "discarded", "gone")

OnInvalidJob = Literal["raise", "skip"] | Callable[[InvalidValueError], object]
"""What is done where a job's value does not fit its type, besides making it a dead letter."""


class _Core(Protocol):
    """What a job is acknowledged at: a `PullerCore`."""

    def ack(self, job: "Job") -> bool: ...
    def refuse(self, job: "Job", state: int, reason: str, delay: float | None = None) -> bool: ...
    def extend(self, job: "Job", seconds: float) -> bool: ...


class _Nobody:
    """What the copy of a job is acknowledged at, which is no worker's."""

    def ack(self, job: "Job") -> bool:
        return False

    def refuse(self, job: "Job", state: int, reason: str, delay: float | None = None) -> bool:
        return False

    def extend(self, job: "Job", seconds: float) -> bool:
        return False


class _ByBatch:
    """What a job is acknowledged at that is done with the others of its frame."""

    def ack(self, job: "Job") -> bool:
        return True

    def refuse(self, job: "Job", state: int, reason: str, delay: float | None = None) -> bool:
        raise ConfigError("acknowledge", '"each" for jobs that are rejected or extended', "batch")

    def extend(self, job: "Job", seconds: float) -> bool:
        return self.refuse(job, HELD, "")


BY_BATCH: Final = _ByBatch()


class Origin(codec.Struct, gc=False):
    """What the jobs of one frame have in common."""

    core: _Core
    session: int
    pushed_ns: int
    delivered_ns: int
    deliveries_max: int
    """Of the pusher."""


class Job(codec.Struct, Generic[T_co], gc=False):
    """A job that this worker has in flight, until it is acknowledged, rejected or discarded.

    Used as a context manager (`with`, `async with`) it is acknowledged at the end of the block, or
    rejected if that raises; the exception goes on. What was done with it inside the block stays so.
    By the batch (`acknowledge="batch"`) the block's end says nothing, and `reject`, `discard` and
    `extend` raise `ConfigError`.

    A struct of msgspec, because one is made for every job: 80 ns, and a plain class takes 300.

    What comes out of pickling, or out of a deep copy, has all that is to be read, and is `gone`
    where the job was `held`: it can be acknowledged here only.

    Attributes:
        value: what was pushed, or what the puller makes of it (its argument `type`): of a
            `Job[Trade]` it is a Trade.
        sequence: its number in the queue; the same at each delivery.
        delivery: the number of this delivery.
        state: `held`, `acked`, `rejected`, `discarded`, or `gone`: no longer this worker's, because
            it took longer than `job_timeout`, or because the pusher heard nothing of this worker
            for `ack_timeout`.

    """

    value: T_co
    delivery: int
    sequence: int
    _origin: Origin
    _detail: Detail | None
    _state: int = HELD
    _begun_ns: int = 0
    _extended_ns: int = 0

    @property
    def state(self) -> str:
        """See the class."""
        return STATES[self._state]

    @property
    def key(self) -> str | None:
        """What it belongs to; of one key, one job at a time is with any worker."""
        return self._detail.key if self._detail is not None else None

    @property
    def headers(self) -> dict[str, Any] | None:
        """Further fields by name; None without any."""
        return self._detail.headers if self._detail is not None else None

    @property
    def priority(self) -> int:
        """0 to 9; higher ones go first."""
        return self._detail.priority if self._detail is not None else 0

    @property
    def message_id(self) -> str | None:
        """The id by which the pusher recognizes duplicates."""
        return self._detail.message_id if self._detail is not None else None

    @property
    def delivery_count(self) -> int:
        """How often it was delivered, this time included; above 1 it may have been begun before."""
        return self._detail.delivery_count if self._detail is not None else 1

    @property
    def is_last_delivery(self) -> bool:
        """Whether the pusher makes it a dead letter if it fails this time (`deliveries_max`)."""
        failures = self._detail.failures if self._detail is not None else 0
        return failures + 1 >= self._origin.deliveries_max

    @property
    def pushed_ns(self) -> int:
        """When it was pushed, in ns since the epoch."""
        return self._detail.pushed_ns if self._detail is not None else self._origin.pushed_ns

    @property
    def first_delivered_ns(self) -> int:
        """When it was delivered for the first time, in ns since the epoch."""
        if self._detail is not None and self._detail.first_delivered_ns:
            return self._detail.first_delivered_ns
        return self._origin.delivered_ns

    @property
    def last_delivered_ns(self) -> int:
        """When it was delivered this time, in ns since the epoch."""
        return self._origin.delivered_ns

    @property
    def last_reason(self) -> str:
        """Why the delivery before this one failed; empty where none did."""
        return self._detail.reason if self._detail is not None else ""

    @property
    def session(self) -> int:
        """The 64-bit id of the queue."""
        return self._origin.session

    def ack(self) -> bool:
        """Say that it is done; False where it is not this worker's any more.

        It counts all the same where no other worker has done it by then, also as a dead letter.
        """
        return self._origin.core.ack(self)

    def reject(self, reason: str = "", delay: float | None = None) -> bool:
        """Say that it could not be done, so that it is tried again.

        Args:
            reason: why; its first 4096 characters come with the next delivery.
            delay: how long it is to wait, in seconds; the pusher cuts it to 1 h. Default: as the
                pusher has it, 0.1 s after the first failure, then twice as long each time.

        Returns:
            False where it is not this worker's any more.

        Raises:
            ConfigError: `delay` is no number.

        """
        if delay is not None:
            delay = time_to_wait("delay", delay)
        return self._origin.core.refuse(self, REJECTED, reason, delay)

    def discard(self, reason: str = "") -> bool:
        """Say that no worker can do it: it becomes a dead letter. False as with `ack`.

        Args:
            reason: why, for the dead letter; its first 4096 characters are kept.

        """
        return self._origin.core.refuse(self, DISCARDED, reason)

    def extend(self, seconds: float) -> bool:
        """Ask for `seconds` from now on, where it takes longer than `job_timeout`; False as above.

        There is no need to call it for a job that merely takes longer than `ack_timeout`: a living
        worker's jobs are extended by its heartbeats. It is reported to the pusher, which takes its
        jobs back from a worker that answers for none for longer than `job_timeout` and what it
        asked for, at most 24 h.

        Raises:
            ConfigError: `seconds` is not a number of at least 0.

        """
        at_least("seconds", seconds, 0)
        return self._origin.core.extend(self, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None and self._state in (HELD, GONE):
            self._origin.core.ack(self)
        elif self._state == HELD and kind is not None and self._origin.core is not BY_BATCH:
            self._origin.core.refuse(self, REJECTED, f"{kind.__name__}: {error}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: object
    ) -> None:
        self.__exit__(kind, error, trace)

    def __reduce__(self) -> tuple[Any, ...]:
        here = self._origin
        origin = Origin(
            _Nobody(), here.session, here.pushed_ns, here.delivered_ns, here.deliveries_max
        )
        state = GONE if self._state == HELD else self._state
        times = self._begun_ns, self._extended_ns
        return Job, (
            self.value, self.delivery, self.sequence, origin, self._detail, state, *times,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Job {self.sequence} {self.state}, delivery {self.delivery_count}>"


def check_on_invalid(on_invalid: OnInvalidJob) -> OnInvalidJob:
    """Return it; `ConfigError` where it is none."""
    ok = callable(on_invalid) or on_invalid in ("raise", "skip")
    check("on_invalid", on_invalid, ok, '"raise", "skip" or a callable')
    return on_invalid


def report_invalid(error: InvalidValueError, on_invalid: OnInvalidJob) -> None:
    """Report a job whose value does not fit: by an exception, to the callable, or in the log."""
    if on_invalid == "raise":
        raise error
    if callable(on_invalid):
        on_invalid(error)
    else:
        _log.warning("%s", error)
