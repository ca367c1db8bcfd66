"""The threaded puller."""

import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import transports
from p2pmsg.checks import at_least, of_kind
from p2pmsg.errors import ClosedError, translated
from p2pmsg.queue.config import PullerConfig
from p2pmsg.queue.driver import Driver
from p2pmsg.queue.job import Job
from p2pmsg.queue.process_id import this_process, worker_name
from p2pmsg.queue.puller_core import PullerCore
from p2pmsg.queue.stats import PullerStats
from p2pmsg.sync.lifecycle import ClosesAtOnce, close_at_exit, close_in_children, was_closed
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.settings import check_endpoints, check_name
from p2pmsg.sync.unanswered import Unanswered
from recovery._checks import to_ns

_MS: Final = 1_000_000
_ROUNDS_MAX: Final = 16
_FRAMES_PER_ROUND: Final = 64
_COUNTERS: Final = (
    "received", "acked", "rejected", "discarded", "refused", "given_back", "dropped",
)  # fmt: skip
_get_ident = threading.get_ident
_monotonic_ns = time.monotonic_ns


class Puller(ClosesAtOnce):
    """Takes jobs from pushers, one after the other.

    ::

        for job in puller:
            try:
                with job:               # acknowledged at the end, rejected if it raises
                    work(job.value)
            except Exception:           # it is tried again; without this the loop would end here
                logging.exception("job %d failed", job.sequence)

    It connects; pushers bind, and come and go as they like. A background thread keeps what it has
    in flight alive, for as long as the process lives. Several threads may take jobs from it.

    Args:
        endpoints: one, or several, of pushers.
        prefetch: how many jobs it may have in flight at each pusher. Default 16.
        name: who works, for people. Default: host and process id.
        config: all settings; the arguments above go before it.

    Raises:
        ConfigError: a setting is out of its limits; `EndpointError` for the endpoints.

    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        prefetch: int | None = None,
        name: str | None = None,
        config: PullerConfig | None = None,
    ) -> None:
        config = config if config is not None else PullerConfig()
        of_kind("config", config, PullerConfig)
        self._config = replace(config, prefetch=prefetch) if prefetch is not None else config
        self._name = check_name(name if name is not None else worker_name())
        places = check_endpoints(endpoints)
        self._places = [*map(str, places)]
        self._lock = PublishLock(nests=True)  # what is settled may be so by itself
        self._closed = False
        self._unusable: str | None = None
        self._clients: list[transports.ZmqQueueClient] = []
        self._cores: list[PullerCore] = []
        self._flushed_ns = 0
        self._ack_linger_ns = to_ns(self._config.ack_linger)
        # Answers are sent together, and still soon enough that the next jobs come in time.
        self._flush_at = max(1, min(self._config.prefetch // 2, 1024))
        try:
            self._connect(places)
        except BaseException:
            for client in self._clients:
                client.close()
            raise
        self._core = self._cores[0]
        self._lost_ns = [-1] * len(places)  # what `heard_ns` was set to when one was found silent
        self._unanswered = Unanswered(
            "pusher", places, now_ns=_monotonic_ns(), usual="ROUTER"
        )
        self._turns = 0
        self._driver = Driver(
            "p2pmsg-puller", partial(self._lock.run, self._background),
            [client.fd for client in self._clients],
        )  # fmt: skip
        close_in_children(self)
        self._driver.start()
        close_at_exit(self, Puller.close)

    def _connect(self, places: Sequence[transports.Endpoint]) -> None:
        process, now_ns = this_process(), _monotonic_ns()
        for place in places:
            with translated():
                client = transports.ZmqQueueClient(
                    place,
                    context=transports.context(),
                    frame_bytes_max=self._config.frame_bytes_max,
                )
                self._clients.append(client)
                client.connect()
            # Not from a generator: forked children would have the same id.
            core = PullerCore(
                secrets.randbits(64), self._name, self._config.prefetch, process, now_ns=now_ns
            )
            core.on_settled = self._settled
            self._cores.append(core)

    # --------------------------------------------------------------------------------- public

    @property
    def name(self) -> str:
        """The worker's name."""
        return self._name

    @property
    def connected(self) -> int:
        """How many of its endpoints have a pusher that was joined, and answers."""
        return sum(self._answering())

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        # The fast path, for a job that is there already, is written out: see Publisher.publish. One
        # with a key, or a history, takes `receive`, which looks at the lease.
        lock = self._lock
        me = lock.mark
        if not me._is_owned():
            me = _get_ident()
        if lock.owner is None:
            lock.owner = me
            core, job = self._core, None
            try:
                ready = core.ready
                if ready and ready[0]._detail is None:
                    job = ready[0]
                    core.open[job.delivery] = job
                    job._begun_ns = core.now_ns
                    ready.popleft()  # the only call: Ctrl-C comes after it
                    lock.owner = None
                    return job
            except BaseException:
                if job is not None:
                    core.unbegin(job)
                lock.owner = None
                raise
            lock.owner = None
        try:
            return self.receive()
        except ClosedError:
            raise StopIteration from None

    def receive(self, timeout: float | None = None) -> Job:
        """Return the next job.

        Args:
            timeout: how long to wait, in seconds. Default None: without end.

        Raises:
            TimeoutError: none came in time.
            ClosedError: the puller is closed.

        """
        if timeout is not None:
            at_least("timeout", timeout, 0)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        taken: list[Job] = []
        try:
            while not taken:
                self._lock.run(self._take, taken)
                if not taken:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"no job came within {timeout} s")
                    wait_ms = self._lock.run(self._wait_ms)
                    self._driver.wait(min(wait_ms, left * 1000))
            return taken[0]
        except BaseException:
            if taken:  # Ctrl-C: it does not get to the caller
                self._lock.run(taken[0]._origin.core.unbegin, taken[0])
            raise

    def stats(self) -> PullerStats:
        """Return the counters as they are now; also after `close`."""
        return self._lock.look(self._stats)

    def close(self, timeout: float = 1.0) -> None:
        """Give back what was not begun, reject what was, and close.

        Args:
            timeout: how long to wait, in seconds, until the pushers have confirmed what was
                acknowledged. Default 1.

        """
        if not self._closed:
            self._lock.refuse_inside()
        if self._closed:
            return
        self._closed = True
        was_closed(self)
        try:
            deadline = time.monotonic() + timeout
            while self._lock.run(self._is_unsettled) and time.monotonic() < deadline:
                self._driver.wait(20)
        finally:
            self._unusable = "it is closed"
            self._driver.stop()
            self._lock.run(self._close_all)

    def __repr__(self) -> str:
        return f"<Puller {self._name!r}{' closed' if self._closed else ''}>"

    # -------------------------------------------------------------------------------- private

    def _take(self, taken: list[Job]) -> None:
        """Begin the next job, and put it into `taken`; nothing where there is none."""
        self._check_usable()
        self._lock.favour()
        now_ns = _monotonic_ns()
        before = [core.begun for core in self._cores]
        try:
            job = self._next_ready(now_ns)
            if job is None:
                # Nothing is there: before waiting, say what is done, so that there is credit.
                self._report(now_ns)
                job = self._next_ready(now_ns)
            if job is not None:
                taken.append(job)
        except BaseException:
            taken.clear()
            for core, former in zip(self._cores, before, strict=True):
                if core.begun is not None and core.begun is not former:
                    core.unbegin(core.begun)
                core.resume()
            raise

    def _next_ready(self, now_ns: int) -> Job | None:
        """Begin the next job that is there; the pushers take turns."""
        cores = self._cores
        for _ in cores:
            self._turns += 1
            core = cores[self._turns % len(cores)]
            if core.ready:
                job = core.take(now_ns=now_ns)
                if job is not None:
                    self._core = core
                    return job
        return None

    def _settled(self) -> None:
        """Report to the pusher what was settled, or leave that for a moment."""
        now_ns = _monotonic_ns()
        late = now_ns - self._flushed_ns >= self._ack_linger_ns
        if late or self._core.acks_waiting() >= self._flush_at:
            self._lock.run(self._flush, now_ns)

    def _flush(self, now_ns: int) -> None:
        if self._unusable is None:
            self._flushed_ns = now_ns
            try:
                self._report(now_ns)
            except BaseException:
                for core in self._cores:
                    core.resume()
                raise

    def _report(self, now_ns: int) -> None:
        for core in self._cores:
            core.flush(now_ns=now_ns)
        self._work(now_ns)

    def _work(self, now_ns: int) -> bool:
        """Send what there is to send, take what came; False where there may be more at once."""
        done = True
        for core, client in zip(self._cores, self._clients, strict=True):
            for _ in range(_ROUNDS_MAX):
                outbox = core.outbox
                while outbox and client.send(outbox[0]):
                    outbox.popleft()
                came = 0
                while came < _FRAMES_PER_ROUND and (frame := client.receive()) is not None:
                    came += 1
                    core.receive(frame, now_ns=now_ns)
                if not came and not outbox:
                    break
            else:
                done = False
        return done

    def _background(self) -> float:
        """Take the background thread's turn; return how long it may sleep, in ms."""
        if self._unusable is not None:
            raise transports.ClosedError("puller")
        now_ns = _monotonic_ns()
        silence_ns = self._config.pusher_timeout * 1e9
        for at, (core, client) in enumerate(zip(self._cores, self._clients, strict=True)):
            core.handle_timer(now_ns=now_ns)
            if now_ns - core.heard_ns > silence_ns:
                core.heard_ns = self._lost_ns[at] = now_ns
                client.reconnect()
        if now_ns >= self._unanswered.next_ns:
            strange = [sum(core.invalid.values()) for core in self._cores]
            self._unanswered.look([core.joined for core in self._cores], strange, now_ns)
        if not self._work(now_ns):
            return 0.0
        return self._wait_ms()

    def _wait_ms(self) -> float:
        now_ns = _monotonic_ns()
        due_ns = min(core.next_deadline_ns() for core in self._cores)
        if any(core.unsent for core in self._cores):
            due_ns = min(due_ns, now_ns + 5 * _MS)
        return max(0.0, (due_ns - now_ns) / _MS)

    def _is_unsettled(self) -> bool:
        self._report(_monotonic_ns())
        return any(core.unsettled for core in self._cores)

    def _close_all(self) -> None:
        now_ns = _monotonic_ns()
        for core in self._cores:
            core.leave(now_ns=now_ns)
        self._work(now_ns)
        for client in self._clients:
            client.close(linger_ms=500)

    def _stats(self) -> PullerStats:
        cores = self._cores
        invalid = Counter({"parts": sum(client.malformed for client in self._clients)})
        for core in cores:
            invalid.update(core.invalid)
        ready = sum(len(core.ready) for core in cores)
        return PullerStats(
            **{name: sum(getattr(core, name) for core in cores) for name in _COUNTERS},
            in_hand=ready + sum(len(core.open) for core in cores),
            ready=ready,
            pushers=sum(core.joined for core in cores),
            frames_invalid={name: count for name, count in invalid.items() if count},
            unanswered=self._unanswered.by_endpoint(),
            answering=dict(zip(self._places, self._answering(), strict=True)),
        )

    def _answering(self) -> list[bool]:
        pairs = zip(self._cores, self._lost_ns, strict=True)
        return [
            core.joined and core.heard_ns != lost_ns and not self._closed for core, lost_ns in pairs
        ]

    def _check_usable(self) -> None:
        if self._unusable is not None or self._closed:
            raise ClosedError("the puller", self._unusable or "it is closed")

    def _forget(self) -> None:
        """In a forked child: nothing of this is the child's."""
        self._closed = True
        self._unusable = "it belongs to the parent process"
