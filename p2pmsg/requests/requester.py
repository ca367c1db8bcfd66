"""Asks, and asks again."""

import itertools
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import transports
from p2pmsg.checks import check, check_busy_wait, whole
from p2pmsg.errors import ClosedError, NoHandlerError, RemoteError, RequestError
from p2pmsg.publisher.batch import PACKING_ERRORS, check_size, packing_error
from p2pmsg.requests import frames
from p2pmsg.requests.frames import Status
from p2pmsg.sync.lifecycle import ClosesAtOnce, close_in_children
from p2pmsg.sync.settings import check_endpoints
from p2pmsg.sync.unanswered import Unanswered
from p2pmsg.topics import check_topic
from p2pmsg.wire import Frame, FrameError, Kind, encoder
from recovery._renamed import renamed_arguments

_SLICE_MS: Final = 20
_TOPICS_MAX: Final = 1024
_TIMEOUT_MAX: Final = 1e6
Clients = list[transports.ZmqQueueClient]
Found = tuple[int, Frame, str]
"""Which client got an answer, the answer, and from where."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What came by the deadline."""

    values: dict[str, Any] = field(default_factory=dict)
    """By endpoint: what was answered."""
    errors: dict[str, RequestError] = field(default_factory=dict)
    """By endpoint: who could not answer, and why."""
    missing: tuple[str, ...] = ()
    """Endpoints that did not answer in time."""


