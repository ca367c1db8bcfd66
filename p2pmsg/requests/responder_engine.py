"""What a responder was asked, what is at work, and what it has answered: no sockets or threads."""

from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from p2pmsg.checks import check, check_result, check_runs
from p2pmsg.errors import ClosedError, ConfigError, InvalidValueError
from p2pmsg.publisher.packing import check_size, pack_exactly
from p2pmsg.requests import frames
from p2pmsg.requests.frames import Status
from p2pmsg.requests.reply_cache import NEVER_NS, Number, ReplyCache
from p2pmsg.subscriber.typed import Misfit, ValueType, ValueTypes
from p2pmsg.topics import check_topic
from p2pmsg.wire import Frame, FrameError, Kind

if TYPE_CHECKING:
    from p2pmsg.requests.request_access import RequestAccess

Handler = Callable[[Any], Any]
WAITING_MAX: Final = 10_000
"""How many requests are received and wait; further ones stay in the socket."""
WAITING_BYTES_MAX: Final = 16 * 2**20
LEFT: Final = object()
"""What a handler returns that leaves a request unanswered, so that another responder is asked."""
EXPIRED: Final = object()
"""What a handler returns that had to wait while its requester stopped waiting."""
CURRENT: Final[ContextVar["Work"]] = ContextVar("CURRENT")
"""What the current thread, or task, works on."""


class Work:
    """A request to be worked on; its methods are called outside of the section.

    Attributes:
        number: which request.
        topic: of it.
        until_ns: when its requester stops waiting, unless it asks again.
        size: how many bytes it has.
        reply: the frame that answers; None: none does.
        error: what its handler raised.
        is_late: whether none answers since nobody waits for it.
        is_misfit: whether its value did not fit its type.

    """

    __slots__ = (
        "_bytes_max", "_cache", "_handler", "_hint", "_kind", "_value", "error", "is_late",
        "is_misfit", "number", "reply", "size", "topic", "until_ns",
    )  # fmt: skip

    def __init__(
        self, engine: "ResponderEngine", number: Number, topic: str, value: Any, until_ns: int,
        size: int,
    ) -> None:  # fmt: skip
        self.number = number
        self.topic = topic
        self.until_ns = until_ns
        self.size = size
        self.reply: bytes | None = None
        self.error: BaseException | None = None
        self.is_late = self.is_misfit = False
        self._handler, self._kind = engine.handlers[topic]
        self._value = value
        self._bytes_max = engine.bytes_max
        self._hint = engine.hint
        self._cache = engine.cache

    def is_over(self, now_ns: int) -> bool:
        """Whether nobody waits for it any more."""
        return self._cache.is_over(self.number, now_ns)

    def call(self) -> Any:
        """Call the handler, with the value as it wants it."""
        value = self._value
        if self._kind is not None:
            value = self._kind.convert(value)
            if isinstance(value, Misfit):
                self.is_misfit = True
                text = f"a request {self.topic!r}"
                raise InvalidValueError(text, value.path, value.reason)
        return self._handler(value)

    def succeed(self, result: Any) -> None:
        """Answer with a handler's result; raises where that cannot be sent."""
        if result is LEFT or result is EXPIRED:
            self.is_late = result is EXPIRED
            return
        try:
            packed = pack_exactly(result)
        except Exception:
            check_result("the handler", result, self._hint)
            raise
        if len(packed) > self._bytes_max:
            check_size("reply", len(packed), self._bytes_max)
        requester, number, *_ = self.number
        self.reply = frames.reply_frame(requester, number, Status.DONE, packed)

    def fail(self, error: BaseException) -> None:
        """Answer with an exception: the requester's, not ours."""
        packed = frames.error_body(error)
        requester, number, *_ = self.number
        self.reply = frames.reply_frame(requester, number, Status.RAISED, packed)
        self.error = error

    def run(self) -> bool:
        """Call the handler, and answer, whatever it raises; return True: it is done."""
        token = CURRENT.set(self)
        try:
            self.succeed(self.call())
        except BaseException as error:  # SystemExit and KeyboardInterrupt, too: see `ended_by`
            self.fail(error)
        finally:
            CURRENT.reset(token)
        return True


