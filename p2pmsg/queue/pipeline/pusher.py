"""The jobs of a pusher that are acknowledged by the batch: accepting, dealing, counting."""

import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import transports
from p2pmsg.checks import check
from p2pmsg.publisher.batch import check_size, pack_exactly
from p2pmsg.queue.batching import DUMMY, Gathered
from p2pmsg.queue.config import (
    BATCH_MESSAGE_BYTES_MAX,
    GATHER_WITHIN_NS,
    IDLE_ROUNDS,
    LINGER_S,
    PusherConfig,
)
from p2pmsg.queue.pipeline.dealing import PIECE_BYTES, Dealer, Piece
from p2pmsg.queue.pipeline.frames import body_of, part_of
from p2pmsg.queue.pipeline.shares import Shares
from p2pmsg.queue.stats import PusherStats, WorkerStats
from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.queue.rules import DeadJob
    from p2pmsg.security.settings import Security

_ACK_TIMEOUT_S: Final = 5.0
_DEALT_BYTES_MAX: Final = 4 * 2**20
"""Bytes that one puller may have and not have confirmed; it has less while it is slow: what it did
in 0.2 s, or 64 jobs, or one frame."""
_FRAME_BYTES: Final = 128 * 1024
"""Gathered jobs are dealt when they have this many bytes: jobs of 128 bytes travel 8 % faster than
with half of it, and no faster with twice as much."""
_FRAME_JOBS: Final = 1024
_FRAME_JOBS_MIN: Final = 256
"""… or when they are so many: with slow pullers an eighth of what the fastest may have."""
_NEVER_NS: Final = 2**63
_SEALING_BYTES: Final = PIECE_BYTES + 16
"""What gathered jobs take in addition when they have become a piece."""