class Requester(ClosesAtOnce):
    """Asks responders, and waits for the answer. Several threads may use it.

    Args:
        endpoints: of one responder, or of several that can answer the same.
        message_bytes_max: largest request, packed. Default 1 MiB.
        busy_wait: how long it looks for the answer before it sleeps, in seconds, in one of 17
            waits where answers take longer; at most 1000, and 0 never looks. Default 200: a round
            trip on one machine takes 90 to 150, and a third more where every answer has to wake
            the asker.

    Raises:
        ConfigError: an argument is out of its limits; `EndpointError` for the endpoints.

    """

    @renamed_arguments(busy_wait_us="busy_wait")
    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        message_bytes_max: int = 1024 * 1024,
        busy_wait: float = transports.BUSY_WAIT_US / 1e6,
    ) -> None:
        self._endpoints = check_endpoints(endpoints)
        whole("message_bytes_max", message_bytes_max, 64)
        check_busy_wait(busy_wait)
        self._bytes_max = message_bytes_max
        self._busy_wait_us = busy_wait * 1e6
        self._id = secrets.randbits(64)
        self._numbers = itertools.count(1)
        self._local = threading.local()
        self._all: list[Clients] = []
        self._lock = threading.Lock()
        self._topics: dict[str, bytes] = {}
        self._closed = False
        self._unusable = "it is closed"
        self._first = 0
        self.retries = self.strays = 0
        self._has_answered = [False] * len(self._endpoints)
        self._unanswered = Unanswered(
            "responder", self._endpoints, now_ns=time.monotonic_ns(),
            usual="ROUTER", first_ns=0, says_at_once=False,
        )  # fmt: skip
        close_in_children(self)  # a child would ask by the same id, and get our answers

    def request(
        self, topic: str, value: Any = None, *, timeout: float = 5.0, attempts_max: int = 3
    ) -> Any:
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
            attempts_max: how often it is asked; each gets its part of the time. Default 3.

        Raises:
            TimeoutError: no answer came in time.
            RemoteError: the handler raised; with type and text.
            NoHandlerError: the responder has no handler for the topic.
            MessageError: the request cannot be sent as it is.
            ClosedError: the requester is closed.

        """
        if type(timeout) is not float or not 0 < timeout <= _TIMEOUT_MAX:
            _check_time("timeout", timeout)
        if type(attempts_max) is not int or attempts_max < 1:
            whole("attempts_max", attempts_max, 1)
        packed = self._pack(topic, value)
        clients = self._clients()
        number = next(self._numbers)
        start = now = time.monotonic()
        first = self._first
        asked: list[int] = []
        for attempt in range(attempts_max):
            at = (first + attempt) % len(clients)
            until = start + timeout * (attempt + 1) / attempts_max
            wait_ms = int((start + timeout - now) * 1000)
            data = frames.request_frame(self._topics[topic], self._id, number, wait_ms, packed)
            clients[at].send(data)
            transports.TURN.is_theirs = True
            if at not in asked:
                asked.append(at)
            found = self._await_or_look(clients, asked, number, until, now)
            if found is not None:
                self._first = found[0]  # who answers is asked first the next time
                return self._outcome(topic, *found)
            now = time.monotonic()
            self.retries += attempt + 1 < attempts_max
        self._first = (first + 1) % len(clients)
        text = f"request {topic!r}: no answer within {timeout} s, {attempts_max} asked"
        raise TimeoutError(text + self._say_who_is_there(asked))

    def request_all(self, topic: str, value: Any = None, *, deadline: float = 1.0) -> Answers:
        """Ask all responders, and return what came by the deadline (scatter and gather).

        Args:
            topic: what is asked.
            value: any msgpack value. Default None.
            deadline: how long to wait, in seconds. Default 1; it returns when all have answered.

        Raises:
            MessageError: the request cannot be sent as it is.
            ClosedError: the requester is closed.

        """
        _check_time("deadline", deadline)
        packed = self._pack(topic, value)
        clients = self._clients()
        number = next(self._numbers)
        end = time.monotonic() + deadline
        wait_ms = round(deadline * 1000)
        data = frames.request_frame(self._topics[topic], self._id, number, wait_ms, packed)
        for client in clients:
            client.send(data)
        answers = Answers()
        waiting = list(range(len(clients)))
        while waiting:
            found = self._await_or_look(clients, waiting, number, end, time.monotonic())
            if found is None:
                self._say_who_is_there(waiting)
                break
            waiting.remove(found[0])
            name = clients[found[0]].endpoint
            try:
                answers.values[name] = self._outcome(topic, *found)
            except RequestError as error:
                answers.errors[name] = error
        missing = tuple(clients[at].endpoint for at in waiting)
        return Answers(answers.values, answers.errors, missing)

    def unanswered(self) -> dict[str, str]:
        """Return what is found at endpoints that have never answered a request, by endpoint.

        It looks when a quarter of a request's time has passed; when all of it has, that is logged
        as a warning, once, and stands in the `TimeoutError`.
        """
        return self._unanswered.by_endpoint()

    def close(self) -> None:
        """Close; other threads must have done with it."""
        self._closed = True
        with self._lock:
            for clients in self._all:
                for client in clients:
                    client.close()
            self._all.clear()

    def __repr__(self) -> str:
        return f"<Requester{' closed' if self._closed else ''} of {len(self._endpoints)}>"

    # -------------------------------------------------------------------------------- private

    def _forget(self) -> None:
        """In a forked child: neither the connections nor the id are the child's."""
        self._closed = True
        self._unusable = "it belongs to the parent process"
        self._lock = threading.Lock()
        self._all = []

    def _pack(self, topic: str, value: Any) -> bytes:
        try:
            known = topic in self._topics
        except TypeError:
            known = False
        if not known:
            check_topic(topic)
            if len(self._topics) >= _TOPICS_MAX:
                self._topics.clear()
            self._topics[topic] = topic.encode()
        try:
            packed = encoder.encode(value)
        except PACKING_ERRORS as error:
            raise packing_error("value", value, error) from error
        if len(packed) > self._bytes_max:
            check_size("request", len(packed), self._bytes_max)
        return packed

    def _clients(self) -> Clients:
        """Return this thread's own connections: no answer has to change threads."""
        if self._closed:
            raise ClosedError("the requester", self._unusable)
        clients: Clients | None = getattr(self._local, "clients", None)
        if clients is None:
            context = transports.context()
            clients = [
                transports.ZmqQueueClient(at, context=context, busy_wait_us=self._busy_wait_us)
                for at in self._endpoints
            ]
            with self._lock:
                self._all.append(clients)
            for client in clients:
                client.connect()
            self._local.clients = clients
        return clients

    def _await_or_look(
        self, clients: Clients, asked: list[int], number: int, until: float, now: float
    ) -> Found | None:
        """As `_await`; after a quarter of the time, look at endpoints that have never answered."""
        answered = self._has_answered
        if all(answered):
            return self._await(clients, asked, number, until, now)
        found = self._await(clients, asked, number, now + (until - now) / 4, now)
        if found is None:
            with self._lock:
                now_ns = time.monotonic_ns()
                if now_ns >= self._unanswered.next_ns:
                    self._unanswered.look(answered, [0] * len(answered), now_ns)
            found = self._await(clients, asked, number, until, time.monotonic())
        if found is not None:
            answered[found[0]] = True
            self._unanswered.answered(found[0])
        return found

    def _say_who_is_there(self, asked: list[int]) -> str:
        """Log what is at endpoints that have never answered; return that as the end of a text."""
        now_ns, places = time.monotonic_ns(), []
        for at in asked:
            found = "" if self._has_answered[at] else self._unanswered.found[at]
            if found:
                self._unanswered.say(at, now_ns)
                places.append(f"{self._endpoints[at]}: {found}")
        return f" ({'; '.join(places[:4])})" if places else ""

    def _await(
        self, clients: Clients, asked: list[int], number: int, until: float, now: float
    ) -> Found | None:
        """Wait for an answer from one of those that were asked."""
        alone = len(asked) == 1
        while True:
            left_ms = (until - now) * 1000
            if left_ms <= 0:
                return None
            for at in asked:
                client = clients[at]
                data = client.receive_wait(round(left_ms) + 1) if alone else client.receive()
                if data is not None:
                    frame = self._answer(data, number)
                    if frame is not None:
                        return at, frame, client.endpoint
            if not alone:
                wait_ms = min(round(left_ms) + 1, _SLICE_MS)
                transports.wait_for_any([clients[at] for at in asked], wait_ms)
            now = time.monotonic()

    def _answer(self, data: bytes, number: int) -> Frame | None:
        """Return what answers the request; anything else is counted."""
        try:
            frame = Frame(data)
            mine = frame.kind == Kind.REPLY and frame.session == self._id
            if mine and frame.sequence == number:
                return frame
        except FrameError:
            pass
        self.strays += 1  # mostly the answer to a request that is over
        return None

    def _outcome(self, topic: str, at: int, frame: Frame, responder: str) -> Any:
        try:
            if frame.count == Status.DONE:
                return frames.body_of(frame)
            if frame.count == Status.NO_HANDLER:
                raise NoHandlerError(topic, responder)
            if frame.count == Status.RAISED:
                raise RemoteError(topic, responder, *frames.error_of(frame))
        except FrameError:
            pass
        raise RequestError(topic, responder, "the answer is malformed")


def _check_time(name: str, seconds: Any) -> None:
    ok = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    ok = ok and 0 < seconds <= _TIMEOUT_MAX
    check(name, seconds, ok, f"a number of seconds above 0, at most {_TIMEOUT_MAX:.0f}")
