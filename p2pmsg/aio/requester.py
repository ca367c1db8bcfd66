"""The requester for asyncio."""

import builtins
import heapq
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import transports
from p2pmsg.aio.closing import ClosesInLoop
from p2pmsg.aio.loop import LoopDriver
from p2pmsg.aio.turns import TakesTurns
from p2pmsg.aio.unsent import UnsentRequests
from p2pmsg.aio.waiting import SLICE_NS, Look, Reply, Waiters
from p2pmsg.checks import BUSY_WAIT, checked, time_to_wait
from p2pmsg.driver.lifecycle import INHERITED, close_in_children
from p2pmsg.errors import (
    AccessDeniedError,
    AuthenticationError,
    ClosedError,
    RequestError,
    SecurityError,
    SendQueueFullError,
)
from p2pmsg.message import T
from p2pmsg.requests import frames
from p2pmsg.requests.frames import MESSAGE_BYTES
from p2pmsg.requests.requester_base import (
    ATTEMPTS_CEILING,
    GIVEN_UP,
    Refusals,
    RequesterBase,
    check_request,
    check_time,
    check_type,
)
from p2pmsg.wire import Frame

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_FRAMES_PER_LOOK: Final = 16
"""Answers that are read between two looks at the clock."""
_LONGEST_S: Final = 3600.0
_KEYS_S: Final = 0.02
"""How often handshakes are checked, with security, while answers are waited for."""
_CONNECTIONS_NS: Final = 100_000_000
"""How often it is checked whether ZeroMQ has given up a connection."""
_monotonic = time.monotonic
_monotonic_ns = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class Answer:
    """What one responder answered to `request_all`, or that it did not."""

    endpoint: str
    """Of the responder."""
    value: Any = None
    """What it answered; None where there is an error."""
    error: RequestError | TimeoutError | SecurityError | None = None
    """Why there is no value: the handler raised, there is none, no answer came in time, or the
    connection or the right was refused."""

    @property
    def is_missing(self) -> bool:
        """Whether no answer came in time."""
        return isinstance(self.error, TimeoutError)


class _Asked(Protocol):
    """A request that is under way."""

    topic: str

    def take(self, at: int, frame: Frame) -> bool:
        """Take an answer; False where nobody waits for it any more."""

    def refuse(self, at: int, why: str | AccessDeniedError) -> None:
        """Note that the connection was refused over which it may have been asked, or the right."""

    def returned(self, at: int) -> None:
        """Note that a connection was made again: what was on its way over it may be lost."""

    def handle_timer(self, now: float) -> float | None:
        """Do what is due; return when to be called again, None where it is over."""

    def fail(self, error: Exception) -> None:
        """Raise this where the answer is waited for."""


