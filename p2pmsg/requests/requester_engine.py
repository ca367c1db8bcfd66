"""What was asked of whom, how often, and what was answered: no sockets, clocks or threads."""

import heapq
import itertools
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from p2pmsg import codec
from p2pmsg.errors import (
    AccessDeniedError,
    AuthenticationError,
    ClosedError,
    RemoteError,
    RequestError,
    SendQueueFullError,
    denied_by_peer,
)
from p2pmsg.publisher.packing import check_size, pack_exactly
from p2pmsg.requests import frames
from p2pmsg.requests.answers import Answer
from p2pmsg.requests.frames import Status
from p2pmsg.topics import check_topic
from p2pmsg.wire import Frame, FrameError, Kind

if TYPE_CHECKING:
    import transports

_TOPICS_MAX: Final = 1024
_ATTEMPTS_MAX: Final = 1000
"""How often a request is asked at most: one that is asked more often could fill the queue of its
connection, which holds 1,024."""
_DUE_SPARE: Final = 64
NEVER_NS: Final = 2**63
Refusals = dict[int, str | AccessDeniedError]
"""Which responder refused the connection, and why; or what it denied."""


class Asked(ABC):
    """A request under way.

    Attributes:
        number: its number, the same each time it is asked.
        topic: what is asked.
        error: what its caller gets, where there is an error.

    """

    def __init__(
        self, engine: "RequesterEngine", topic: str, packed: bytes, time_ns: int, until_ns: int
    ) -> None:
        self.engine = engine
        self.number = next(engine.numbers)
        self.topic = topic
        self.packed = packed
        self.time_ns = time_ns
        self.until_ns = until_ns
        self.due_ns = until_ns
        self.error: Exception | None = None

    @abstractmethod
    def was_asked(self, at: int) -> bool:
        """Whether a responder was asked, and may still answer."""

    @abstractmethod
    def take(self, at: int, frame: Frame, now_ns: int) -> bool:
        """Take an answer; False where nobody waits for it any more."""

    @abstractmethod
    def refuse(self, at: int, why: str | AccessDeniedError, now_ns: int) -> None:
        """Take it that the connection over which it was asked was refused, or the right."""

    @abstractmethod
    def ask_again(self, at: int) -> None:
        """Take it that what was on its way to a responder may be lost."""

    @abstractmethod
    def check_time(self, now_ns: int) -> None:
        """Do what is due."""


class Request(Asked):
    """A request to one responder after the other.

    Attributes:
        answer: from which responder it came, and the frame; None: none came.
        asked: who was asked, in order.
        refusals: who refused, and why.
        attempts_max: how often it is asked.

    """

    def __init__(
        self, engine: "RequesterEngine", topic: str, packed: bytes, time_ns: int, until_ns: int,
        attempts_max: int,
    ) -> None:  # fmt: skip
        super().__init__(engine, topic, packed, time_ns, until_ns)
        self.attempts_max = min(attempts_max, _ATTEMPTS_MAX)
        self.answer: tuple[int, Frame] | None = None
        self.asked: list[int] = []
        self.refusals: Refusals = {}
        self._first = engine.first
        self._attempt = 0
        self._turns = 0
        self._at = -1
        self._gave_up = False

    def is_over(self) -> bool:
        """Whether it was answered, or nothing is waited for any more."""
        return self.answer is not None or self._gave_up or self.error is not None

    def was_asked(self, at: int) -> bool:
        """See `Asked`."""
        return at in self.asked and at not in self.refusals

    def ask(self, now_ns: int) -> None:
        """Ask the next responder; give up where no attempt, or nobody who would answer, is left."""
        count = len(self.engine.places)
        while self._attempt < self.attempts_max and len(self.refusals) < count:
            self._attempt += 1
            if self.asked and self._part_ends_ns() <= now_ns:
                continue  # the part of this attempt has passed
            at = (self._first + self._turns) % count
            self._turns += 1
            if at not in self.refusals:
                self._ask(at, now_ns)
                return
        if now_ns >= self.until_ns or all(at in self.refusals for at in self.asked):
            self._gave_up = True
            self.engine.first = (self._first + 1) % count
            self.engine.forget(self.number)
        else:
            self.due_ns = self.until_ns
            self.engine.expect(self)

    def _ask(self, at: int, now_ns: int) -> None:
        engine, is_again = self.engine, at in self.asked
        engine.retries += bool(self.asked)
        if not is_again:
            self.asked.append(at)
        self._at = at
        engine.queue(at, self.number, is_again=is_again)
        self.due_ns = part_ns = self._part_ends_ns()
        if not engine.has_answered[at]:
            self.due_ns = now_ns + (part_ns - now_ns) // 4
        engine.expect(self)

    def take(self, at: int, frame: Frame, now_ns: int) -> bool:
        """See `Asked`."""
        if self.is_over():
            return False
        engine = self.engine
        if frame.count == Status.DENIED:
            self.refuse(at, engine.denial_in(at, self.topic, frame), now_ns)
            return True
        self.answer = at, frame
        engine.first = at  # who answers is asked first the next time
        engine.forget(self.number)
        return True

    def refuse(self, at: int, why: str | AccessDeniedError, now_ns: int) -> None:
        """See `Asked`."""
        if self.is_over() or not (at == self._at or isinstance(why, AccessDeniedError)):
            return
        self.refusals[at] = why
        if at == self._at:
            self.ask(now_ns)

    def ask_again(self, at: int) -> None:
        """See `Asked`."""
        if self.attempts_max > 1 and self.was_asked(at):
            self.engine.queue(at, self.number, is_again=True)

    def check_time(self, now_ns: int) -> None:
        """See `Asked`."""
        part_ns = self._part_ends_ns()
        if now_ns < part_ns:
            self.engine.wonders = True
            self.due_ns = part_ns
            self.engine.expect(self)
        elif not self.is_over():
            self.ask(now_ns)

    def _part_ends_ns(self) -> int:
        """Return when the time of the attempt that was made last is over."""
        left = self.attempts_max - self._attempt
        return self.until_ns - self.time_ns * left // self.attempts_max


