"""A pipeline's pusher: what both shells share, and threads."""

import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import transports
from p2pmsg.checks import at_least, checked, shown
from p2pmsg.codec import SCALARS, encoder, exact_encoder
from p2pmsg.errors import ClosedError, MessageError, SendQueueFullError, translated
from p2pmsg.publisher.batch import PACKING_ERRORS, check_size, pack_exactly, packing_error
from p2pmsg.queue.driver import Driver
from p2pmsg.queue.pipeline.config import (
    DEALT_BYTES_MAX,
    FRAME_BYTES,
    FRAME_JOBS,
    LINGER_MS,
    PipelineConfig,
    PipelinePullerStats,
    PipelinePusherStats,
)
from p2pmsg.queue.pipeline.dealing import PIECE_BYTES, Dealer, Piece
from p2pmsg.queue.pipeline.frames import body_of, part_of
from p2pmsg.queue.pipeline.shares import Shares
from p2pmsg.queue.pusher_base import Wakes
from p2pmsg.security.use import curve_server, warn_if_open
from p2pmsg.sync.lifecycle import (
    INHERITED,
    ClosesItself,
    close_at_exit,
    close_in_children,
    was_closed,
    zmq_context,
)
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.settings import check_name
from p2pmsg.trouble import Rarely
from transports.own_log import own_log as _log
from transports.signals import defer_signals

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

PIPELINE_OPTIONS: Final = ("endpoint", "name", "config", "security")
_FRAME_JOBS_MIN: Final = 256
_IDLE_ROUNDS: Final = 5
_GATHER_NS: Final = 50_000
"""Jobs closer together than this are gathered: dealing one alone takes about as long."""
_SAY_NS: Final = 5_000_000_000
_NAMES_MAX: Final = 3
_DUMMY: Final = 1
"""Bytes before the first value in the buffer, which keep its memory when it is emptied."""
SEALING_BYTES: Final = PIECE_BYTES + 16
"""What gathered jobs take in addition when they have become a piece."""
_encode_into = exact_encoder.encode_into
_encode_scalar_into = encoder.encode_into
_get_ident = threading.get_ident


