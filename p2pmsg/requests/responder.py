"""Answers requests, by topic."""

import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self, TypeVar

import transports
from p2pmsg.checks import at_least, check, check_busy_wait, whole
from p2pmsg.errors import ClosedError, ConfigError, translated
from p2pmsg.publisher.batch import check_size
from p2pmsg.requests import frames
from p2pmsg.requests.frames import Status
from p2pmsg.sync.lifecycle import ClosesAtOnce, close_in_children
from p2pmsg.topics import check_topic
from p2pmsg.wire import Frame, FrameError, Kind, encoder
from recovery._renamed import renamed_arguments

_WAIT_MS: Final = 50
_REPLY_WAIT_MS: Final = 1
_log = logging.getLogger("p2pmsg")
Handler = Callable[[Any], Any]
H = TypeVar("H", bound=Handler)
Request = tuple[int, int]
"""The requester's id, and the request's number."""


class ReplyCache:
    """Replies by request, so that one that comes again does not do the work again.

    Bounded by number, bytes and age.

    Attributes:
        bytes: of the replies kept.
        hits: requests that were answered from it, or were being worked on.

    """

    def __init__(self, count_max: int, bytes_max: int, age_ns: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._age_ns = age_ns
        self._replies: OrderedDict[Request, tuple[bytes, int]] = OrderedDict()
        self._pending: dict[Request, bytes] = {}
        self.bytes = 0
        self.hits = 0

    def find(self, request: Request) -> bytes | None:
        """Return the reply to a request that came before, or None."""
        known = self._replies.get(request)
        if known is None:
            return None
        self.hits += 1
        return known[0]

    def keep(self, request: Request, reply: bytes, *, now_ns: int) -> None:
        """Keep a reply."""
        replies = self._replies
        replies[request] = (reply, now_ns)
        self.bytes += len(reply)
        while replies:
            oldest, at_ns = next(iter(replies.values()))
            full = len(replies) > self._count_max or self.bytes > self._bytes_max
            if not full and now_ns - at_ns < self._age_ns:
                return
            replies.popitem(last=False)
            self.bytes -= len(oldest)

    def begin(self, request: Request, where: bytes) -> tuple[bool, bytes | None]:
        """Note that a request came from `where`; return whether it is new, and its reply if any."""
        reply = self.find(request)
        if reply is not None:
            return False, reply
        is_new = request not in self._pending
        self.hits += not is_new
        self._pending[request] = where  # it is answered where it was asked last
        return is_new, None

    def end(self, request: Request, reply: bytes, *, now_ns: int) -> bytes | None:
        """Keep the reply to what was begun; return where it is to go."""
        self.keep(request, reply, now_ns=now_ns)
        return self._pending.pop(request, None)

    @property
    def pending(self) -> int:
        """How many requests are being worked on."""
        return len(self._pending)


class Responder(ClosesAtOnce):
    """Answers requests: what a topic's handler returns is the reply.

    ::

        with p2pmsg.Responder("tcp://127.0.0.1:5560", {"square": lambda n: n * n}) as responder:
            ...                                  # a background thread answers

    or `responder.serve()` in the caller's own thread. What a handler raises goes to the requester,
    with its type and text. A request that comes again is answered from a cache.

    Args:
        endpoint: where to bind.
        handlers: by topic; more with `on`. Default: none.
        threads: how many requests are worked on at once. Default 1: by the thread that receives
            them, which saves two changes of thread; more where handlers wait for something.
        pending_max: how many requests may wait for a thread; further ones are left to be asked
            again, and counted. Default 1000.
        cache_max: how many replies are kept. Default 10,000.
        cache_bytes_max: bytes of them. Default 64 MiB.
        cache_age: for how long, in seconds. Default 60: beyond the retries of most requests.
        message_bytes_max: largest reply, packed. Default 1 MiB.
        busy_wait: how long it looks for the next request before it sleeps, in seconds; as for
            `Requester`. Default 200.

    Raises:
        ConfigError: an argument is out of its limits; `EndpointError` for the endpoint.
        BindError: the endpoint could not be bound.

    """

    @renamed_arguments(cache_seconds="cache_age", busy_wait_us="busy_wait")
    def __init__(
        self,
        endpoint: str,
        handlers: Mapping[str, Handler] | None = None,
        *,
        threads: int = 1,
        pending_max: int = 1000,
        cache_max: int = 10_000,
        cache_bytes_max: int = 64 * 2**20,
        cache_age: float = 60.0,
        message_bytes_max: int = 1024 * 1024,
        busy_wait: float = transports.BUSY_WAIT_US / 1e6,
    ) -> None:
        whole("threads", threads, 1)
        whole("pending_max", pending_max, 1)
        whole("cache_max", cache_max, 0)
        whole("cache_bytes_max", cache_bytes_max, 0)
        at_least("cache_age", cache_age, 0)
        whole("message_bytes_max", message_bytes_max, 64)
        check_busy_wait(busy_wait)
        self._threads = threads
        self._pending_max = pending_max
        self._bytes_max = message_bytes_max
        self._cache = ReplyCache(cache_max, cache_bytes_max, round(cache_age * 1e9))
        self._handlers: dict[str, Handler] = {}
        for topic, handler in (handlers or {}).items():
            self._add(topic, handler)
        self.answered = self.raised = self.refused = self.unsent = 0
        self.invalid: dict[str, int] = {}
        self._done: deque[tuple[Request, bytes]] = deque()
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._serving = threading.Lock()
        self._closed = False
        self._unusable = "it is closed"
        with translated():
            self._server = transports.ZmqQueueServer(
                endpoint, context=transports.context(), busy_wait_us=busy_wait * 1e6
            )
        # There is no credit here: a requester that never reads must not fill the memory.
        self._server.memory = transports.ReplyMemory()
        close_in_children(self)

    @property
    def endpoint(self) -> str:
        """Where requesters connect to, with the port that was picked."""
        return self._server.endpoint

    @property
    def cached(self) -> int:
        """How many requests were answered from the cache, or were at work already."""
        return self._cache.hits

    def on(self, topic: str) -> Callable[[H], H]:
        """Return a decorator that makes a function the handler of `topic`."""

        def add(handler: H) -> H:
            self._add(topic, handler)
            return handler

        return add

    def serve(self) -> None:
        """Answer requests in this thread, until `close` is called by another, or Ctrl-C.

        Raises:
            ClosedError: the responder is closed, or is served already.

        """
        if self._closed:
            raise ClosedError("the responder", self._unusable)
        if not self._serving.acquire(blocking=False):
            raise ClosedError("the responder", "another thread serves it already")
        try:
            if self._threads > 1:
                self._pool = ThreadPoolExecutor(self._threads, "p2pmsg-responder")
            while not self._closed:
                self._round()
        except transports.ClosedError:
            pass
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)
                with contextlib.suppress(transports.ClosedError):
                    self._send_replies()
            self._serving.release()

    def start(self) -> None:
        """Answer requests in a background thread from now on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="p2pmsg-responder", daemon=True)
            self._thread.start()

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
        self.start()
        return self

    def __repr__(self) -> str:
        return f"<Responder {'closed' if self._closed else self.endpoint}>"

    # -------------------------------------------------------------------------------- private

    def _forget(self) -> None:
        """In a forked child: neither the socket nor the thread is the child's."""
        self._closed = True
        self._unusable = "it belongs to the parent process"

    def _add(self, topic: str, handler: Handler) -> None:
        try:
            check_topic(topic)
        except ValueError as error:
            raise ConfigError("topic", f"a topic ({error})", topic) from error
        check("handler", handler, callable(handler), "something that can be called")
        self._handlers[topic] = handler

    def _run(self) -> None:
        try:
            self.serve()
        except Exception:
            _log.exception("the responder's thread ended")

    def _round(self) -> None:
        waits = self._done or self._cache.pending
        found = self._server.receive_wait(_REPLY_WAIT_MS if waits else _WAIT_MS)
        if found is not None:
            self._take(*found)
        if self._done:
            self._send_replies()

    def _take(self, where: bytes, data: bytes) -> None:
        try:
            frame = Frame(data)
            if frame.kind != Kind.REQUEST or not frame.topic:
                raise FrameError("kind")
            value = frames.body_of(frame)
        except FrameError as error:
            self.invalid[str(error)] = self.invalid.get(str(error), 0) + 1
            return
        if self._pool is not None and self._cache.pending >= self._pending_max:
            self.refused += 1
            return
        request = (frame.session, frame.sequence)
        now_ns = time.monotonic_ns()
        if self._pool is None:
            reply = self._cache.find(request)
            if reply is None:
                reply = self._work(request, frame.topic, value)
                self._cache.keep(request, reply, now_ns=now_ns)
            self._reply(where, reply)
            return
        is_new, reply = self._cache.begin(request, where)
        if reply is not None:
            self._reply(where, reply)
        elif is_new:
            self._pool.submit(self._work_in_pool, request, frame.topic, value)

    def _work_in_pool(self, request: Request, topic: str, value: Any) -> None:
        self._done.append((request, self._work(request, topic, value)))

    def _work(self, request: Request, topic: str, value: Any) -> bytes:
        """Call the handler; return the frame that answers."""
        handler = self._handlers.get(topic)
        if handler is None:
            return frames.reply_frame(*request, Status.NO_HANDLER, b"\xc0")
        try:
            packed = encoder.encode(handler(value))
            if len(packed) > self._bytes_max:
                check_size("reply", len(packed), self._bytes_max)
        except Exception as error:  # the requester's, not ours
            self.raised += 1
            return frames.reply_frame(*request, Status.RAISED, frames.error_body(error))
        return frames.reply_frame(*request, Status.DONE, packed)

    def _send_replies(self) -> None:
        while self._done:
            request, reply = self._done.popleft()
            where = self._cache.end(request, reply, now_ns=time.monotonic_ns())
            if where is not None:
                self._reply(where, reply)

    def _reply(self, where: bytes, reply: bytes) -> None:
        try:
            if self._server.reply(where, reply):
                self.answered += 1
                transports.TURN.is_theirs = True
            else:
                self.unsent += 1
        except transports.PeerUnreachableError:
            pass  # it asks again over its next connection, and is answered from the cache