class Gathering(Asked):
    """A request to all responders.

    Attributes:
        came: what was answered and not taken yet; at the end, who did not answer.
        waiting: who has not answered.

    """

    def __init__(
        self, engine: "RequesterEngine", topic: str, packed: bytes, time_ns: int, until_ns: int
    ) -> None:
        super().__init__(engine, topic, packed, time_ns, until_ns)
        self.came: deque[Answer] = deque()
        self.waiting = list(range(len(engine.places)))
        for at in self.waiting:
            engine.queue(at, self.number, is_again=False)
        if not all(engine.has_answered):
            self.due_ns = until_ns - time_ns * 3 // 4
        engine.expect(self)

    def is_over(self) -> bool:
        """Whether all have answered, or nothing is waited for any more."""
        return not self.waiting or self.error is not None

    def has_answer(self) -> bool:
        """Whether an answer is there to be taken, or none will be."""
        return bool(self.came) or self.is_over()

    def was_asked(self, at: int) -> bool:
        """See `Asked`."""
        return at in self.waiting

    def take(self, at: int, frame: Frame, now_ns: int) -> bool:
        """See `Asked`."""
        if at not in self.waiting:
            return False
        engine, place = self.engine, self.engine.places[at]
        try:
            answer = Answer(place, engine.outcome(self.topic, at, frame))
        except (RequestError, AccessDeniedError) as error:
            answer = Answer(place, error=error)
        self._add(at, answer)
        return True

    def refuse(self, at: int, why: str | AccessDeniedError, now_ns: int) -> None:
        """See `Asked`."""
        if at in self.waiting:
            place = self.engine.places[at]
            error = AuthenticationError(place, why) if isinstance(why, str) else why
            self._add(at, Answer(place, error=error))

    def ask_again(self, at: int) -> None:
        """Leave it: it is asked once."""

    def check_time(self, now_ns: int) -> None:
        """See `Asked`."""
        if now_ns < self.until_ns:
            self.engine.wonders = True
            self.due_ns = self.until_ns
            self.engine.expect(self)
            return
        time_s = self.time_ns / 1e9
        for at in list(self.waiting):
            place = self.engine.places[at]
            text = f"request {self.topic!r}: no answer from {place} within {time_s:g} s"
            self._add(at, Answer(place, error=TimeoutError(text)))

    def _add(self, at: int, answer: Answer) -> None:
        self.came.append(answer)
        self.waiting.remove(at)
        if not self.waiting:
            self.engine.forget(self.number)