class Requester(RequesterBase, TakesTurns, ClosesInLoop):
    """Asks responders, and waits for the answer. Many tasks may use it at once.

    ::

        async with aio.Requester(["tcp://a:5560", "tcp://b:5560"]) as requester:
            price = await requester.request("price", "ACME", timeout=1.0)
            async for answer in requester.request_all("load", deadline=0.5):
                print(answer.endpoint, answer.error or answer.value)

    All tasks share one connection to each responder. A request costs one future, and no thread or
    timer of its own. One that is cancelled disturbs no other; its answer, when it comes, is dropped
    and counted in `strays`.

    **Without asyncio** (trio, a loop of your own): make it where no asyncio loop runs. Then wait
    until one of `wait_fds()` is readable or `next_deadline` has come, and call `turn()`. What is to
    be awaited is begun with `begin`, as `begin(peer.close())`; at the end call `close_now()`.

    Args:
        endpoints: of one responder, or of several that can answer the same.
        message_bytes_max: largest request, packed; at most 16 MiB, of which topic and header take
            1 KiB. Default 1 MiB.
        busy_wait: for how long the loop looks for an answer before it sleeps, in seconds, while
            other tasks run in between; at most 0.001, and 0 never looks. Default 0.0002, as for the
            threaded one.
        pending_max: how many requests may wait for an answer at once; further ones wait until there
            is space. Default 10,000.
        security: this peer's key, and whom it knows: connections are encrypted, and both ends
            known to each other; the responders' keys are pinned by `?key=` or in the file of known
            peers. Default None: open.

    Raises:
        ConfigError: an argument is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.

    """

    @checked(busy_wait=BUSY_WAIT, message_bytes_max=MESSAGE_BYTES, pending_max=1)
    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        message_bytes_max: int = 1024 * 1024,
        busy_wait: float = transports.BUSY_WAIT_US / 1e6,
        pending_max: int = 10_000,
        security: "Security | None" = None,
    ) -> None:
        places = endpoints if isinstance(endpoints, str) else ", ".join(endpoints)
        self._driver = LoopDriver(
            f"the requester of {places}", self._turn, at_loop_end=self.close_now, by_caller=True
        )
        self._loop = self._driver.loop
        self._pending_max = pending_max
        self._configure(endpoints, message_bytes_max, busy_wait, security)
        self._check = Look(busy_wait)
        self._pending: dict[int, _Asked] = {}
        self._due: list[tuple[float, int]] = []
        self._answered: deque[Reply[tuple[int, Frame]]] = deque()
        self._unsent = UnsentRequests()
        self._connections_due_ns = 0
        self._spaces = Waiters(self._loop)
        self._clients = self._connect(0.0)
        for client in self._clients:
            client.watch_end()
            client.connect()
        self._is_made = True
        close_in_children(self)  # a child would ask by the same id, and get our answers
        self._driver.watch(client.fd for client in self._clients)
        self._driver.start()

    # --------------------------------------------------------------------------------- public

    async def request(
        self,
        topic: str,
        value: Any = None,
        *,
        timeout: float = 5.0,
        attempts_max: int = 3,
        type: builtins.type[T] | None = None,  # noqa: A002  # as `Subscriber` calls it
    ) -> T:
        """Return the answer to a request.

        It is asked at one responder; where no answer came in its part of the time, at the next one,
        or at the same again, which then answers from its cache and does not do the work twice.
        Another responder cannot know, and neither can one that was started again since: what it had
        answered is gone with it. Where work must not be done twice, give `attempts_max=1`: a
        time-out, or a cancellation, then leaves open whether it was done.

        Args:
            topic: what is asked.
            value: any msgpack value. Default None.
            timeout: how long to wait in all, in seconds. Default 5.
            attempts_max: how often it is asked, 1000 times at most; each gets its part of the time.
                Default 3.
            type: what the answer is made: a dataclass or any other type that `Subscriber(type=)`
                takes. Default None: what was sent.

        Raises:
            TimeoutError: no answer came in time.
            AuthenticationError: all that were asked refused the connection, or do not hold the
                pinned key; it is tried again with the next request.
            AccessDeniedError: those that were asked give us no right to `request` the topic, or an
                access file here gives them none to `respond`.
            RemoteError: the handler raised, with type and text, or there is none for the topic.
            RequestError: the answer does not fit `type`.
            MessageError: the request cannot be sent as it is; `MessageTooLargeError` for its size.
            ClosedError: the requester is closed, perhaps while this waited.
            RuntimeError: it was made in another event loop.

        """
        self._check_usable()
        self._driver.check_loop()
        check_request(timeout, attempts_max)
        check_type(type)
        packed, name = self._pack(topic, value), self._topics[topic]
        until = _monotonic() + timeout
        if len(self._pending) >= self._pending_max or self._spaces:
            await self._wait_for_space(topic, timeout)
        number = next(self._numbers)
        asked = _Request(self, topic, name, number, packed, until, timeout, attempts_max)
        self._pending[number] = asked
        try:
            self._expect(number, asked.ask(_monotonic()))
            at, frame = await asked.reply
        finally:
            self._forget_request(number)
        answer: T = self._outcome(topic, at, frame, self._clients[at].endpoint, type)
        return answer

    def request_all(
        self, topic: str, value: Any = None, *, deadline: float = 1.0
    ) -> AsyncIterator[Answer]:
        """Ask all responders; iterate over what they answer, as it comes (scatter and gather).

        It ends when all have answered, or at the deadline: those that did not answer by then come
        last, each with a `TimeoutError`. It is asked when this is called.

        Args:
            topic: what is asked.
            value: any msgpack value. Default None.
            deadline: how long to wait, in seconds. Default 1.

        Raises:
            MessageError: the request cannot be sent as it is.
            SendQueueFullError: `pending_max` requests wait for an answer.
            ClosedError: the requester is closed, perhaps while this waited.
            RuntimeError: it was made in another event loop.

        """
        self._check_usable()
        self._driver.check_loop()
        check_time("deadline", deadline)
        packed = self._pack(topic, value)
        if len(self._pending) >= self._pending_max:
            what = f"{self._pending_max} requests wait for an answer (pending_max)"
            raise SendQueueFullError(f"request {topic!r} was not sent: {what}")
        number = next(self._numbers)
        until = _monotonic() + deadline
        self._pending[number] = gathering = _Gathering(self, topic, number, deadline, until)
        data = frames.request_frame(
            self._topics[topic], self._id, number, frames.wait_ms_of(deadline), packed
        )
        for at, client in enumerate(self._clients):
            if denied := self._denied_here(at, topic, client):
                gathering.refuse(at, AccessDeniedError("respond", topic, denied))
            else:
                self._send(at, number, data)
        self._expect(number, gathering.handle_timer(_monotonic()))
        return gathering

    async def close(self, timeout: float = 0.0) -> None:
        """Close; tasks that wait for an answer get `ClosedError`.

        Args:
            timeout: of no use here; the other peers wait so long, in seconds. Default 0.

        """
        timeout = time_to_wait("timeout", timeout)
        if not self._closed and not self._driver.stopping:
            self._driver.check_loop()
        self.close_now()

    def close_now(self) -> None:
        """Close, also where its event loop has ended."""
        if self._closed:
            return
        self._closed = True
        self._driver.stop()
        if not self._loop.is_closed():
            self._spaces.close()
            for asked in list(self._pending.values()):
                asked.fail(ClosedError("the requester", self._unusable))
        self._pending.clear()
        self._unsent.clear()
        for client in self._clients:
            client.close()

    # -------------------------------------------------------------------------------- private

    def _turn(self) -> float:
        if self._closed:
            raise transports.ClosedError("requester")
        now_ns = _monotonic_ns()
        until_ns = now_ns + SLICE_NS
        if now_ns >= self._connections_due_ns:
            self._check_connections(now_ns)
        if self._security is not None and self._pending:
            self._check_keys()
        if self._due and self._due[0][0] <= _monotonic():
            self._handle_due()
        more = False
        while self._read() and self._pending and not more:
            more = _monotonic_ns() > until_ns
        self._wake_answered()
        # One that waits for an answer; where there are more, other tasks have something to do.
        while not more and len(self._pending) == 1 and self._check.find(self._read):
            self._wake_answered()
            more = _monotonic_ns() > until_ns
        if self._closed:
            raise transports.ClosedError("requester")
        if self._unsent and self._send_rest():
            more = True  # a send takes the descriptor's signal
        if more or (self._check.is_on and self._pending):
            return 0.0
        wait = self._due[0][0] - _monotonic() if self._due else _LONGEST_S
        if self._pending:
            wait = min(wait, _CONNECTIONS_NS / 1e9 if self._security is None else _KEYS_S)
        return wait

    def _check_keys(self) -> None:
        """Check the handshakes of the connections."""
        for at, client in enumerate(self._clients):
            if client.check():
                for asked in list(self._pending.values()):
                    asked.refuse(at, client.refusal)

    def _wake_answered(self) -> None:
        """Run the tasks that were answered.

        They may do anything here: ask again, close the requester, or raise KeyboardInterrupt.
        """
        answered = self._answered
        try:
            while answered:
                answered.popleft().wake()
        finally:
            if answered:
                self._driver.wake()

    def _read(self) -> bool:
        """Take some answers, while requests wait for one; whether there were any."""
        came = False
        for at, client in enumerate(self._clients):
            for _ in range(_FRAMES_PER_LOOK):
                data = client.receive()
                if data is None:
                    break
                came = True
                self._take(at, data)
                if not self._pending:
                    self._check.end()
                    return True  # what is left are answers that nobody waits for
        return came

    def _take(self, at: int, data: bytes) -> None:
        frame = self._reply_in(data)
        asked = None if frame is None else self._pending.get(frame.sequence)
        if frame is None or asked is None or not asked.take(at, frame):
            self.strays += 1  # mostly the answer to a request that is over
        elif not self._has_answered[at]:
            self._on_answer(at)

    def _send(self, at: int, number: int, data: bytes) -> None:
        """Send a request; where ZeroMQ's queue is full, as soon as it is not."""
        client = self._clients[at]
        if self._security is not None:
            self._try_again(client)
        if self._unsent.waiting_for(at) or not client.send(data):
            self._unsent.add(at, number, data)
        # A send takes the descriptor's signal, so what has come must be looked for.
        elif self._check.begin() or client.has_message():
            self._driver.wake()

    def _send_rest(self) -> bool:
        """Send what waits, to each responder; whether anything was sent."""
        return self._unsent.send(lambda at, data: self._clients[at].send(data)) > 0

    def _check_connections(self, now_ns: int) -> None:
        """Make those again that ZeroMQ has given up; they take no requests."""
        self._connections_due_ns = now_ns + _CONNECTIONS_NS
        for at, client in enumerate(self._clients):
            if client.was_ended_here():
                self._reconnect(at, client, GIVEN_UP)
            if client.has_returned():
                for asked in list(self._pending.values()):
                    asked.returned(at)

    def _expect(self, number: int, due: float | None) -> None:
        """Have the timer of a request handled when it is due."""
        if due is None:
            return
        heapq.heappush(self._due, (due, number))
        soon = _CONNECTIONS_NS / 1e9 if self._security is None else _KEYS_S
        self._driver.expect(min(soon, max(0.0, due - _monotonic())))

    def _handle_due(self) -> None:
        now, due = _monotonic(), self._due
        while due and due[0][0] <= now:
            number = heapq.heappop(due)[1]
            asked = self._pending.get(number)
            again = None if asked is None else asked.handle_timer(now)
            if again is not None:
                heapq.heappush(due, (again, number))

    def _forget_request(self, number: int) -> None:
        self._pending.pop(number, None)
        if self._unsent:
            self._unsent.discard(number)
        due = self._due
        if len(due) > 2 * len(self._pending) + 64:  # mostly of requests that are over
            due[:] = [each for each in due if each[1] in self._pending]
            heapq.heapify(due)
        if self._spaces:
            self._spaces.offer(self._pending_max - len(self._pending))

    async def _wait_for_space(self, topic: str, timeout: float) -> None:
        until = self._loop.time() + timeout
        while True:
            if not await self._spaces.wait(until):
                what = f"{self._pending_max} others wait for an answer (pending_max)"
                raise TimeoutError(f"request {topic!r}: not asked within {timeout} s, since {what}")
            self._check_usable()
            if len(self._pending) < self._pending_max:
                return

    def _forget(self) -> None:
        """In a forked child: neither the connections nor the id are the child's."""
        ClosesInLoop._forget(self)
        self._unusable = INHERITED


