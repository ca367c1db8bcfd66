"""What the requesters for threads and for asyncio share: packing, reading answers, diagnosis."""

import itertools
import secrets
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import transports
from p2pmsg import codec
from p2pmsg.checks import check, shown, whole
from p2pmsg.driver.lifecycle import zmq_context
from p2pmsg.errors import (
    AccessDeniedError,
    AuthenticationError,
    ClosedError,
    ConfigError,
    RemoteError,
    RequestError,
    SecurityError,
    denied_by_peer,
)
from p2pmsg.publisher.batch import check_size, pack_exactly
from p2pmsg.requests import frames
from p2pmsg.requests.frames import Status
from p2pmsg.security.use import curve_client, server_of
from p2pmsg.sync.settings import check_endpoints
from p2pmsg.sync.unanswered import Unanswered
from p2pmsg.topics import check_topic
from p2pmsg.trouble import Rarely
from p2pmsg.wire import Frame, FrameError, Kind
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_TOPICS_MAX: Final = 1024
LARGE_BYTES: Final = 16 * 1024
"""Of smaller requests it is not looked whether they have arrived."""
Refusals = dict[int, str | AccessDeniedError]
"""Which responder refused the connection, and why; or what it denied."""
_TIMEOUT_MAX: Final = 1e6
ATTEMPTS_CEILING: Final = 1000
"""How often a request is asked at most: one that is asked more often could fill the queue of its
connection, which holds 1,024."""
GIVEN_UP: Final = "ZeroMQ gave it up (a frame above 16 MiB, or one that breaks its protocol)"


