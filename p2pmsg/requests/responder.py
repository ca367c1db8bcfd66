"""Answers requests, by topic."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self

import transports
from p2pmsg.checks import BUSY_WAIT, check, checked, is_async
from p2pmsg.driver.lifecycle import ClosesAtOnce, close_in_children
from p2pmsg.errors import ClosedError
from p2pmsg.requests.frames import MESSAGE_BYTES
from p2pmsg.requests.inbox import Arrival, Inbox
from p2pmsg.requests.responder_base import Handler, Request, ResponderBase
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_WAIT_MS: Final = 50
_REPLY_WAIT_MS: Final = 1


class Responder(ResponderBase, ClosesAtOnce):
    """Answers requests: what a topic's handler returns is the reply.

    ::

        with p2pmsg.Responder("tcp://127.0.0.1:5560", {"square": lambda n: n * n}) as responder:
            ...                                  # a background thread answers

    or `responder.serve()` in the caller's own thread. What a handler raises goes to the requester,
    with its type and text. A request that comes again is answered from a cache.

    `SystemExit` and `KeyboardInterrupt` of a handler go to the requester, too, and end the
    responder: `serve` raises them; the background thread cannot end the program, so it logs them as
    critical and closes the responder.

    Args:
        endpoint: where to bind.
        handlers: by topic, plain functions; more with `on`. Default: none.
        type: what the value of each request is made before its handler gets it: a dataclass or any
            other type that `Subscriber(type=)` takes. One that does not fit is counted in
            `invalid_values` and answered with `InvalidValueError`, which names the place in it.
            Default None: what was sent.
        types: instead of `type`, types by topic, or by prefix followed by `*`. Default None.
        threads: how many requests are worked on at once. Default 1: by the thread that receives
            them, which saves two changes of thread; more where handlers wait for something.
        pending_max: how many requests may wait for a thread; further ones are left to be asked
            again, and counted. Default 1000.
        cache_max: how many replies are kept. Default 10,000.
        cache_bytes_max: bytes of them. Default 64 MiB.
        cache_age: for how long, in seconds. Default 60: beyond the retries of most requests.
        message_bytes_max: largest reply, packed; at most 16 MiB, of which the header takes 1 KiB.
            The requester gets `MessageTooLargeError` for a larger one, as a `RemoteError`. Default
            1 MiB.
        busy_wait: how long it looks for the next request before it sleeps, in seconds; as for
            `Requester`. Default 0.0002.
        security: this peer's key, and whom it knows: only they connect, encrypted, and both ends
            known to each other. Default None: open.

    Raises:
        ConfigError: an argument is out of its limits, or the endpoint is none.
        BindError: the endpoint could not be bound.

    """

    @checked(busy_wait=BUSY_WAIT, message_bytes_max=MESSAGE_BYTES, threads=1, pending_max=1)
    def __init__(
        self,
        endpoint: str,
        handlers: Mapping[str, Handler] | None = None,
        *,
        type: Any = None,  # noqa: A002  # as `Subscriber` calls it
        types: Mapping[str, Any] | None = None,
        threads: int = 1,
        pending_max: int = 1000,
        cache_max: int = 10_000,
        cache_bytes_max: int = 64 * 2**20,
        cache_age: float = 60.0,
        message_bytes_max: int = 1024 * 1024,
        busy_wait: float = transports.BUSY_WAIT_US / 1e6,
        security: "Security | None" = None,
    ) -> None:
        self._threads = threads
        self._configure(
            handlers, pending_max, cache_max, cache_bytes_max, cache_age, message_bytes_max,
            type, types, security,
        )  # fmt: skip
        self._done: deque[tuple[Request, bytes]] = deque()
        self._over: deque[tuple[Request, str, Any]] = deque()
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._serving = threading.Lock()
        self._raised: BaseException | None = None
        self._server = self._bind(endpoint, busy_wait)
        self._inbox = Inbox(self._server)
        close_in_children(self)

    def serve(self) -> None:
        """Answer requests in this thread, until `close` is called by another, or Ctrl-C.

        Raises:
            ClosedError: the responder is closed, or is served already.
            SystemExit, KeyboardInterrupt: a handler raised it; the requester has its answer, and
                the responder goes on where this is called again.

        """
        if self._closed:
            raise ClosedError("the responder", self._unusable)
        if not self._serving.acquire(blocking=False):
            raise ClosedError("the responder", "another thread serves it already")
        try:
            if self._threads > 1:
                self._pool = ThreadPoolExecutor(self._threads, "p2pmsg-responder")
            while not self._closed and self._raised is None:
                self._round()
        except transports.ClosedError:
            pass
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)
                self._pool = None
                with contextlib.suppress(transports.ClosedError):
                    self._send_replies()
                self._cache.drop_all()  # what the pool did not begin
            raised, self._raised = self._raised, None
            self._serving.release()
        if raised is not None:
            raise raised

    def start(self) -> Self:
        """Answer requests in a background thread from now on; return this responder.

        Raises:
            ClosedError: the responder is closed.

        """
        if self._closed:
            raise ClosedError("the responder", self._unusable)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="p2pmsg-responder", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop answering: what is at work is finished and answered first."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._serving:
            self._server.close(linger_ms=500)

    def __enter__(self) -> Self:
        return self.start()

    # -------------------------------------------------------------------------------- private

    _HINT = "use p2pmsg.aio.Responder or p2pmsg.App"

    def _add(self, topic: str, handler: Handler) -> None:
        limit = "no async function; those are for p2pmsg.aio.Responder and p2pmsg.App"
        check(f"the handler of {topic!r}", handler, not is_async(handler), limit)
        super()._add(topic, handler)

    def _run(self) -> None:
        try:
            self.serve()
        except (SystemExit, KeyboardInterrupt) as error:
            self._unusable = f"a handler of its raised {error!r}"
            _log.critical("%r ends: a handler of its raised %r", self, error, exc_info=error)
            self.close()
        except Exception:
            _log.exception("the responder's thread ended")

    def _round(self) -> None:
        waits = self._done or self._cache.pending
        if self._access_rules is not None:
            self._access_rules.check()
        arrival = self._inbox.take()
        if arrival is None:
            found = self._server.receive_wait(_REPLY_WAIT_MS if waits else _WAIT_MS)
            if found is not None:
                arrival = *found, self._server.user, time.monotonic_ns()
        if arrival is not None:
            self._take(arrival)
            self._inbox.fill(time.monotonic_ns())
        if self._done or self._over:
            self._send_replies()

    def _take(self, arrival: Arrival) -> None:
        found = self._read(arrival)
        if found is None:
            return
        where = arrival[0]
        request, topic, value, until_ns = found
        if self._pool is not None and self._cache.pending >= self._pending_max:
            self.refused += 1
            return
        now_ns = time.monotonic_ns()
        if self._pool is None:
            reply = self._cache.find(request)
            if reply is not None:
                self._answer_again(where, request, reply)
            elif until_ns <= now_ns:
                self.expired += 1
            else:
                reply = self._work(request, topic, value)
                self._cache.keep(request, reply, now_ns=now_ns)
                self._answer(where, request, reply)
            return
        is_new, reply = self._cache.begin(request, where, until_ns)
        if reply is not None:
            self._answer_again(where, request, reply)
        elif is_new:
            self._pool.submit(self._work_in_pool, request, topic, value)

    def _work_in_pool(self, request: Request, topic: str, value: Any) -> None:
        if self._cache.is_over(request, time.monotonic_ns()):
            self._over.append((request, topic, value))
        else:
            self._done.append((request, self._work(request, topic, value)))

    def _ended_by(self, error: BaseException) -> None:
        if self._raised is None:
            self._raised = error

    def _send_replies(self) -> None:
        while self._done:
            self._reply_to(*self._done.popleft())
        while self._over:
            request, topic, value = self._over.popleft()
            if self._cache.is_over(request, time.monotonic_ns()):
                self._expire(request)
            elif self._pool is None:
                self._cache.drop(request)
            else:  # it was asked again meanwhile
                self._pool.submit(self._work_in_pool, request, topic, value)
