"""What the responders for threads and for asyncio share: handlers, the cache, reading, replying."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import transports
from p2pmsg.checks import check, check_result, check_runs, shown
from p2pmsg.driver.lifecycle import INHERITED, zmq_context
from p2pmsg.errors import ClosedError, ConfigError, InvalidValueError, translated
from p2pmsg.publisher.batch import check_size, pack_exactly
from p2pmsg.requests import frames
from p2pmsg.requests.frames import Status
from p2pmsg.requests.inbox import Arrival
from p2pmsg.security.use import curve_server, warn_if_open
from p2pmsg.subscriber.typed import Misfit, ValueType, ValueTypes
from p2pmsg.topics import check_topic
from p2pmsg.wire import Frame, FrameError, Kind
from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.requests.request_access import RequestAccess
    from p2pmsg.security.settings import Security

Handler = Callable[[Any], Any]
H = TypeVar("H", bound=Handler)
_OF_CONNECTION: Final = b"\0"
"""How ZeroMQ's own routing ids begin, of which each connection has another one."""
_PENDING_NS: Final = 30_000_000_000
"""How long a reply may be on its way."""
NEVER_NS: Final = 2**63
"""When one stops waiting that waits without limit."""
Request = tuple[int, int, str, str]
"""The requester's id, the request's number, and with keys the user id and the topic.

So the answer to one user's request is no other's, and it is known who may have it."""


LEFT: Final = object()
"""What a handler returns that leaves a request unanswered, so that another responder is asked."""
EXPIRED: Final = object()
"""What a handler returns that had to wait while its requester stopped waiting."""


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
        self._pending: dict[Request, tuple[bytes, int]] = {}
        self._sent: dict[Request, tuple[bytes, int]] = {}
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
            self._sent.pop(replies.popitem(last=False)[0], None)
            self.bytes -= len(oldest)

    def on_sent(self, request: Request, where: bytes, *, now_ns: int) -> None:
        """Note that the reply was sent over a connection; of one that is not kept, nothing."""
        if request in self._replies:
            self._sent[request] = where, now_ns

    def is_pending(self, request: Request, where: bytes, *, now_ns: int) -> bool:
        """Whether the reply was sent over this connection, which loses nothing while it lasts.

        Over a slow network that takes longer than a requester waits until it asks again. Sent once
        more, it would delay what comes next, which is asked for again, too, and so on.
        """
        sent = self._sent.get(request)
        if sent is None or sent[0] != where or not where.startswith(_OF_CONNECTION):
            return False
        return now_ns - sent[1] < _PENDING_NS

    def begin(
        self, request: Request, where: bytes, until_ns: int = NEVER_NS
    ) -> tuple[bool, bytes | None]:
        """Note that a request came; return whether it is new, and its reply if any.

        Args:
            request: which one.
            where: it came from; it is answered where it was asked last.
            until_ns: when its requester stops waiting; asked again, it may wait longer.

        """
        reply = self.find(request)
        if reply is not None:
            return False, reply
        known = self._pending.get(request)
        if known is not None:
            self.hits += 1
            until_ns = max(until_ns, known[1])
        self._pending[request] = where, until_ns
        return known is None, None

    def is_over(self, request: Request, now_ns: int) -> bool:
        """Whether nobody waits any more for what was begun; any thread may ask."""
        known = self._pending.get(request)
        return known is not None and known[1] <= now_ns

    def end(self, request: Request, reply: bytes, *, now_ns: int) -> bytes | None:
        """Keep the reply to what was begun; return where it is to go."""
        self.keep(request, reply, now_ns=now_ns)
        return self._pending.pop(request, (None, 0))[0]

    def drop(self, request: Request) -> None:
        """Forget what was begun and will not be done: asked again, it is new."""
        self._pending.pop(request, None)

    def drop_all(self) -> None:
        """Forget all that was begun; replies that are kept stay."""
        self._pending.clear()

    @property
    def pending(self) -> int:
        """How many requests are being worked on."""
        return len(self._pending)


def _reply_to(request: Request, status: Status, body: bytes) -> bytes:
    requester, number, *_ = request
    return frames.reply_frame(requester, number, status, body)


