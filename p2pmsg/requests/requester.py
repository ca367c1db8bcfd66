"""Asks, and asks again."""

import builtins
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import transports
from p2pmsg.checks import BUSY_WAIT, checked
from p2pmsg.driver.lifecycle import INHERITED, ClosesAtOnce, close_in_children
from p2pmsg.errors import (
    AccessDeniedError,
    AuthenticationError,
    ClosedError,
    RequestError,
    SecurityError,
)
from p2pmsg.message import T
from p2pmsg.requests import frames
from p2pmsg.requests.frames import MESSAGE_BYTES
from p2pmsg.requests.requester_base import (
    ATTEMPTS_CEILING,
    GIVEN_UP,
    LARGE_BYTES,
    Refusals,
    RequesterBase,
    check_request,
    check_time,
    check_type,
)
from p2pmsg.requests.thread_clients import Clients, R, ThreadClients
from p2pmsg.wire import Frame

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_SLICE_MS: Final = 20
_ALONE_MS: Final = 100
"""How long it waits at a time for one responder: after that it looks whether it was closed."""
_AGAIN_S: Final = 0.5
"""How often a request is sent again that waits: its connection may have been made again."""
_CLOSE_S: Final = 1.0
Found = tuple[int, Frame, str]
"""Which client got an answer, the answer, and from where."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What came by the deadline."""

    values: dict[str, Any] = field(default_factory=dict)
    """By endpoint: what was answered."""
    errors: dict[str, RequestError | SecurityError] = field(default_factory=dict)
    """By endpoint: who could not answer, refused the connection or gave no right to it, and why."""
    missing: tuple[str, ...] = ()
    """Endpoints that did not answer in time."""