class BatchJobs:
    """Keeps each frame of jobs until a puller has confirmed it.

    Attributes:
        batch: what `push` gathers.
        session: the queue's id.

    """

    is_failing = False

    def __init__(
        self,
        config: PusherConfig,
        name: str,
        server: transports.ZmqQueueServer,
        security: "Security | None",
    ) -> None:
        self._config = config
        self._server = server
        self.session = secrets.randbits(63)
        self.batch = Gathered(0, min(_FRAME_BYTES, config.in_flight_bytes_max // 4))
        self._dealer = Dealer(_DEALT_BYTES_MAX, part_of)
        timeout = _ACK_TIMEOUT_S if config.ack_timeout is None else config.ack_timeout
        self._shares = Shares(server, self._dealer, timeout, self.session, security, name)
        self._gathering = False
        self._idle_rounds = self._pushed_ns = 0
        self._due_ns = self._pushed_due_ns = 0

    @property
    def in_flight(self) -> int:
        """How many jobs nobody has confirmed, gathered ones left out."""
        return self._dealer.jobs

    @property
    def limit(self) -> str:
        """What `push` waits at, for people."""
        return f"in_flight_bytes_max ({self._config.in_flight_bytes_max}) bytes"

    def job(self, value: Any, *rest: Any) -> bytes:
        """Return a job's value, packed, or raise as `push` says."""
        is_plain = not any(each not in (None, 0) for each in rest)
        limit = '"each" for jobs with a key, a priority, a delay, a message_id or headers'
        check("acknowledge", "batch", is_plain, limit)
        payload = pack_exactly(value)
        check_size("job", len(payload), self._config.message_bytes_max)
        return payload

    def try_push(self, payload: bytes) -> tuple[int, int] | None:
        """Accept a job and return its sequence, and 0; None while the queue is full."""
        batch = self.batch
        if batch.ends and len(batch.buffer) + len(payload) >= batch.bytes_max:
            self._seal()
        if not self._has_space(len(payload)):
            self._shares.work(time.monotonic_ns())
            if not self._has_space(len(payload)):
                return None
        now_ns = time.monotonic_ns()
        batch.repair()
        batch.buffer += payload
        batch.ends.append(len(batch.buffer))
        sequence = batch.next
        batch.next = sequence + 1
        close = now_ns - self._pushed_ns < GATHER_WITHIN_NS
        if close and not self._gathering:
            self._gathering = True
            self._idle_rounds = self._due_ns = self._pushed_due_ns = 0
        jobs_max = self._jobs_max() if self._gathering else 1
        if len(batch.ends) >= jobs_max:
            self._seal()
            self._shares.work(now_ns)
        if self._gathering and self._has_space(batch.bytes_max):
            batch.stop = batch.first + jobs_max - 1
        # From here, so that what counts is the caller's pace and not how long dealing takes.
        self._pushed_ns = time.monotonic_ns()
        return sequence, 0

    def work(self) -> None:
        """Deal all that can be dealt."""
        self._seal()
        self._shares.work(time.monotonic_ns())

    def check_log(self) -> None:
        """Do nothing: there is no log."""

    def turn(self, now_ns: int) -> None:
        """Do one round."""
        if self._gathering:
            self._idle_rounds = 0 if self.batch.ends else self._idle_rounds + 1
            self._seal()
            if self._idle_rounds > IDLE_ROUNDS:
                self._gathering = False
        self._due_ns = now_ns + self._shares.work(now_ns)
        self._pushed_due_ns = _NEVER_NS
        if self._gathering:
            self._pushed_due_ns = time.monotonic_ns() + to_ns(LINGER_S)
            self._due_ns = min(self._due_ns, self._pushed_due_ns)

    def next_deadline_ns(self) -> int:
        """Return when the next turn is due."""
        return self._due_ns

    @property
    def pushed_due_ns(self) -> int:
        """When a turn is due for what was pushed; far away where for nothing."""
        return self._pushed_due_ns

    def resync(self) -> None:
        """Put all right after an exception that came somewhere in here."""
        batch = self.batch
        batch.resync(is_elsewhere=self._dealer.has(batch.first))
        self._dealer.resync(batch.first)
        self._shares.resync()
        self._gathering, self._due_ns = False, 0

    def fits(self, payload: bytes) -> bool:
        """Whether `try_push` would accept it, without a look at what has come."""
        return self._has_space(len(payload))

    def space(self, refused_bytes: int) -> int:
        """Return how many jobs fit in, of which the first one may have any size.

        As `EachJobs.space`, but that there is no limit of their number.
        """
        if not self.in_flight + len(self.batch.ends):
            return 1
        config = self._config
        taken = self._dealer.bytes + len(self.batch.buffer) + 2 * _SEALING_BYTES
        half = config.in_flight_bytes_max // 2
        size = min(config.message_bytes_max, max(half, refused_bytes))
        return max(0, config.in_flight_bytes_max - taken) // size

    def dead(self) -> "list[DeadJob]":
        """Return no dead letters: there are none."""
        return []

    def act_on_dead(self, action: str, sequences: list[int] | None) -> int:
        """Do nothing: there are no dead letters."""
        return 0

    def close(self) -> None:
        """Close all sockets."""
        self._shares.close()

    def stats(self) -> PusherStats:
        """Return the counters."""
        dealer, shares = self._dealer, self._shares
        in_hands = sum(each.jobs for each in dealer.shares.values())
        return PusherStats(
            endpoint=self._server.endpoint,
            pushed=self.batch.first + len(self.batch.ends),
            done=dealer.done,
            dead=dealer.undeliverable,
            in_flight=dealer.jobs + len(self.batch.ends),
            in_hands=in_hands,
            delivered=dealer.done + dealer.undeliverable + dealer.redealt + in_hands,
            failed=dealer.undeliverable,
            taken_back=dealer.redealt,
            refused=dealer.refused + shares.refused,
            frames_invalid={"frame": shares.invalid} if shares.invalid else {},
            connections_refused=self._server.refused_by_key,
            denied=0 if shares.access_rules is None else shares.access_rules.denials.count,
            connections_revoked=self._server.revoked,
            workers=tuple(
                WorkerStats(each.name, each.jobs, each.done, 0, allowed=each.allowed)
                for each in dealer.shares.values()
            ),
        )

    def _seal(self) -> None:
        """Put what was gathered among what is dealt."""
        batch = self.batch
        batch.repair()
        count = len(batch.ends)
        if count:
            with memoryview(batch.buffer) as view, view[DUMMY:] as values:
                body = body_of(count, values)
            self._dealer.accept(Piece(batch.first, count, body))
            batch.clear()
        batch.first = batch.stop = batch.next

    def _has_space(self, size: int) -> bool:
        taken = self._dealer.bytes + len(self.batch.buffer) + _SEALING_BYTES
        is_empty = not self.in_flight + len(self.batch.ends)
        return taken + size <= self._config.in_flight_bytes_max or is_empty

    def _jobs_max(self) -> int:
        """Return how many jobs a frame may have: few where a puller would take long for them."""
        allowed = max((share.allowed for share in self._dealer.shares.values()), default=0)
        return min(_FRAME_JOBS, max(_FRAME_JOBS_MIN, allowed // 8))


def check_batch_config(config: PusherConfig) -> None:
    """Raise `ConfigError` for what is not for jobs that are acknowledged by the batch."""
    limit = f'at most {BATCH_MESSAGE_BYTES_MAX} with acknowledge="batch"'
    size = config.message_bytes_max
    check("message_bytes_max", size, size <= BATCH_MESSAGE_BYTES_MAX, limit)