class ResponderBase:
    """Reads requests and sends replies; who works on them, and when, is left out.

    Attributes:
        answered: replies that were sent.
        raised: handlers that raised.
        refused: requests that were not taken, since too many waited.
        expired: requests that were not begun, since their requester had stopped waiting when it
            was their turn: its time-out, counted from when they were received here, was over.
        unsent: replies that did not fit into the requester's queue.
        invalid: frames that were dropped, by reason.
        invalid_values: requests whose value did not fit its type; each is answered with an error.

    """

    _server: transports.ZmqQueueServer
    _access_rules: "RequestAccess | None" = None
    _HINT = "await it there"
    """What to do about a coroutine that a handler returned."""

    def _configure(
        self,
        handlers: Mapping[str, Handler] | None,
        pending_max: int,
        cache_max: int,
        cache_bytes_max: int,
        cache_age: float,
        message_bytes_max: int,
        kind: Any,
        kinds: Mapping[str, Any] | None,
        security: "Security | None",
    ) -> None:
        self._security = security
        self._types = ValueTypes(kind, kinds, "raise")
        self._type_of: dict[str, ValueType | None] = {}
        self.invalid_values = 0
        self._pending_max = pending_max
        self._bytes_max = min(message_bytes_max, frames.VALUE_BYTES_MAX)
        self._cache = ReplyCache(cache_max, cache_bytes_max, to_ns(cache_age))
        self._handlers: dict[str, Handler] = {}
        for topic, handler in (handlers or {}).items():
            self._add(topic, handler)
        self.answered = self.raised = self.refused = self.expired = self.unsent = 0
        self.invalid: dict[str, int] = {}
        self._closed = False
        self._unusable = "it is closed"

    def _bind(self, endpoint: str, busy_wait: float) -> transports.ZmqQueueServer:
        """Return a bound socket; a host's name is looked up, which may take long."""
        with translated():
            server = transports.ZmqQueueServer(
                endpoint, context=zmq_context(), busy_wait_us=busy_wait * 1e6,
                curve=curve_server(self._security),
            )  # fmt: skip
        warn_if_open(self._security, server.endpoint)
        if self._security is not None:
            from p2pmsg.requests.request_access import RequestAccess

            self._access_rules = RequestAccess(self._security.grants, server)
        # There is no credit here: a requester that never reads must not fill the memory.
        server.memory = transports.ReplyMemory()
        return server

    # --------------------------------------------------------------------------------- public

    @property
    def endpoint(self) -> str:
        """Where requesters connect to, with the port that was picked."""
        return self._server.endpoint

    @property
    def connections_refused(self) -> int:
        """How many connections were refused by their keys, with `security`."""
        return self._server.refused_by_key

    @property
    def denied(self) -> int:
        """How many requests were denied, as their keys have no right to `request` that topic."""
        return 0 if self._access_rules is None else self._access_rules.denials.count

    @property
    def connections_revoked(self) -> int:
        """How many connections were ended since their keys were revoked, or are known no more."""
        return self._server.revoked

    def revoke(self, who: str) -> list[str]:
        """Admit a requester no more: its connections are ended, and it is sent no answer.

        It returns at once; the connections are ended within some ms while requests are answered. It
        holds for all peers that were given the same `Security`, while the process runs: take the
        peer out of the files as well.

        Args:
            who: the name of a peer that is known, or its public key as text.

        Returns:
            The public keys that were revoked, as text.

        Raises:
            ConfigError: there is no `security`, or no such peer.
            ClosedError: the responder is closed.

        """
        from p2pmsg.sync.access_watch import revoke_here

        if self._closed:
            raise ClosedError("the responder", self._unusable)
        users = revoke_here(self._security, who)
        self._wake()
        return users

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

    def __repr__(self) -> str:
        return shown(self, lambda: self.endpoint)

    # -------------------------------------------------------------------------------- private

    def _wake(self) -> None:
        """Have the rights looked at soon; a thread does that 20 times a second anyway."""

    def _forget(self) -> None:
        """In a forked child: neither the socket nor the thread is the child's."""
        self._closed = True
        self._unusable = INHERITED

    def _add(self, topic: str, handler: Handler) -> None:
        try:
            check_topic(topic)
        except ValueError as error:
            raise ConfigError("topic", f"a topic ({error})", topic) from error
        check("handler", handler, callable(handler), "something that can be called")
        check_runs(f"the handler of {topic!r}", handler)
        self._handlers[topic] = handler
        self._type_of[topic] = self._types.of(topic)

    def _read(self, arrival: Arrival) -> tuple[Request, str, Any, int] | None:
        """Return a request, its topic, its value, and when its requester stops waiting, in ns.

        What is malformed is counted. None, too, where its user has no right to it, and learned
        that.
        """
        where, data, user, received_ns = arrival
        try:
            frame = Frame(data)
            if frame.kind != Kind.REQUEST or not frame.topic:
                raise FrameError("kind")
            if self._access_rules is not None and not self._access_rules.may(user, frame.topic):
                self._deny(where, (frame.session, frame.sequence, user, frame.topic))
                return None
            value = frames.body_of(frame)
        except FrameError as error:
            self.invalid[str(error)] = self.invalid.get(str(error), 0) + 1
            return None
        topic = frame.topic
        request = frame.session, frame.sequence, user, topic if user else ""
        until_ns = received_ns + frame.count * 1_000_000 if frame.count else NEVER_NS
        return request, topic, value, until_ns

    def _expire(self, request: Request) -> None:
        """Leave a request that nobody waits for; asked again, it is new."""
        self.expired += 1
        self._cache.drop(request)

    def _typed(self, topic: str, value: Any) -> Any:
        """Return a request's value as its handler wants it; raise `InvalidValueError`."""
        kind = self._type_of[topic]
        if kind is None:
            return value
        made = kind.convert(value)
        if isinstance(made, Misfit):
            self.invalid_values += 1
            raise InvalidValueError(f"a request {topic!r}", made.path, made.reason)
        return made

    def _pack(self, request: Request, value: Any) -> bytes:
        """Return the frame that answers with a value; raises where that cannot be sent."""
        try:
            packed = pack_exactly(value)
        except Exception:
            check_result("the handler", value, self._HINT)
            raise
        if len(packed) > self._bytes_max:
            check_size("reply", len(packed), self._bytes_max)
        return _reply_to(request, Status.DONE, packed)

    def _pack_error(self, request: Request, error: BaseException) -> bytes:
        """Return the frame that answers with an exception: the requester's, not ours."""
        self.raised += 1
        return _reply_to(request, Status.RAISED, frames.error_body(error))

    def _refusal(self, request: Request) -> bytes:
        """Return the frame that says that there is no handler."""
        return _reply_to(request, Status.NO_HANDLER, b"\xc0")

    def _deny(self, where: bytes, request: Request) -> None:
        """Say that there is no right to what was asked, or answered."""
        assert self._access_rules is not None
        why = self._access_rules.deny(*request[2:])
        self._reply(where, _reply_to(request, Status.DENIED, frames.denied_body(why)))

    def _work(self, request: Request, topic: str, value: Any) -> bytes:
        """Call the handler; return the frame that answers."""
        handler = self._handlers.get(topic)
        if handler is None:
            return self._refusal(request)
        try:
            return self._pack(request, handler(self._typed(topic, value)))
        except Exception as error:
            return self._pack_error(request, error)
        except BaseException as error:  # SystemExit and KeyboardInterrupt: the requester has both
            self._ended_by(error)
            return self._pack_error(request, error)

    def _ended_by(self, error: BaseException) -> None:
        """Note that a handler raised what is for the program."""
        raise error

    def _reply_to(self, request: Request, reply: bytes) -> None:
        """Keep the reply to what was begun, and send it to where it was asked last."""
        where = self._cache.end(request, reply, now_ns=time.monotonic_ns())
        if where is not None:
            self._answer(where, request, reply)

    def _answer(self, where: bytes, request: Request, reply: bytes) -> None:
        """Send a reply, where its requester may still have it."""
        if self._access_rules is not None and not self._access_rules.may(*request[2:]):
            self._deny(where, request)  # the right was taken away meanwhile
        elif self._reply(where, reply):
            self._cache.on_sent(request, where, now_ns=time.monotonic_ns())

    def _answer_again(self, where: bytes, request: Request, reply: bytes) -> None:
        """Send a reply that is kept to who asks again, unless it is on its way."""
        if not self._cache.is_pending(request, where, now_ns=time.monotonic_ns()):
            self._answer(where, request, reply)

    def _reply(self, where: bytes, reply: bytes) -> bool:
        """Send a reply; return whether it was."""
        sent = self._server.reply(where, reply)
        if sent:
            self.answered += 1
            transports.TURN.is_theirs = True
        elif sent is False:  # None: it asks again over its next connection, and gets this one
            self.unsent += 1
        return bool(sent)