class Requester(RequesterBase, ClosesAtOnce):
    """Asks responders, and waits for the answer. Several threads may use it.

    Each thread has its own connections, which are closed when it ends: three descriptors for each
    responder. So threads that ask once and end are better replaced by a pool.

    Args:
        endpoints: of one responder, or of several that can answer the same.
        message_bytes_max: largest request, packed; at most 16 MiB, of which topic and header take
            1 KiB. Default 1 MiB.
        busy_wait: how long it looks for the answer before it sleeps, in seconds, in one of 17
            waits where answers take longer; at most 0.001, and 0 never looks. Default 0.0002: a
            round trip on one machine takes 90 to 150 µs, and a third more where every answer has to
            wake the asker.
        security: this peer's key, and whom it knows: connections are encrypted, and both ends
            known to each other; the responders' keys are pinned by `?key=` or in the file of known
            peers. Default None: open.

    Raises:
        ConfigError: an argument is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.

    """

    @checked(busy_wait=BUSY_WAIT, message_bytes_max=MESSAGE_BYTES)
    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        message_bytes_max: int = 1024 * 1024,
        busy_wait: float = transports.BUSY_WAIT_US / 1e6,
        security: "Security | None" = None,
    ) -> None:
        self._configure(endpoints, message_bytes_max, busy_wait, security)
        self._busy_wait_us = busy_wait * 1e6
        self._threads = ThreadClients()
        self._lock = threading.Lock()
        close_in_children(self)  # a child would ask by the same id, and get our answers

    def request(
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
        time-out then leaves open whether it was done.

        Args:
            topic: what is asked.
            value: any msgpack value. Default None.
            timeout: how long to wait in all, in seconds. Default 5.
            attempts_max: how often it is asked, 1000 times at most; each gets its part of the time,
                and one whose part has passed is left out. Default 3.
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
            ClosedError: the requester is closed, or was meanwhile.

        """
        check_request(timeout, attempts_max)
        check_type(type)
        packed = self._pack(topic, value)
        answer: T = self._call(partial(self._ask, topic, packed, timeout, attempts_max, type))
        return answer

    def request_all(self, topic: str, value: Any = None, *, deadline: float = 1.0) -> Answers:
        """Ask all responders, and return what came by the deadline (scatter and gather).

        Args:
            topic: what is asked.
            value: any msgpack value. Default None.
            deadline: how long to wait, in seconds. Default 1; it returns when all have answered.

        Raises:
            MessageError: the request cannot be sent as it is.
            ClosedError: the requester is closed, or was meanwhile.

        """
        check_time("deadline", deadline)
        packed = self._pack(topic, value)
        return self._call(partial(self._ask_all, topic, packed, deadline))

    def close(self) -> None:
        """Close; a request that waits in another thread raises `ClosedError` within 0.1 s.

        That is waited for, at most 1 s. A thread that then still works on its request, as on an
        answer's `type`, closes its connections when it has done.
        """
        self._closed = True
        self._threads.close(_CLOSE_S)

    # -------------------------------------------------------------------------------- private

    def _forget(self) -> None:
        """In a forked child: neither the connections nor the id are the child's."""
        self._closed = True
        self._unusable = INHERITED
        self._lock = threading.Lock()
        self._threads.forget()

    def _call(self, ask: Callable[[Clients], R]) -> R:
        """Ask over this thread's own connections: no answer has to change threads."""
        self._check_usable()
        try:
            return self._threads.call(partial(self._connect, self._busy_wait_us), ask)
        except transports.ClosedError as error:  # the process ends, and with it ZeroMQ's context
            raise ClosedError("the requester", str(error)) from error

    def _ask(
        self, topic: str, packed: bytes, timeout: float, attempts_max: int, kind: Any,
        clients: Clients,
    ) -> Any:  # fmt: skip
        try:
            return self._ask_each(topic, packed, timeout, attempts_max, kind, clients)
        finally:
            for client in clients if len(packed) >= LARGE_BYTES else ():
                client.end_learning()

    def _ask_each(
        self, topic: str, packed: bytes, timeout: float, attempts_max: int, kind: Any,
        clients: Clients,
    ) -> Any:  # fmt: skip
        """Ask one after the other, until there is an answer."""
        self._check_usable()  # closed while this thread connected
        number = next(self._numbers)
        start = now = time.monotonic()
        first = self._first
        asked: list[int] = []
        refusals: Refusals = {}
        attempts_max = min(attempts_max, ATTEMPTS_CEILING)
        turn = -1
        for attempt in range(attempts_max):
            until = start + timeout * (attempt + 1) / attempts_max
            if until <= now and asked:
                continue
            turn += 1
            at = (first + turn) % len(clients)
            if at in refusals:
                continue
            if self._security is not None:
                if denied := self._denied_here(at, topic, clients[at]):
                    refusals[at] = AccessDeniedError("respond", topic, denied)
                    if len(refusals) == len(clients):
                        break
                    continue
                self._try_again(clients[at])
            ask = partial(self._send, at, clients[at], topic, number, packed, start + timeout)
            if at not in asked:
                asked.append(at)
                if len(packed) >= LARGE_BYTES:
                    clients[at].learn_connection()
                ask(now)
            elif not self._is_pending(clients[at], packed):
                ask(now)
            transports.TURN.is_theirs = True
            again = ask if attempts_max > 1 and len(packed) < LARGE_BYTES else None
            found = self._await_or_check(clients, asked, number, until, now, at, refusals, again)
            if found is not None:
                denial = self._denial_in(found[0], topic, found[1])
                if denial is None:
                    self._first = found[0]  # who answers is asked first the next time
                    return self._outcome(topic, *found, kind)
                refusals[found[0]] = denial
            now = time.monotonic()
            if len(refusals) == len(clients):
                break
            self.retries += attempt + 1 < attempts_max
        self._first = (first + 1) % len(clients)
        text = f"request {topic!r}: no answer within {timeout} s, {attempts_max} asked"
        raise self._failed(text, asked, refusals)

    def _ask_all(self, topic: str, packed: bytes, deadline: float, clients: Clients) -> Answers:
        """Ask all, and collect what they answer."""
        self._check_usable()
        number = next(self._numbers)
        now = time.monotonic()
        end = now + deadline
        answers = Answers()
        waiting = []
        for at, client in enumerate(clients):
            if self._security is not None:
                if denied := self._denied_here(at, topic, client):
                    error = AccessDeniedError("respond", topic, denied)
                    answers.errors[client.endpoint] = error
                    continue
                self._try_again(client)
            self._send(at, client, topic, number, packed, end, now)
            waiting.append(at)
        while waiting:
            refusals: Refusals = {}
            found = self._await_or_check(
                clients, waiting, number, end, time.monotonic(), None, refusals
            )
            for at, why in refusals.items():
                waiting.remove(at)
                place = clients[at].endpoint
                answers.errors[place] = AuthenticationError(place, str(why))
            if found is None and refusals:
                continue
            if found is None:
                self._log_presence(waiting)
                break
            waiting.remove(found[0])
            name = clients[found[0]].endpoint
            try:
                answers.values[name] = self._outcome(topic, *found)
            except (RequestError, AccessDeniedError) as error:
                answers.errors[name] = error
        missing = tuple(clients[at].endpoint for at in waiting)
        return Answers(answers.values, answers.errors, missing)

    def _send(
        self, at: int, client: transports.ZmqQueueClient, topic: str, number: int, packed: bytes,
        end: float, now: float,
    ) -> None:  # fmt: skip
        """Send a request; what else waits in this thread's queue is over, and may be dropped."""
        wait_ms = frames.wait_ms_of(end - now)
        data = frames.request_frame(self._topics[topic], self._id, number, wait_ms, packed)
        if not client.send(data):
            self._reconnect(at, client, f"{GIVEN_UP}, or requests that are over filled its queue")
            client.send(data)

    def _await_or_check(
        self, clients: Clients, asked: list[int], number: int, until: float, now: float,
        at: int | None, refusals: Refusals, again: Callable[[float], None] | None = None,
    ) -> Found | None:  # fmt: skip
        """As `_await`; after a quarter of the time, look at endpoints that have never answered."""
        answered = self._has_answered
        if all(answered):
            return self._await(clients, asked, number, until, now, at, refusals, again)
        soon = now + (until - now) / 4
        found = self._await(clients, asked, number, soon, now, at, refusals, again)
        if found is None and not refusals:
            with self._lock:
                self._check_presence()
            now = time.monotonic()
            found = self._await(clients, asked, number, until, now, at, refusals, again)
        if found is not None:
            self._on_answer(found[0])
        return found

    def _await(
        self, clients: Clients, asked: list[int], number: int, until: float, now: float,
        last: int | None, refusals: Refusals, again: Callable[[float], None] | None,
    ) -> Found | None:  # fmt: skip
        """Wait for an answer from one of those that were asked; `again` asks the last one again.

        With security, it ends early, and adds to `refusals`, where the one that was asked last
        refuses the connection; None: any of them.
        """
        alone = len(asked) == 1
        has_keys = self._security is not None
        slice_ms = _SLICE_MS if has_keys else _ALONE_MS
        has_checked = False  # once in any case: an answer that came in time may be there
        again_at = now + _AGAIN_S
        while True:
            self._check_usable()
            left_ms = max(0.0, (until - now) * 1000)
            if left_ms == 0 and has_checked:
                return None
            has_checked = True
            for at in asked:
                client = clients[at]
                wait_ms = min(round(left_ms) + 1, slice_ms)
                data = client.receive_wait(wait_ms) if alone else client.receive()
                if data is not None:
                    frame = self._answer(data, number)
                    if frame is not None:
                        return at, frame, client.endpoint
                elif has_keys and client.check() and (last is None or at == last):
                    refusals[at] = client.refusal
            if has_keys and refusals and (last is None or last in refusals):
                return None
            if not alone:
                wait_ms = min(round(left_ms) + 1, _SLICE_MS)
                transports.wait_for_any([clients[at] for at in asked], wait_ms)
            now = time.monotonic()
            if again is not None and again_at <= now < until:
                again_at = now + _AGAIN_S
                again(now)

    def _answer(self, data: bytes, number: int) -> Frame | None:
        """Return what answers the request; anything else is counted."""
        frame = self._reply_in(data)
        if frame is not None and frame.sequence == number:
            return frame
        self.strays += 1  # mostly the answer to a request that is over
        return None