class RequesterBase:
    """Knows what to ask and what was answered; who waits, and how, is left out.

    Attributes:
        retries: how often a request was asked again.
        strays: answers that nobody waited for any more.
        reconnects: connections that were made again: ZeroMQ had given them up, as it does after a
            frame of more than 16 MiB or one that breaks its protocol, or requests that were over
            had filled a thread's queue.

    """

    def _configure(
        self,
        endpoints: str | Sequence[str],
        message_bytes_max: int,
        busy_wait: float,
        security: "Security | None",
    ) -> None:
        self._security = security
        self._endpoints = check_endpoints(endpoints)
        self._curves = [curve_client(security, at) for at in self._endpoints]
        self._bytes_max = min(message_bytes_max, frames.VALUE_BYTES_MAX)
        self._id = secrets.randbits(64)
        self._numbers = itertools.count(1)
        self._topics: dict[str, bytes] = {}
        self._closed = False
        self._unusable = "it is closed"
        self._first = 0
        self.retries = self.strays = self.reconnects = 0
        self._reconnects_logged = [Rarely() for _ in self._endpoints]
        self._has_answered = [False] * len(self._endpoints)
        self._unanswered = Unanswered(
            "responder", self._endpoints, now_ns=time.monotonic_ns(),
            usual="ROUTER", first_ns=0, says_at_once=False,
        )  # fmt: skip
        self._unanswered.has_keys = security is not None

    # --------------------------------------------------------------------------------- public

    def unanswered(self) -> dict[str, str]:
        """Return what is found at endpoints that have never answered a request, by endpoint.

        It looks when a quarter of a request's time has passed; when all of it has, that is logged
        as a warning, once, and stands in the `TimeoutError`.
        """
        return self._unanswered.by_endpoint()

    def __repr__(self) -> str:
        return shown(self, lambda: ", ".join(map(str, self._endpoints)))

    # -------------------------------------------------------------------------------- private

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError("the requester", self._unusable)

    def _connect(self, busy_wait_us: float) -> list[transports.ZmqQueueClient]:
        """Return new connections, one to each endpoint."""
        context, clients = zmq_context(), list[transports.ZmqQueueClient]()
        try:
            for at, curve in zip(self._endpoints, self._curves, strict=True):
                clients.append(
                    transports.ZmqQueueClient(
                        at, context=context, busy_wait_us=busy_wait_us, curve=curve
                    )
                )
        except BaseException:
            for client in clients:
                client.close()
            raise
        return clients

    def _try_again(self, client: transports.ZmqQueueClient) -> None:
        """Have a connection tried now that was refused before; with security, before asking."""
        client.check()
        client.retry()

    @staticmethod
    def _is_pending(client: transports.ZmqQueueClient, data: bytes) -> bool:
        """Whether a large request that was sent is on its way still.

        Sent once more, over a slow network, it would delay all that comes next, for nothing.
        """
        return len(data) >= LARGE_BYTES and client.is_sending()

    def _reconnect(self, at: int, client: transports.ZmqQueueClient, why: str) -> None:
        """Make a connection again that takes no more requests; log that once a minute at most."""
        client.reconnect()
        self.reconnects += 1
        if self._reconnects_logged[at].is_due():
            _log.warning("%s: the connection is made again, since %s", self._endpoints[at], why)

    def _denied_here(self, at: int, topic: str, client: transports.ZmqQueueClient) -> str:
        """Return why a responder may not answer this; "" where it may."""
        access_rules = None if self._security is None else self._security.access_rules
        if access_rules is None:
            return ""
        access_rules.refresh()
        user = server_of(client)
        if access_rules.may(user, "respond", topic):
            return ""
        place = self._endpoints[at].address
        why = access_rules.why(user, "respond", topic)
        return f"the key of the responder at {place} has no right to it here: {why}"

    def _denial_in(self, at: int, topic: str, frame: Frame) -> AccessDeniedError | None:
        """Return what a responder, or an access file here, denies; None: nothing."""
        if frame.count != Status.DENIED:
            return None
        try:
            why = frames.error_of(frame)[1]
        except FrameError:
            why = ""
        responder = f"the responder at {self._endpoints[at].address}"
        return denied_by_peer("request", topic, responder, why)

    def _failed(
        self, text: str, asked: list[int], refusals: Refusals
    ) -> TimeoutError | SecurityError:
        """Return what to raise where nobody answered.

        Args:
            text: what is said of a time-out.
            asked: which endpoints were asked.
            refusals: of those that were refused: why.

        """
        where = self._log_presence(asked)
        for at in asked:
            found = self._unanswered.found[at]
            if at in refusals or self._unanswered.has_keys:
                continue  # what comes of keys, the connection says: one that is silent is busy
            if found and found.startswith(transports.NEEDS_KEYS):
                refusals[at] = found
        if refusals and all(at in refusals for at in asked):
            first = asked[0] if asked else next(iter(refusals))
            refusal = refusals[first]
            if isinstance(refusal, AccessDeniedError):
                return refusal
            return AuthenticationError(self._endpoints[first].address, refusal)
        said = [f"{self._endpoints[at].address}: {why}" for at, why in refusals.items()]
        return TimeoutError(text + (where or (f" ({'; '.join(said[:4])})" if said else "")))

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
        packed = pack_exactly(value)
        if len(packed) > self._bytes_max:
            check_size("request", len(packed), self._bytes_max)
        return packed

    def _check_presence(self) -> None:
        """Find out what is at endpoints that have never answered."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._unanswered.next_ns:
            answered = self._has_answered
            self._unanswered.check(answered, [0] * len(answered), now_ns)

    def _on_answer(self, at: int) -> None:
        self._has_answered[at] = True
        self._unanswered.answered(at)

    def _log_presence(self, asked: list[int]) -> str:
        """Log what is at endpoints that have never answered; return that as the end of a text."""
        now_ns, places = time.monotonic_ns(), []
        for at in asked:
            found = "" if self._has_answered[at] else self._unanswered.found[at]
            if found:
                self._unanswered.say(at, now_ns)
                places.append(f"{self._endpoints[at]}: {found}")
        return f" ({'; '.join(places[:4])})" if places else ""

    def _reply_in(self, data: bytes) -> Frame | None:
        """Return the reply to a request of this requester; None where it is none."""
        try:
            frame = Frame(data)
        except FrameError:
            return None
        return frame if frame.kind == Kind.REPLY and frame.session == self._id else None

    def _outcome(self, topic: str, at: int, frame: Frame, responder: str, kind: Any = None) -> Any:
        try:
            if frame.count == Status.DONE:
                value = frames.body_of(frame)
                return value if kind is None else _converted(topic, responder, value, kind)
            if frame.count == Status.NO_HANDLER:
                raise RemoteError(topic, responder, "", "there is no handler for this topic")
            if (denial := self._denial_in(at, topic, frame)) is not None:
                raise denial
            if frame.count == Status.RAISED:
                raise RemoteError(topic, responder, *frames.error_of(frame))
        except FrameError:
            pass
        raise RequestError(topic, responder, "the answer is malformed")


def _converted(topic: str, responder: str, value: Any, kind: Any) -> Any:
    try:
        return codec.convert(value, kind)
    except Exception as error:  # also what a type of the user's raises
        reason = f"the answer does not fit its type: {error}"
        raise RequestError(topic, responder, reason) from error


def check_type(kind: Any) -> None:
    """Raise `ConfigError` where answers cannot be made a `kind`; None is no type."""
    if kind is not None:
        try:
            _check_kind(kind)
        except (TypeError, NameError) as error:
            limit = f"a type that answers can be made ({error})"
            raise ConfigError("type", limit, kind) from error


_check_kind: Final = lru_cache(maxsize=256)(codec.check_kind)


def check_request(timeout: Any, attempts_max: Any) -> None:
    """Raise `ConfigError` where the arguments of a request are out of their limits."""
    if type(timeout) is not float or not 0 < timeout <= _TIMEOUT_MAX:
        check_time("timeout", timeout)
    if type(attempts_max) is not int or attempts_max < 1:
        whole("attempts_max", attempts_max, 1)


def check_time(name: str, seconds: Any) -> None:
    """Raise `ConfigError` where `seconds` is no time to wait."""
    ok = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    ok = ok and 0 < seconds <= _TIMEOUT_MAX
    check(name, seconds, ok, f"a number of seconds above 0, at most {_TIMEOUT_MAX:.0f}")
