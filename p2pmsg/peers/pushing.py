"""What both faces of a pusher share: all that never waits."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from p2pmsg.checks import check, checked
from p2pmsg.codec import SCALARS, encoder, exact_encoder
from p2pmsg.driver.section import Section
from p2pmsg.peers.base import BoundBase
from p2pmsg.peers.pusher import LogChoice, PusherPeer, Settings
from p2pmsg.peers.settings import check_name, laid_over
from p2pmsg.publisher.packing import PACKING_ERRORS
from p2pmsg.queue.batching import PushBatch
from p2pmsg.queue.config import Acknowledge, PusherConfig, log_settings
from p2pmsg.queue.dead_letters import DeadLetters, letter_of
from p2pmsg.queue.jobs import check_batch_config
from p2pmsg.queue.stats import PusherStats

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_encode_into = exact_encoder.encode_into
_encode_scalar_into = encoder.encode_into


class PusherBase(BoundBase):
    """What never waits of a pusher."""

    _peer: PusherPeer
    _batch: PushBatch
    _section: Section

    @checked(ack_timeout=0.05, deliveries_max=(1, 1_000_000))
    def __init__(
        self,
        endpoint: str,
        *,
        acknowledge: Acknowledge = "each",
        log: LogChoice = None,
        ack_timeout: float | None = None,
        deliveries_max: int | None = None,
        in_flight_max: int | None = None,
        job_timeout: float | None = None,
        name: str | None = None,
        config: PusherConfig | None = None,
        security: "Security | None" = None,
    ) -> None:
        given = {
            "deliveries_max": deliveries_max, "in_flight_max": in_flight_max,
            "job_timeout": job_timeout,
        }  # fmt: skip
        by_batch = acknowledge == "batch"
        if by_batch:
            for option, value in {"log": log, **given}.items():
                check(option, value, value is None, 'left out with acknowledge="batch"')
        config = laid_over(config or PusherConfig(), ack_timeout=ack_timeout, **given)
        if by_batch:
            check_batch_config(config)
        self._name = check_name(name if name is not None else str(endpoint)[:80])
        self._security = security
        log_config = log_settings(log)
        self._begin(
            PusherPeer, Settings(endpoint, self._name, config, by_batch, log_config, security)
        )

    def _on_open(self) -> None:
        self._batch, self._section = self._peer.batch, self._driver.section

    @property
    def name(self) -> str:
        """The pusher's name."""
        return self._name

    @property
    def session(self) -> int:
        """The 64-bit id of the queue; with a log, the same after a restart."""
        return self._peer.session

    def push(
        self,
        value: Any,
        key: str | None = None,
        priority: int = 0,
        delay: float = 0.0,
        message_id: str | None = None,
        headers: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Accept one job and return its sequence.

        With threads it waits while `in_flight_max` are in flight. In an event loop it never waits:
        where there is no space it raises, and `drain` waits for space.

        It is handed out at once, and shares a frame with others where jobs follow one another
        closely, for 1 ms at most. What is changed in `value` afterwards changes nothing. With
        `acknowledge="batch"` a job has a value and nothing else.

        With a log, its record is written when this returns: a process that is killed loses nothing.
        With `fsync="always"` it is on the disk, too; in an event loop `drain` waits for that, and
        raises where it failed.

        Args:
            value: any msgpack value: bytes, str, int (64 bits), float, bool, None, list, dict.
            key: what it belongs to. Of one key, one job at a time is with any worker, in the order
                of pushing; a later one waits until it is done or a dead letter. Default None:
                it waits for nothing.
            priority: 0 to 9; higher ones go first among what is not yet handed out. Within a key
                the order of pushing rules. Default 0.
            delay: how long it is not handed out, in seconds, 31,622,400 (366 days) at most, also
                if the wall clock is set meanwhile. Default 0.
            message_id: by which a job that was pushed before, within 10 min, is known and not
                accepted again; the sequence that it got then is returned. Default None.
            headers: further fields by name, msgpack values. Default None.
            timeout: how long to wait at `in_flight_max`, in seconds; only with threads. Default
                None: without end.

        Raises:
            MessageError: it cannot be pushed as it is; `MessageTooLargeError` for its size.
            ConfigError: priority, delay, message_id or timeout is out of its limits.
            TimeoutError: too many were in flight all the time.
            SendQueueFullError: in an event loop: `in_flight_max` jobs, or their bytes, are in
                flight. One push right after a `drain()` never gets it, where the job has half of
                `in_flight_bytes_max` at most, or as much as one that was refused before.
            LogFailedError: the log could not be written, or what was written could not be forced to
                the disk, which is final. The job was not accepted; after a failed fsync a later run
                on the log may find it all the same.
            ClosedError: the pusher is closed.
            RuntimeError: in an event loop: it was made in another one.

        """
        # Written out, since each call would be a tenth of it. A job is in by one append; while jobs
        # do not follow closely, `stop` is `next`.
        if (
            key is not None or priority or delay or message_id is not None or headers is not None
            or timeout is not None
        ):  # fmt: skip
            return self._push_slowly(value, key, priority, delay, message_id, headers, timeout)
        batch, entered = self._batch, self._section
        lock = entered.lock
        try:
            if not lock.acquire():
                entered.refuse()
            if entered.busy:
                entered.check()
            entered.busy = True
            sequence = batch.next
            if sequence < batch.stop:
                buffer = batch.buffer
                try:
                    if type(value) in SCALARS:
                        _encode_scalar_into(value, buffer, -1)
                    else:
                        _encode_into(value, buffer, -1)
                    size = len(buffer)
                except PACKING_ERRORS:  # which is said below
                    size = batch.bytes_max
                if size < batch.bytes_max:
                    batch.ends.append(size)
                    batch.next = sequence + 1
                    entered.busy = False
                    lock.release()
                    return sequence
                batch.repair()
            entered.busy = False
            lock.release()
        except BaseException as error:
            entered.leave(error)
            raise
        del entered  # by which one is known that is inside
        return self._push_slowly(value, key, priority, delay, message_id, headers, timeout)

    def _push_slowly(self, *fields: Any) -> int:
        """Accept a job as `push` does, looking at everything."""
        driver, peer = self._driver, self._peer
        job, timeout = driver.section.run(peer.job, *fields[:-1]), fields[-1]
        if driver.may_wait:
            sequence: int = driver.run(peer.push(job, timeout))
        else:
            check("timeout", timeout, timeout is None, "left out in an event loop")
            sequence = driver.section.run(peer.offer, job)
        if peer.wants_turn():
            driver.wake()
        return sequence

    def push_many(self, values: Iterable[Any]) -> list[int]:
        """Push each of `values`, as `push` does, and return their sequences.

        Args:
            values: the jobs. Where one is refused, those before it were accepted.

        Raises:
            Others: as `push`.

        """
        return [self.push(value) for value in values]

    def stats(self) -> PusherStats:
        """Return the counters as they are now; also after `close`."""
        return self._read(self._peer.stats)

    def dead_letters(self) -> DeadLetters:
        """Return the dead letters as they are now; what it returns can retry and purge them.

        With `acknowledge="batch"` they are jobs at which connections ended.
        """
        section = self._driver.section
        dead = section.run(self._peer.dead)
        act = partial(section.run, self._peer.act_on_dead)
        return DeadLetters([letter_of(each) for each in dead], act)