class ResponderEngine:
    """Takes requests, says what is to be worked on, and keeps the replies.

    Args:
        kind, kinds: what the values of requests are made.
        slots: how many of the handlers that have to wait for a slot are at work at once.
        pending_max: how many of their requests may wait for that.
        cache: of replies.
        message_bytes_max: largest packed reply.
        hint: what to do about a coroutine that a handler returned.

    Attributes:
        handlers: by topic, each with what its values are made.
        replies: what is to be sent: to where, as the reply to which request, and the frame.
        cache: of replies.
        access: who may ask for what; None: anybody.
        answered: replies that were sent.
        raised: handlers that raised.
        refused: requests that were not taken, since too many waited.
        expired: requests that were not begun, since their requester had stopped waiting.
        unsent: replies that did not fit into the requester's queue.
        invalid: frames that were dropped, by reason.
        invalid_values: requests whose value did not fit its type.
        closed: why it cannot be used; "" while it can.
        served_by: the thread that works on the requests; 0: none does.
        ended_by: SystemExit or KeyboardInterrupt of a handler, which ends that.

    """

    def __init__(
        self, kind: Any, kinds: Mapping[str, Any] | None, slots: int, pending_max: int,
        cache: ReplyCache, message_bytes_max: int, hint: str,
    ) -> None:  # fmt: skip
        self.handlers: dict[str, tuple[Handler, ValueType | None]] = {}
        self.hint = hint
        self.bytes_max = min(message_bytes_max, frames.VALUE_BYTES_MAX)
        self.replies: deque[tuple[bytes, Number | None, bytes]] = deque()
        self.cache = cache
        self.access: RequestAccess | None = None
        self.answered = self.raised = self.refused = self.expired = self.unsent = 0
        self.invalid: dict[str, int] = {}
        self.invalid_values = 0
        self.closed = ""
        self.served_by = 0
        self.ended_by: BaseException | None = None
        self._types = ValueTypes(kind, kinds, "raise")
        self._limited: set[str] = set()
        self._slots = slots
        self._pending_max = pending_max
        self._quick: deque[Work] = deque()
        self._slow: deque[Work] = deque()
        self._bytes = 0
        self._at_work: dict[Number, Work] = {}

    # ----------------------------------------------------------------------------- handlers

    def add(self, topic: str, handler: Handler, *, is_limited: bool) -> None:
        """Have `handler` answer a topic; `is_limited`: it waits for a slot."""
        try:
            check_topic(topic)
        except ValueError as error:
            raise ConfigError("topic", f"a topic ({error})", topic) from error
        check("handler", handler, callable(handler), "something that can be called")
        check_runs(f"the handler of {topic!r}", handler)
        self.handlers[topic] = handler, self._types.of(topic)
        if is_limited:
            self._limited.add(topic)
        else:
            self._limited.discard(topic)

    def open_to(self, access: "RequestAccess") -> None:
        """Answer only those who may ask."""
        self.access = access

    def limit(self, topic: str) -> None:
        """Have requests of a topic wait for a slot from now on."""
        self._limited.add(topic)

    # ---------------------------------------------------------------------------- receiving

    @property
    def is_busy(self) -> bool:
        """Whether something waits to be worked on, or is at work."""
        return bool(self._at_work or self._quick or self._slow)

    def has_space(self) -> bool:
        """Whether one more request may be received."""
        waiting = len(self._quick) + len(self._slow)
        return waiting < WAITING_MAX and self._bytes < WAITING_BYTES_MAX and not self.closed

    def receive(self, where: bytes, data: bytes, user: str, now_ns: int) -> None:
        """Take what came; what is malformed is counted."""
        try:
            frame = Frame(data)
            topic = frame.topic
            if frame.kind != Kind.REQUEST or not topic:
                raise FrameError("kind")
            number = frame.session, frame.sequence, user, topic if user else ""
            if self.access is not None and not self.access.may(user, topic):
                self._deny(where, number, topic, now_ns)
                return
            value = frames.body_of(frame)
        except FrameError as error:
            self.invalid[str(error)] = self.invalid.get(str(error), 0) + 1
            return
        until_ns = now_ns + frame.count * 1_000_000 if frame.count else NEVER_NS
        is_new, reply = self.cache.begin(number, where, until_ns)
        if reply is not None:
            if not self.cache.is_pending(number, where, now_ns=now_ns):
                self._answer(where, number, reply, now_ns)
        elif is_new:
            if topic not in self.handlers:
                reply = frames.reply_frame(*number[:2], Status.NO_HANDLER, b"\xc0")
                self._end(number, reply, now_ns)
            elif topic not in self._limited:
                self._bytes += len(data)
                self._quick.append(Work(self, number, topic, value, until_ns, len(data)))
            elif len(self._slow) + len(self._at_work) < self._slots + self._pending_max:
                self._bytes += len(data)
                self._slow.append(Work(self, number, topic, value, until_ns, len(data)))
            else:
                self.refused += 1
                self.cache.drop(number)

    # ------------------------------------------------------------------------------ working

    def check_usable(self) -> None:
        """Raise `ClosedError` where it is closed."""
        if self.closed:
            raise ClosedError("the responder", self.closed)

    def begin_serving(self, thread: int) -> None:
        """Begin to work on requests; `ClosedError` where it is closed or another thread does.

        The same thread may begin again, as after an interrupt that kept it from ending.
        """
        self.check_usable()
        if self.served_by not in (0, thread):
            raise ClosedError("the responder", "another thread serves it already")
        self.served_by, self.ended_by = thread, None

    def end_serving(self, thread: int) -> None:
        """Have nobody work on requests from now on, where this thread does."""
        if self.served_by == thread:
            self.served_by = 0

    def must_end(self) -> bool:
        """Whether who works on requests has to end."""
        return bool(self.closed) or not self.served_by or self.ended_by is not None

    def has_work(self) -> bool:
        """Whether there is something to work on, or who does has to end."""
        return bool(self._quick) or self._has_slow_work() or self.must_end()

    def _has_slow_work(self) -> bool:
        return bool(self._slow) and len(self._at_work) < self._slots

    def take(self, now_ns: int) -> Work | None:
        """Return what is to be worked on next; None: nothing is, or who does has to end."""
        if self.closed or not self.served_by or self.ended_by is not None:
            return None
        while True:
            if self._slow and len(self._at_work) < self._slots:
                work = self._slow.popleft()
            elif self._quick:
                work = self._quick.popleft()
                if work.topic in self._limited:  # since it came
                    self._slow.append(work)
                    continue
            else:
                return None
            self._bytes -= work.size
            if work.until_ns > now_ns or not work.is_over(now_ns):
                return work
            self.expired += 1
            self.cache.drop(work.number)

    def begin(self, work: Work) -> None:
        """Count as at work what its taker has by now, and is to `finish` or `drop`."""
        self._at_work[work.number] = work

    def finish(self, work: Work, now_ns: int) -> None:
        """Take the result of a request; who asks again gets the same reply."""
        self._at_work.pop(work.number, None)
        if work.reply is None:
            self.expired += work.is_late
            self.refused += not work.is_late
            self.cache.drop(work.number)
            return
        if work.error is not None:
            self.raised += 1
            self.invalid_values += work.is_misfit
            if isinstance(work.error, SystemExit | KeyboardInterrupt):
                self.ended_by = self.ended_by or work.error
        self._end(work.number, work.reply, now_ns)

    def drop(self, work: Work) -> None:
        """Leave a request whose work was interrupted: asked again, it is done again."""
        self._at_work.pop(work.number, None)
        self.cache.drop(work.number)

    def drop_lost(self) -> None:
        """Leave what an interrupt kept from ending, where nothing is at work any more."""
        for work in list(self._at_work.values()):
            self.drop(work)

    def is_idle(self, own: Work | None) -> bool:
        """Whether nothing is at work, except for `own`."""
        return not self._at_work.keys() - ({own.number} if own else set())

    # ---------------------------------------------------------------------------- answering

    def _end(self, number: Number, data: bytes, now_ns: int) -> None:
        """Keep the reply to what was begun, and send it to where it was asked last."""
        where = self.cache.end(number, data, now_ns=now_ns)
        if where is None:
            return
        if self.access is None:
            self.replies.append((where, number, data))
        else:
            self._answer(where, number, data, now_ns)

    def _answer(self, where: bytes, number: Number, data: bytes, now_ns: int) -> None:
        if self.access is not None and not self.access.may(*number[2:]):
            self._deny(where, number, number[3], now_ns)  # the right was taken away meanwhile
        else:
            self.replies.append((where, number, data))

    def _deny(self, where: bytes, number: Number, topic: str, now_ns: int) -> None:
        assert self.access is not None
        why = self.access.deny(number[2], topic, now_ns)
        body = frames.denied_body(why)
        data = frames.reply_frame(*number[:2], Status.DENIED, body)
        self.replies.append((where, None, data))

    def on_sent(self, where: bytes, number: Number | None, now_ns: int) -> None:
        """Take it that a reply was sent."""
        self.answered += 1
        if number is not None:
            self.cache.on_sent(number, where, now_ns=now_ns)

    def on_unsent(self) -> None:
        """Take it that there was no space for a reply; asked again, it is sent again."""
        self.unsent += 1

    # ------------------------------------------------------------------------------- the end

    def resync(self) -> None:
        """Put it right after an exception: what is neither waiting nor at work is new again."""
        known = {each.number for each in (*self._quick, *self._slow)} | self._at_work.keys()
        self.cache.resync(known)
        self._bytes = sum(each.size for each in (*self._quick, *self._slow))

    def close(self, why: str) -> None:
        """Take no more requests, and begin none."""
        self.closed = self.closed or why