class _Request:
    """A request to one responder after the other."""

    def __init__(
        self,
        owner: Requester,
        topic: str,
        name: bytes,
        number: int,
        packed: bytes,
        until: float,
        timeout: float,
        attempts_max: int,
    ) -> None:
        self.topic = topic
        self.reply: Reply[tuple[int, Frame]] = Reply(owner._loop)
        self._owner = owner
        self._name = name
        self._number = number
        self._packed = packed
        self._until = until
        self._timeout = timeout
        self._attempts_max = min(attempts_max, ATTEMPTS_CEILING)
        self._attempt = 0
        self._first = owner._first
        self._asked: list[int] = []
        self._at = -1
        self._refusals: Refusals = {}
        self._check_due = 0.0

    def ask(self, now: float) -> float:
        """Ask once more; return when to be called again."""
        owner, count = self._owner, len(self._owner._clients)
        at = self._at = (self._first + self._attempt) % count
        self._attempt += 1
        is_again = at in self._asked
        if not is_again:
            self._asked.append(at)
        if owner._security is not None and (
            denied := owner._denied_here(at, self.topic, owner._clients[at])
        ):
            self.refuse(at, AccessDeniedError("respond", self.topic, denied))
            return self._part_ends()
        data = self._frame(now)
        if not (is_again and owner._is_pending(owner._clients[at], data)):
            owner._send(at, self._number, data)
        due = self._part_ends()
        if not owner._has_answered[at]:
            self._check_due = now + (due - now) / 4
            return self._check_due
        return due

    def take(self, at: int, frame: Frame) -> bool:
        if self.reply.done():
            return False
        owner = self._owner
        if (denial := owner._denial_in(at, self.topic, frame)) is not None:
            self.refuse(at, denial)
            return True
        owner._first = at  # who answers is asked first the next time
        del owner._pending[self._number]
        self.reply.set_result((at, frame))
        owner._answered.append(self.reply)
        return True

    def handle_timer(self, now: float) -> float | None:
        if self.reply.done():
            return None
        owner = self._owner
        due = self._part_ends()
        if now < due:
            owner._check_presence()
            return due
        if self._attempt < self._attempts_max:
            owner.retries += 1
            return self.ask(now)
        self._give_up()
        return None

    def refuse(self, at: int, why: str | AccessDeniedError) -> None:
        if self.reply.done():
            return
        if at == self._at or isinstance(why, AccessDeniedError):
            self._refusals[at] = why
        if at != self._at:
            return
        owner = self._owner
        count = len(owner._clients)
        while self._attempt < self._attempts_max and len(self._refusals) < count:
            if (self._first + self._attempt) % count not in self._refusals:
                owner.retries += 1
                self.ask(_monotonic())  # the timer that runs asks when it is over
                return
            self._attempt += 1
        if len(self._refusals) == count or len(self._asked) == len(self._refusals):
            self._give_up()

    def returned(self, at: int) -> None:
        """Ask again, unless it is to be asked once."""
        if at in self._asked and self._attempts_max > 1:
            self._owner._send(at, self._number, self._frame(_monotonic()))

    def _frame(self, now: float) -> bytes:
        wait_ms = frames.wait_ms_of(self._until - now)
        return frames.request_frame(
            self._name, self._owner._id, self._number, wait_ms, self._packed
        )

    def _give_up(self) -> None:
        owner = self._owner
        owner._first = (self._first + 1) % len(owner._clients)
        text = f"request {self.topic!r}: no answer within {self._timeout} s, "
        text += f"{self._attempts_max} asked"
        self.fail(owner._failed(text, self._asked, self._refusals))

    def fail(self, error: Exception) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)

    def _part_ends(self) -> float:
        """Return when the time of the attempt that was made last is over."""
        left = self._attempts_max - self._attempt
        return self._until - self._timeout * left / self._attempts_max


