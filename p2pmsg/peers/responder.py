"""A responder: its socket, and the requests that it works on."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import transports
from p2pmsg.driver.lifecycle import INHERITED
from p2pmsg.driver.peer import CLOSED, Peer
from p2pmsg.driver.verbs import Calling, Verb, Wait
from p2pmsg.errors import translated
from p2pmsg.peers.base import BoundBase
from p2pmsg.peers.network import Network
from p2pmsg.requests.reply_cache import NEVER_NS, ReplyCache
from p2pmsg.requests.responder_engine import CURRENT, Handler, ResponderEngine, Work
from p2pmsg.requests.stats import ResponderStats
from p2pmsg.security.access_watch import AccessWatch
from p2pmsg.security.use import curve_server, warn_if_open
from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

H = TypeVar("H", bound=Handler)
_SLICE_NS: Final = 2_000_000
_BURST: Final = 64
"""How many requests are received at once while others wait to be worked on, every 10 ms."""
_BURST_NS: Final = 10_000_000
_RIGHTS_NS: Final = 1_000_000_000
"""How often it is checked, with security, whether rights have changed."""
_LINGER_MS: Final = 500


class ResponderPeer(Peer):
    """A socket for requests and replies.

    Args:
        engine: with its first handlers.
        endpoint: where to bind; a host's name is looked up, which may take long.
        busy_wait: for how long it looks for the next request before it sleeps, in seconds.
        security: keys, or None.
        answer: calls a request's handler, outside of the section; returns whether that has ended:
            else `finish` will be called when it has.
        is_in_loop: whether handlers are called next to the turns, in an event loop, and by no
            thread that serves.
        network: has its socket, and the time.

    """

    thread_name = ""  # who serves takes the turns

    def __init__(
        self, engine: ResponderEngine, endpoint: str, busy_wait: float,
        security: "Security | None", answer: Callable[[Work], bool], is_in_loop: bool,
        network: Network,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.now_ns = network.now_ns
        self._is_in_loop = is_in_loop or network.in_memory
        with translated():
            self._server = server = network.queue_server(
                transports.parse_endpoint(endpoint),
                curve=curve_server(security),
                # There is no credit here: a requester that never reads must not fill the memory.
                bounds_replies=True,
            )
        self.places = server.endpoint
        self.name = f"the responder at {self.places}"
        self._answer = answer
        self._turn = transports.Turn()
        self._busy_wait = network.busy_wait(busy_wait, server.has_message, self._turn)
        self._has_more = self._is_shut = False
        self._burst_due_ns = 0
        self._burst = 1 if security is not None else _BURST  # a socket says whose the last one was
        self._fds = frozenset({server.fileno()})
        self._watch: AccessWatch | None = None
        warn_if_open(security, server.endpoint)
        if security is not None:
            from p2pmsg.requests.request_access import RequestAccess

            self._watch = AccessWatch(security.grants, None, server)
            engine.open_to(RequestAccess(security.grants, server.endpoint))

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more requests."""
        return bool(self.engine.closed)

    def stats(self) -> ResponderStats:
        """Return the counters."""
        engine, server, access = self.engine, self._server, self.engine.access
        return ResponderStats(
            answered=engine.answered, raised=engine.raised, refused=engine.refused,
            expired=engine.expired, unsent=engine.unsent, cached=engine.cache.hits,
            frames_invalid=dict(engine.invalid), values_invalid=engine.invalid_values,
            denied=0 if access is None else access.denials.count,
            connections_refused=server.refused_by_key,
            connections_revoked=server.connections.revoked,
        )  # fmt: skip

    # --------------------------------------------------------------------------------- turns

    def turn(self, now_ns: int) -> None:
        """See `Peer`."""
        engine = self.engine
        self._has_more = False
        if engine.closed:
            return
        if self._watch is not None:
            self._watch.poll()
        self._server.connections.update_soon()
        count = self._burst if now_ns >= self._burst_due_ns else 1
        while engine.has_space() and self._read(count):
            if engine.is_busy or self.now_ns() > now_ns + _SLICE_NS:
                self._has_more = True
                break
        else:
            self._burst_due_ns = now_ns + _BURST_NS
        if engine.replies:
            self._send_replies()
        if self._turn.is_theirs and not engine.is_busy and self._busy_wait.begin():
            self._read()
        self._turn.is_theirs = False

    def fds(self) -> frozenset[int]:
        """See `Peer`."""
        return frozenset() if self.engine.closed else self._fds

    def next_deadline_ns(self) -> int:
        """See `Peer`."""
        if self.engine.closed:
            return NEVER_NS
        if self._has_more:
            return 0
        return NEVER_NS if self._watch is None else self.now_ns() + _RIGHTS_NS

    def resync(self) -> None:
        """See `Peer`."""
        self.engine.resync()
        self._server.resync()
        self._has_more = True

    def shut(self) -> None:
        """See `Peer`."""
        self.engine.close(CLOSED)
        self._is_shut = True
        self._server.close(linger_ms=_LINGER_MS)

    def abandon(self) -> None:
        """See `Peer`."""
        self.engine.close(INHERITED)

    # ------------------------------------------------------------------------------ handlers

    def add(self, topic: str, handler: Handler, *, is_limited: bool) -> None:
        """Have `handler` answer a topic; `is_limited`: it waits for a slot."""
        self.engine.add(topic, handler, is_limited=is_limited)

    def limit(self, topic: str) -> None:
        """Have requests of a topic wait for a slot from now on."""
        self.engine.limit(topic)

    def check_open(self) -> None:
        """Raise `ClosedError` where it is closed."""
        self.engine.check_usable()

    def begin_serving(self, thread: int) -> None:
        """Have `thread` work on requests; `ClosedError` where it is closed or another one does."""
        self.engine.begin_serving(thread)

    def be_served(self, thread: int) -> bool:
        """Have `thread` work on requests where none does; return whether none did."""
        self.engine.check_usable()
        is_new = not self.engine.served_by
        if is_new:
            self.engine.begin_serving(thread)
        return is_new

    def end_serving(self, thread: int) -> None:
        """Have nobody work on requests from now on, where this thread does."""
        self.engine.end_serving(thread)

    def drop(self, work: Work) -> None:
        """Leave a request whose work was interrupted: asked again, it is done again."""
        self.engine.drop(work)

    def drop_lost(self) -> None:
        """Leave what an interrupt kept from ending, where nothing is at work any more."""
        self.engine.drop_lost()

    def finish(self, work: Work) -> None:
        """Send the reply to a request."""
        self.engine.finish(work, self.now_ns())
        self._send_replies()

    # --------------------------------------------------------------------------------- verbs

    def serve(self) -> Verb[BaseException | None]:
        """Work on requests until it is to end; return what a handler raised for the program."""
        engine, work, until_ns = self.engine, None, 0
        try:
            while True:
                work = engine.take(self.now_ns())
                if work is None:
                    if engine.must_end():
                        return engine.ended_by
                    yield Wait(engine.has_work)
                    continue
                engine.begin(work)
                has_ended = yield Calling(partial(self._answer, work))
                if has_ended:
                    engine.finish(work, self.now_ns())
                    self._send_replies()
                work = None
                now_ns = self.now_ns()
                self.turn(now_ns)
                if now_ns > until_ns and engine.has_work():
                    yield Wait(engine.has_work)  # in an event loop, others go on before that
                    until_ns = self.now_ns() + _SLICE_NS
        finally:
            if work is not None:
                engine.drop(work)

    def upkeep(self) -> Verb[None] | None:
        """See `Peer`: in an event loop, work on requests."""
        return self._keep_serving() if self._is_in_loop else None

    def _keep_serving(self) -> Verb[None]:
        while True:
            yield Wait(self._is_served)
            raised = yield from self.serve()
            self.engine.end_serving(self.engine.served_by)
            if raised is not None:
                yield Calling(partial(_raise, raised))

    def wait_for_end(self) -> Verb[None]:
        """Wait until it is closed."""
        while not self.engine.closed:
            yield Wait(lambda: self.is_closed)

    def close(self, timeout: float | None, why: str) -> Verb[None]:
        """Begin nothing any more, and wait until what is at work has ended."""
        own = CURRENT.get(None)
        self.engine.close(why)
        yield Wait(partial(self.engine.is_idle, own), self.deadline_ns(timeout))

    # -------------------------------------------------------------------------------- private

    def _is_served(self) -> bool:
        return bool(self.engine.served_by)

    def _read(self, count: int = 1) -> bool:
        """Take the next requests; whether there was one."""
        found = self._server.receive_some(count)
        if not found:
            return False
        self._busy_wait.end()
        now_ns, server, engine = self.now_ns(), self._server, self.engine
        for where, data in found:
            engine.receive(where, data, server.user, now_ns)
        return True

    def _send_replies(self) -> None:
        engine, server = self.engine, self._server
        if self._is_shut:
            engine.replies.clear()
        while engine.replies:
            where, number, data = engine.replies[0]
            sent = server.reply(where, data)
            engine.replies.popleft()  # after it, since an exception may come in between
            if sent:
                engine.on_sent(where, number, self.now_ns())
                self._turn.is_theirs = True
            elif sent is False:  # None: it asks again over its next connection, and gets this one
                engine.on_unsent()