class RequesterEngine:
    """Knows what is asked, and what was answered.

    Args:
        endpoints: of the responders.
        identity: 64 bits by which its answers are known.
        message_bytes_max: largest packed request.
        pending_max: how many requests may be under way.

    Attributes:
        places: the responders' endpoints as text.
        pending: what is under way, by number.
        has_answered: which responders have ever answered.
        wonders: see `is_anybody_silent`.
        first: who is asked first.
        retries: how often a request was asked again.
        strays: answers that nobody waited for any more.
        closed: why it cannot be used; "" while it can.

    """

    def __init__(
        self, endpoints: "Sequence[transports.Endpoint]", identity: int, message_bytes_max: int,
        pending_max: int,
    ) -> None:  # fmt: skip
        self.places = [str(each.without_key()) for each in endpoints]
        self.numbers = itertools.count(1)
        self.pending: dict[int, Asked] = {}
        self.has_answered = [False] * len(endpoints)
        self.wonders = False
        self.first = self.retries = self.strays = 0
        self.closed = ""
        self._addresses = [each.address for each in endpoints]
        self.identity = identity
        self._bytes_max = min(message_bytes_max, frames.VALUE_BYTES_MAX)
        self._pending_max = pending_max
        self._topics: dict[str, bytes] = {}
        self._to_send: list[OrderedDict[int, bool]] = [OrderedDict() for _ in endpoints]
        self._due: list[tuple[int, int]] = []

    def check_usable(self) -> None:
        """Raise `ClosedError` where it is closed."""
        if self.closed:
            raise ClosedError("the requester", self.closed)

    def has_space(self) -> bool:
        """Whether one more request may be begun, or refused since it is closed."""
        return len(self.pending) < self._pending_max or bool(self.closed)

    def check_space(self, topic: str) -> None:
        """Raise `SendQueueFullError` where too much is under way."""
        if not self.has_space():
            what = f"{self._pending_max} requests wait for an answer (pending_max)"
            raise SendQueueFullError(f"request {topic!r} was not sent: {what}")

    def pack(self, topic: str, value: Any) -> bytes:
        """Return a value as a request has it; `MessageError` where it, or the topic, cannot be."""
        try:
            known = topic in self._topics
        except TypeError:
            known = False
        if not known:
            check_topic(topic)
            if len(self._topics) >= _TOPICS_MAX:
                self._topics = {}
            self._topics[topic] = topic.encode()
        packed = pack_exactly(value)
        if len(packed) > self._bytes_max:
            check_size("request", len(packed), self._bytes_max)
        return packed

    def begin(
        self, topic: str, packed: bytes, time_ns: int, until_ns: int, attempts_max: int, now_ns: int
    ) -> Request:
        """Begin a request to one responder."""
        request = Request(self, topic, packed, time_ns, until_ns, attempts_max)
        self.pending[request.number] = request
        request.ask(now_ns)
        return request

    def begin_all(self, topic: str, packed: bytes, time_ns: int, until_ns: int) -> Gathering:
        """Begin a request to all responders."""
        gathering = Gathering(self, topic, packed, time_ns, until_ns)
        self.pending[gathering.number] = gathering
        return gathering

    def forget(self, number: int) -> None:
        """Drop a request that is over, or is waited for no more."""
        self.pending.pop(number, None)
        for queue in self._to_send:
            queue.pop(number, None)
        if len(self._due) > 2 * len(self.pending) + _DUE_SPARE:
            self._rebuild_due()

    # ------------------------------------------------------------------------ to responders

    def queue(self, at: int, number: int, *, is_again: bool) -> None:
        """Have a request sent to a responder, once; asked again, it keeps its place."""
        self._to_send[at].setdefault(number, is_again)

    def has_to_send(self) -> bool:
        """Whether something is to be sent."""
        return any(self._to_send)

    def next_to_send(self, at: int) -> tuple[Asked, bool] | None:
        """Return what is sent next to a responder, and whether it was sent there before."""
        queue = self._to_send[at]
        while queue:
            number, is_again = next(iter(queue.items()))
            asked = self.pending.get(number)
            if asked is not None and asked.was_asked(at):
                return asked, is_again
            del queue[number]
        return None

    def frame_of(self, asked: Asked, now_ns: int) -> bytes:
        """Return the frame of a request that is sent now."""
        name = self._topics.get(asked.topic) or asked.topic.encode()
        wait_ms = frames.wait_ms_of((asked.until_ns - now_ns) / 1e9)
        return frames.request_frame(name, self.identity, asked.number, wait_ms, asked.packed)

    def on_sent(self, at: int, number: int) -> None:
        """Take it that a request was sent, or needs not be."""
        self._to_send[at].pop(number, None)

    def is_stuck(self, at: int) -> bool:
        """Whether requests wait for a responder, and all that were sent there are over."""
        queue = self._to_send[at]
        return bool(queue) and not any(
            each.was_asked(at) and number not in queue for number, each in self.pending.items()
        )

    # ---------------------------------------------------------------------- from responders

    def receive(self, at: int, data: bytes, now_ns: int) -> None:
        """Take what came from a responder; what nobody waits for is counted."""
        try:
            frame = Frame(data)
            is_reply = frame.kind == Kind.REPLY and frame.session == self.identity
        except FrameError:
            is_reply = False
        asked = self.pending.get(frame.sequence) if is_reply else None
        if asked is None or not asked.take(at, frame, now_ns):
            self.strays += 1  # mostly the answer to a request that is over
        else:
            self.has_answered[at] = True

    def refuse(self, at: int, why: str, now_ns: int) -> None:
        """Take it that a connection was refused."""
        for each in list(self.pending.values()):
            each.refuse(at, why, now_ns)

    def deny(self, at: int, asked: Asked, why: str, now_ns: int) -> None:
        """Take it that a responder has no right here to answer a request."""
        self.on_sent(at, asked.number)
        asked.refuse(at, AccessDeniedError("respond", asked.topic, why), now_ns)

    def on_returned(self, at: int) -> None:
        """Take it that a connection was made again."""
        for each in list(self.pending.values()):
            each.ask_again(at)

    def denial_in(self, at: int, topic: str, frame: Frame) -> AccessDeniedError:
        """Return what a responder denies."""
        try:
            why = frames.error_of(frame)[1]
        except FrameError:
            why = ""
        return denied_by_peer("request", topic, f"the responder at {self._addresses[at]}", why)

    def outcome(self, topic: str, at: int, frame: Frame) -> Any:
        """Return the value of an answer, or raise what it says."""
        responder = self.places[at]
        try:
            if frame.count == Status.DONE:
                return frames.body_of(frame)
            if frame.count == Status.NO_HANDLER:
                raise RemoteError(topic, responder, "", "there is no handler for this topic")
            if frame.count == Status.DENIED:
                raise self.denial_in(at, topic, frame)
            if frame.count == Status.RAISED:
                raise RemoteError(topic, responder, *frames.error_of(frame))
        except FrameError:
            pass
        raise RequestError(topic, responder, "the answer is malformed")

    # --------------------------------------------------------------------------------- time

    def check_time(self, now_ns: int) -> None:
        """Ask again what has no answer, and end what has waited for long enough."""
        due = self._due
        while due and due[0][0] <= now_ns:
            asked = self.pending.get(heapq.heappop(due)[1])
            if asked is not None and asked.due_ns <= now_ns:
                asked.check_time(now_ns)

    def is_anybody_silent(self) -> bool:
        """Whether a responder has been silent since the last call that has never answered."""
        wonders, self.wonders = self.wonders, False
        return wonders

    @property
    def next_due_ns(self) -> int:
        """When `check_time` has something to do."""
        return self._due[0][0] if self._due else NEVER_NS

    def expect(self, asked: Asked) -> None:
        """Have its time checked when it is due."""
        heapq.heappush(self._due, (asked.due_ns, asked.number))

    def _rebuild_due(self) -> None:
        self._due = [(each.due_ns, each.number) for each in self.pending.values()]
        heapq.heapify(self._due)

    # ------------------------------------------------------------------------------- the end

    def resync(self) -> None:
        """Put it right after an exception: what is under way is asked again, as it may be lost."""
        self._rebuild_due()
        for at in range(len(self.places)):
            self.on_returned(at)

    def close(self, why: str) -> None:
        """End it; all that is under way fails."""
        self.closed = self.closed or why
        for each in list(self.pending.values()):
            each.error = each.error or ClosedError("the requester", self.closed)
        self.pending = {}


def converted(topic: str, responder: str, value: Any, kind: Any) -> Any:
    """Return an answer as its caller wants it; `RequestError` where it does not fit."""
    try:
        return codec.convert(value, kind)
    except Exception as error:  # also what a type of the user's raises
        reason = f"the answer does not fit its type: {error}"
        raise RequestError(topic, responder, reason) from error