class _Gathering(AsyncIterator[Answer]):
    """A request to all responders, and their answers as they come."""

    def __init__(
        self, owner: Requester, topic: str, number: int, deadline: float, until: float
    ) -> None:
        self.topic = topic
        self._owner = owner
        self._number = number
        self._deadline = deadline
        self._until = until
        self._waiting = list(range(len(owner._clients)))
        self._came: deque[Answer] = deque()
        self._error: Exception | None = None
        self._readers = Waiters(owner._loop)

    def take(self, at: int, frame: Frame) -> bool:
        if at not in self._waiting:
            return False
        self._waiting.remove(at)
        endpoint = self._owner._clients[at].endpoint
        try:
            value = self._owner._outcome(self.topic, at, frame, endpoint)
        except (RequestError, AccessDeniedError) as error:
            self._came.append(Answer(endpoint, error=error))
        else:
            self._came.append(Answer(endpoint, value))
        self._notify()
        return True

    def refuse(self, at: int, why: str | AccessDeniedError) -> None:
        if at in self._waiting:
            self._waiting.remove(at)
            endpoint = self._owner._clients[at].endpoint
            error = AuthenticationError(endpoint, why) if isinstance(why, str) else why
            self._came.append(Answer(endpoint, error=error))
            self._notify()

    def returned(self, at: int) -> None:
        """Leave it: it is asked once."""

    def handle_timer(self, now: float) -> float | None:
        owner = self._owner
        if now < self._until:
            if all(owner._has_answered):
                return self._until
            quarter = self._until - self._deadline * 3 / 4
            if now < quarter:
                return quarter
            owner._check_presence()
            return self._until
        owner._log_presence(self._waiting)
        for at in self._waiting:
            endpoint = owner._clients[at].endpoint
            text = f"request {self.topic!r}: no answer from {endpoint} within {self._deadline} s"
            self._came.append(Answer(endpoint, error=TimeoutError(text)))
        self._waiting.clear()
        self._notify()
        return None

    def fail(self, error: Exception) -> None:
        self._error = error
        self._readers.close()

    def __aiter__(self) -> AsyncIterator[Answer]:
        return self

    async def __anext__(self) -> Answer:
        self._owner._driver.check_loop()
        while not self._came:
            if self._error is not None:
                raise self._error
            if not self._waiting:
                raise StopAsyncIteration
            await self._readers.wait(None)
        return self._came.popleft()

    def _notify(self) -> None:
        if self._waiting:
            self._readers.offer(len(self._came))
        else:
            self._readers.close()
            self._owner._forget_request(self._number)