class PipelinePusherBase(ABC):
    """Gathers and deals jobs under a lock; who waits, and how, is left out."""

    _driver: Wakes

    @checked()
    def __init__(
        self,
        endpoint: str,
        *,
        name: str | None = None,
        config: PipelineConfig | None = None,
        security: "Security | None" = None,
    ) -> None:
        self._security = security
        self._config = config if config is not None else PipelineConfig()
        self._name = check_name(name if name is not None else str(endpoint)[:80])
        self._place = endpoint
        self._lock = PublishLock()
        self._closed = False
        self._unusable: str | None = None
        self._buffer = bytearray(_DUMMY)
        self._ends: list[int] = []
        self._first = self._next = self._stop = 0
        self._frame_bytes = min(FRAME_BYTES, self._config.buffer_bytes_max // 4)
        self._gathering = False
        self._idle_rounds = 0
        self._pushed_ns = 0
        self._dealer = Dealer(DEALT_BYTES_MAX, part_of)
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Call `_open`, which may take long, then `_start`; have turns taken from then on."""

    def _open(self) -> transports.ZmqQueueServer:
        """Bind the endpoint."""
        with translated():
            server = transports.ZmqQueueServer(
                self._place, context=zmq_context(), curve=curve_server(self._security)
            )
        warn_if_open(self._security, server.endpoint)
        return server

    def _start(self, server: transports.ZmqQueueServer) -> None:
        self._server = server
        self._shares = Shares(
            server, self._dealer, self._config, secrets.randbits(63), self._security, self._name
        )

    # --------------------------------------------------------------------------------- public

    @property
    def endpoint(self) -> str:
        """Where pullers connect to, with the port that was picked."""
        return self._shares.endpoint

    @property
    def name(self) -> str:
        """The pusher's name."""
        return self._name

    def push(self, value: Any, timeout: float | None = None) -> int:
        """Accept one job and return its sequence; at `buffer_bytes_max` as `on_full` says.

        Args:
            value: any msgpack value: bytes, str, int (64 bits), float, bool, None, list, dict.
            timeout: how long to wait at `buffer_bytes_max`, in seconds. Default None: without end.

        Raises:
            MessageError: it cannot be pushed as it is; `MessageTooLargeError` for its size.
            SendQueueFullError: the buffer is full, with `on_full="raise"`.
            TimeoutError: the buffer was full all the time.
            ClosedError: the pusher is closed.

        """
        # Written out as in Pusher.push, for the same reasons.
        lock = self._lock
        me = lock.mark
        if not me._is_owned():
            me = _get_ident()
        sequence = self._next
        if lock.owner is not None or sequence >= self._stop:
            return self._push_slowly(value, timeout)
        lock.owner = me
        try:
            buffer = self._buffer
            if type(value) in SCALARS:
                _encode_scalar_into(value, buffer, -1)
            else:
                _encode_into(value, buffer, -1)
            size = len(buffer)
            if size < self._frame_bytes:
                self._ends.append(size)
                self._next = sequence + 1
                lock.owner = None
                return sequence
            self._repair()
        except BaseException as error:
            self._repair()
            lock.owner = None
            if isinstance(error, PACKING_ERRORS) and not isinstance(error, MessageError):
                raise packing_error("value", value, error) from None
            raise
        lock.owner = None
        return self._push_slowly(value, timeout)

    def revoke(self, who: str) -> list[str]:
        """Admit a puller no more: its connections are ended, and its share is dealt to others.

        It returns at once; the rest is done in the next turn, within some ms. It holds for all
        peers that were given the same `Security`, while the process runs: take the peer out of the
        files as well.

        Args:
            who: the name of a peer that is known, or its public key as text.

        Returns:
            The public keys that were revoked, as text.

        Raises:
            ConfigError: there is no `security`, or no such peer.
            ClosedError: the pusher is closed.

        """
        from p2pmsg.sync.access_watch import revoke_here

        self._check_usable()
        users = revoke_here(self._security, who)
        self._driver.wake()
        return users

    def flush(self) -> None:
        """Deal what is gathered now, without waiting for `linger`."""
        self._lock.run_whole(self._flush)

    def stats(self) -> PipelinePusherStats:
        """Return the counters as they are now; also after `close`."""
        return self._lock.read(self._stats)

    def __repr__(self) -> str:
        return shown(self, lambda: self.endpoint)

    # -------------------------------------------------------------------------------- private

    @abstractmethod
    def _push_slowly(self, value: Any, timeout: float | None) -> int:
        """Accept a job as `push` does, looking at everything."""

    def _packed(self, value: Any) -> bytes:
        """Return a job's value as it travels, or raise as `push` says."""
        payload = pack_exactly(value)
        check_size("job", len(payload), self._config.message_bytes_max)
        return payload

    @property
    def _in_flight(self) -> int:
        return self._dealer.jobs + len(self._ends)

    def _try_push(self, payload: bytes) -> int | None:
        self._check_usable()
        if self._ends and len(self._buffer) + len(payload) >= self._frame_bytes:
            self._seal()
        if not self._has_space(len(payload)):
            self._shares.work(time.monotonic_ns())
            if not self._has_space(len(payload)):
                return None
        now_ns = time.monotonic_ns()
        self._repair()
        self._buffer += payload
        self._ends.append(len(self._buffer))
        sequence = self._next
        self._next = sequence + 1
        close = now_ns - self._pushed_ns < _GATHER_NS
        if close and not self._gathering:
            self._gathering = True
            self._idle_rounds = 0
            self._driver.wake()
        jobs_max = self._jobs_max() if self._gathering else 1
        if len(self._ends) >= jobs_max:
            self._seal()
            self._shares.work(now_ns)
        if self._gathering and self._has_space(self._frame_bytes):
            self._lock.favour()
            self._stop = self._first + jobs_max - 1
        # From here, so that what counts is the caller's pace and not how long dealing takes.
        self._pushed_ns = time.monotonic_ns()
        return sequence

    def _jobs_max(self) -> int:
        """Return how many jobs a frame may have: few where a puller would take long for them."""
        allowed = max((share.allowed for share in self._dealer.shares.values()), default=0)
        return min(FRAME_JOBS, max(_FRAME_JOBS_MIN, allowed // 8))

    def _has_space(self, size: int) -> bool:
        dealer = self._dealer
        taken = dealer.bytes + len(self._buffer) + SEALING_BYTES
        return taken + size <= self._config.buffer_bytes_max or not self._in_flight

    def _seal(self) -> None:
        """Put what was gathered among what is dealt."""
        self._repair()
        count = len(self._ends)
        if count:
            with memoryview(self._buffer) as view, view[_DUMMY:] as values:
                body = body_of(count, values)
            self._dealer.accept(Piece(self._first, count, body))
            self._ends.clear()
            _encode_into(None, self._buffer, 0)  # it keeps its memory: `del` would give it back
        self._first = self._stop = self._next

    def _repair(self) -> None:
        """Cut off what belongs to no accepted job."""
        self._next = self._first + len(self._ends)
        del self._buffer[self._ends[-1] if self._ends else _DUMMY :]

    def _flush(self) -> None:
        self._check_usable()
        self._seal()
        self._shares.work(time.monotonic_ns())

    def _work(self) -> float:
        """Take the background thread's turn; return how long it may sleep, in ms."""
        if self._unusable is not None:
            raise transports.ClosedError(self.endpoint)
        if self._gathering:
            self._idle_rounds = 0 if self._ends else self._idle_rounds + 1
            self._seal()
            if self._idle_rounds > _IDLE_ROUNDS:
                self._gathering = False
        wait_ms = self._shares.work(time.monotonic_ns())
        return min(wait_ms, LINGER_MS) if self._gathering else wait_ms

    def _is_empty(self) -> bool:
        if self._unusable is not None:
            raise ClosedError("the pusher", self._unusable)
        self._seal()
        self._shares.work(time.monotonic_ns())
        return not self._dealer.jobs

    def _unconfirmed(self) -> str:
        """Return how many jobs are not confirmed, and who has them, for people."""
        count = self._in_flight
        what = f"{count} job{' is' if count == 1 else 's are'} not confirmed"
        if aside := len(self._dealer.aside):
            what += f" (to be tried again, since connections ended with them: {aside})"
        shares = list(self._dealer.shares.values())
        if not shares:
            return f"{what}, and no puller is there"
        named = [f"the puller {each.name!r} has {each.jobs}" for each in shares[:_NAMES_MAX]]
        rest = len(shares) - _NAMES_MAX
        return "; ".join([what, *named, *([f"and {rest} others"] if rest > 0 else [])])

    @staticmethod
    def _new_wait() -> Rarely:
        """Return what says when `_say_waiting` is to be called: after 5 s, then once a minute."""
        return Rarely(_SAY_NS)

    def _say_waiting(self) -> None:
        _log.warning("%s waits: %s", self._name, self._lock.read(self._unconfirmed))

    def _say_left(self) -> None:
        """Say at the end what is lost with this pusher."""
        if self._in_flight:
            _log.warning(
                "%s: closed; %s. What no puller has is lost", self._name, self._unconfirmed()
            )

    def _check_usable(self) -> None:
        if self._unusable is not None or self._closed:
            raise ClosedError("the pusher", self._unusable or "it is closed")

    def _close_all(self) -> None:
        self._stop = 0
        self._shares.close()

    def _forget(self) -> None:
        """In a forked child: nothing of this is the child's."""
        self._closed = True
        self._unusable = INHERITED
        self._lock = PublishLock()  # a thread of the parent's may have been inside
        self._stop = 0

    def _stats(self) -> PipelinePusherStats:
        dealer, shares = self._dealer, self._shares
        return PipelinePusherStats(
            endpoint=self.endpoint,
            pushed=self._first + len(self._ends),
            done=dealer.done,
            in_flight=self._in_flight,
            undeliverable=dealer.undeliverable,
            buffered_bytes=dealer.bytes + len(self._buffer) - _DUMMY,
            redealt=dealer.redealt,
            retransmitted=shares.retransmitted,
            refused=dealer.refused + shares.refused,
            frames_invalid=shares.invalid,
            connections_refused=self._server.refused_by_key,
            denied=0 if shares.access_rules is None else shares.access_rules.denials.count,
            connections_revoked=self._server.revoked,
            pullers=[
                PipelinePullerStats(each.name, each.jobs, each.done, each.allowed)
                for each in dealer.shares.values()
            ],
        )


class PipelinePusher(PipelinePusherBase, ClosesItself):
    """Deals jobs that need no acknowledgement one by one; `Pusher(endpoint, mode="pipeline")`.

    It binds; pullers connect. Frames of many jobs go to each puller over a PUSH socket of its own,
    and are kept until the puller has confirmed them, together with others. The share of a puller
    that dies, leaves or falls silent is dealt to others: at least once, and twice only what was not
    confirmed. `push` may be called from several threads.

    Args:
        endpoint: where to bind: `tcp://HOST:PORT` (port 0 picks one), `ipc://PATH` or
            `inproc://NAME`. The PUSH sockets are bound next to it, with `tcp` at ports that the
            system picks.
        name: who pushes, for people. Default: the endpoint.
        config: all settings.
        security: this peer's key, and whom it knows: only they connect, encrypted, and both ends
            known to each other. Default None: open.

    Raises:
        ConfigError: a setting is out of its limits, or the endpoint is none.
        BindError: the endpoint could not be bound.

    """

    # --------------------------------------------------------------------------------- public

    def push_many(self, values: Iterable[Any], timeout: float | None = None) -> list[int]:
        """Push each of `values`, as `push` does, and return their sequences.

        Args:
            values: the jobs. Where one is refused, those before it were accepted.
            timeout: how long to wait for each at `buffer_bytes_max`, in seconds. Default None:
                without end.

        Raises:
            MessageError, SendQueueFullError, TimeoutError, ClosedError: as `push`.

        """
        return [self.push(value, timeout) for value in values]

    def drain(self, timeout: float | None = None) -> None:
        """Wait until every job is confirmed.

        What it waits for is logged after 5 s, and then once a minute.

        Args:
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: some were not confirmed in time.
            ClosedError: the pusher is closed.

        """
        if not self._wait_until_empty(timeout):
            raise TimeoutError(f"{self._in_flight} jobs were not confirmed within {timeout} s")

    def close(self, timeout: float | None = 5.0) -> None:
        """Wait until every job is confirmed, and close; the end of a `with` block does the same.

        What it waits for is logged after 5 s, and then once a minute.

        Args:
            timeout: how long to wait, in seconds; None: without end. What is not confirmed by then
                is lost, unless a puller has it, and said to be. Default 5.

        """
        if not self._closed:
            self._lock.refuse_inside()
        if self._closed:
            return
        self._closed = True
        was_closed(self)
        try:
            self._wait_until_empty(timeout)
        finally:
            self._unusable = "it is closed"
            self._driver.stop()
            self._lock.run_whole(self._close_all)
        self._say_left()

    # -------------------------------------------------------------------------------- private

    def _begin(self) -> None:
        server = self._open()
        self._start(server)
        self._driver: Driver = Driver("p2pmsg-pipeline", self._turn, [server.fd, server.break_fd])
        close_in_children(self)
        self._driver.start()
        close_at_exit(self, lambda one, left: one.close(left))

    def _push_slowly(self, value: Any, timeout: float | None) -> int:
        if timeout is not None:
            at_least("timeout", timeout, 0)
        payload = self._packed(value)
        began_ns = time.monotonic_ns()
        said = False
        while (sequence := defer_signals(self._lock.run, self._try_push, payload)) is None:
            limit = f"buffer_bytes_max ({self._config.buffer_bytes_max}) bytes"
            if self._config.on_full == "raise":
                raise SendQueueFullError(f"{limit} are not confirmed")
            waited_ns = time.monotonic_ns() - began_ns
            left = 1.0 if timeout is None else timeout - waited_ns / 1e9
            if left <= 0:
                raise TimeoutError(f"{limit} were not confirmed for {timeout} s")
            if not said and waited_ns > _SAY_NS:
                said = True
                count = len(self._dealer.shares)
                _log.warning("push waits: %s are not confirmed, with %d pullers", limit, count)
            self._driver.wait(min(20.0, left * 1000))
        return int(sequence)

    def _turn(self) -> float:
        return self._lock.run(self._work)

    def _wait_until_empty(self, timeout: float | None) -> bool:
        if timeout is not None:
            at_least("timeout", timeout, 0)
        deadline = None if timeout is None else time.monotonic() + timeout
        waits = self._new_wait()
        while not self._lock.run_whole(self._is_empty):
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if waits.is_due():
                self._say_waiting()
            if left <= 0:
                return False
            self._driver.wait(min(20.0, left * 1000))
        return True