def _raise(error: BaseException) -> None:
    raise error


class ResponderBase(BoundBase):
    """What a responder has that never waits."""

    _peer: ResponderPeer
    _check_handler: Callable[[str, Any], bool]
    _answer: Callable[[Work], bool]
    _hint: ClassVar[str]
    _is_in_loop: ClassVar[bool]
    _patience_s: ClassVar[float | None] = None
    _slots: int

    def _configure(
        self, endpoint: str, handlers: Mapping[str, Handler] | None, pending_max: int,
        cache_max: int, cache_bytes_max: int, cache_age: float, message_bytes_max: int, kind: Any,
        kinds: Mapping[str, Any] | None, busy_wait: float, security: "Security | None",
    ) -> None:  # fmt: skip
        self._security = security
        cache = ReplyCache(cache_max, cache_bytes_max, to_ns(cache_age))
        engine = ResponderEngine(
            kind, kinds, self._slots, pending_max, cache, message_bytes_max, self._hint
        )
        for topic, handler in (handlers or {}).items():
            engine.add(topic, handler, is_limited=self._check_handler(topic, handler))
        self._begin(
            ResponderPeer, engine, endpoint, busy_wait, security, self._answer, self._is_in_loop
        )

    def stats(self) -> ResponderStats:
        """Return the counters as they are now; also after `close`."""
        return self._read(self._peer.stats)

    def on(self, topic: str) -> Callable[[H], H]:
        """Return a decorator that makes a function the handler of `topic`."""

        def add(handler: H) -> H:
            is_limited = self._check_handler(topic, handler)
            add = partial(self._peer.add, is_limited=is_limited)
            self._driver.section.run(add, topic, handler)
            return handler

        return add
