"""A requester: its connections, and what it waits for."""

import threading
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import transports
from p2pmsg import codec
from p2pmsg.checks import BUSY_WAIT, check, checked, whole
from p2pmsg.driver.lifecycle import INHERITED
from p2pmsg.driver.peer import CLOSED, Peer
from p2pmsg.driver.verbs import Calling, LateError, Verb, Wait
from p2pmsg.errors import AccessDeniedError, AuthenticationError, ConfigError, SecurityError
from p2pmsg.peers.base import FaceBase
from p2pmsg.peers.network import Network
from p2pmsg.peers.settings import check_endpoints
from p2pmsg.requests.answers import Answer
from p2pmsg.requests.frames import MESSAGE_BYTES
from p2pmsg.requests.requester_engine import (
    NEVER_NS,
    Gathering,
    Request,
    RequesterEngine,
    converted,
)
from p2pmsg.requests.stats import AskingStats
from p2pmsg.security.use import curve_client, server_of
from p2pmsg.unanswered import Unanswered
from transports.own_log import own_log as _log
from transports.trouble import Rarely

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_SLICE_NS: Final = 2_000_000
_CONNECTIONS_NS: Final = 100_000_000
"""How often it is checked whether ZeroMQ has given up a connection, or made it again."""
_KEYS_NS: Final = 20_000_000
"""How often handshakes are checked, with security, while answers are waited for."""
_CROWD_NS: Final = 1_000_000_000
"""How long nobody looks for an answer after several have asked at once."""
_LARGE_BYTES: Final = 16 * 1024
"""Of smaller requests it is not checked whether they have arrived."""
_TIMEOUT_MAX: Final = 1e6
_GIVEN_UP: Final = "ZeroMQ gave it up (a frame above 16 MiB, or one that breaks its protocol)"
_FULL: Final = "requests that are over filled its queue"


class RequesterPeer(Peer):
    """One connection to each responder, for all that is asked at once."""

    thread_name = ""  # nothing goes on between calls

    def __init__(
        self, endpoints: str | Sequence[str], message_bytes_max: int, busy_wait: float,
        pending_max: int, security: "Security | None", network: Network,
    ) -> None:  # fmt: skip
        self.now_ns = network.now_ns
        self.endpoints = check_endpoints(endpoints)
        self.places = ", ".join(map(str, self.endpoints))
        self.name = f"the requester of {self.places}"
        curves = [curve_client(security, at) for at in self.endpoints]
        self.engine = RequesterEngine(
            self.endpoints, network.random.getrandbits(64), message_bytes_max, pending_max
        )
        self.reconnects = 0
        self._rules = None if security is None else security.access_rules
        self._has_keys = security is not None
        self._has_more = False
        self._connections_due_ns = 0
        self._reconnects_logged = [Rarely() for _ in self.endpoints]
        self.unanswered = Unanswered(
            "responder", self.endpoints, now_ns=self.now_ns(), usual="ROUTER", first_ns=0,
            says_at_once=False, has_keys=self._has_keys, in_memory=network.in_memory,
        )  # fmt: skip
        self._clients: list[transports.RecoveryClient] = []
        try:
            for at, curve in zip(self.endpoints, curves, strict=True):
                client = network.queue_client(at, curve=curve)
                self._clients.append(client)
                client.connect()
        except BaseException:
            self.shut()
            raise
        self._fds = frozenset(client.fileno() for client in self._clients)
        self._turn = transports.Turn()
        looks = [client.has_message for client in self._clients]
        has_come = looks[0] if len(looks) == 1 else lambda: any(look() for look in looks)
        self._busy_wait = network.busy_wait(busy_wait, has_come, self._turn)
        self._asker = self._crowd_ns = 0

    # --------------------------------------------------------------------------------- turns

    def turn(self, now_ns: int) -> None:
        """See `Peer`."""
        engine = self.engine
        if engine.pending:
            if now_ns >= self._connections_due_ns:
                self._check_connections(now_ns)
            if self._has_keys:
                self._check_keys(now_ns)
        self._has_more = False
        until_ns = now_ns + _SLICE_NS
        while self._read():
            if self.now_ns() > until_ns:
                self._has_more = True
                break
        engine.check_time(self.now_ns())
        if engine.is_anybody_silent():
            self._check_presence(now_ns)
        self._has_more |= self._flush()  # a send takes the descriptor's signal

    def fds(self) -> frozenset[int]:
        """See `Peer`."""
        return self._fds

    def next_deadline_ns(self) -> int:
        """See `Peer`."""
        engine = self.engine
        if not engine.pending:
            return NEVER_NS
        if self._has_more:
            return 0
        soon_ns = self._connections_due_ns
        if self._has_keys:
            soon_ns = min(soon_ns, self.now_ns() + _KEYS_NS)
        return min(engine.next_due_ns, soon_ns)

    @property
    def is_closed(self) -> bool:
        """Whether it asks no more."""
        return bool(self.engine.closed)

    def stats(self) -> AskingStats:
        """Return the counters."""
        engine, found = self.engine, self.unanswered.by_endpoint()
        return AskingStats(
            retries=engine.retries, strays=engine.strays, reconnects=self.reconnects,
            unanswered=found,
        )  # fmt: skip

    def resync(self) -> None:
        """See `Peer`."""
        self.engine.resync()
        self._has_more = True

    def shut(self) -> None:
        """See `Peer`."""
        self.engine.close(CLOSED)
        for client in self._clients:
            client.close()

    def abandon(self) -> None:
        """See `Peer`."""
        self.engine.close(INHERITED)

    # --------------------------------------------------------------------------------- verbs

    def request(
        self, topic: str, value: Any, timeout: float, attempts_max: int, kind: Any
    ) -> Verb[Any]:
        """Ask one responder after the other; return the answer."""
        engine = self.engine
        engine.check_usable()
        packed = engine.pack(topic, value)
        now_ns, time_ns = self.now_ns(), int(timeout * 1e9)
        until_ns = now_ns + time_ns
        while not engine.has_space():
            if not (yield Wait(engine.has_space, until_ns)):
                others = "others wait for an answer (pending_max)"
                raise LateError(f"request {topic!r}: not asked within {timeout} s, since {others}")
            engine.check_usable()
        request = engine.begin(topic, packed, time_ns, until_ns, attempts_max, now_ns)
        try:
            self._flush()
            if self._is_alone(now_ns) and self._busy_wait.begin():
                self._read()
            is_over = request.is_over()
            while not is_over:
                is_over = yield Wait(request.is_over)
            answer = self._result(request, timeout)
        finally:
            if not request.is_over():
                engine.forget(request.number)
        if kind is not None:
            place = engine.places[request.answer[0]] if request.answer else ""
            answer = yield Calling(partial(converted, topic, place, answer, kind))
        return answer

    def begin_all(self, topic: str, value: Any, deadline: float) -> Gathering:
        """Ask all responders; `SendQueueFullError` where too much is under way."""
        engine = self.engine
        engine.check_usable()
        packed, time_ns = engine.pack(topic, value), int(deadline * 1e9)
        engine.check_time(self.now_ns())  # nobody may iterate over what ended meanwhile
        engine.check_space(topic)
        gathering = engine.begin_all(topic, packed, time_ns, self.now_ns() + time_ns)
        self._flush()
        return gathering

    def end_all(self, gathering: Gathering) -> None:
        """Wait for no more answers of all."""
        self.engine.forget(gathering.number)

    def next_answer(self, gathering: Gathering) -> Verb[Answer | None]:
        """Return the next answer of all; None where there are no more."""
        while not gathering.came:
            if gathering.error is not None:
                raise gathering.error
            if not gathering.waiting:
                return None
            yield Wait(gathering.has_answer)
        answer = gathering.came.popleft()
        if answer.is_missing:
            self._log_presence([self.engine.places.index(answer.endpoint)])
        return answer

    # -------------------------------------------------------------------------------- private

    def _read(self) -> bool:
        """Take what has come; whether there was anything."""
        engine, came = self.engine, False
        for at, client in enumerate(self._clients):
            while (data := client.receive()) is not None:
                came = True
                is_known = engine.has_answered[at]
                engine.receive(at, data, self.now_ns())
                if not is_known and engine.has_answered[at]:
                    self.unanswered.answered(at)
                if not engine.pending:
                    self._busy_wait.end()
                    return True
        return came

    def _is_alone(self, now_ns: int) -> bool:
        """Whether nobody else asks: who looks for an answer keeps all others from asking."""
        asker, me = self._asker, threading.get_ident()
        if len(self.engine.pending) > 1 or me != asker:
            self._asker, self._crowd_ns = me, now_ns + _CROWD_NS * bool(asker)
        return now_ns >= self._crowd_ns

    def _flush(self) -> bool:
        """Send what there is space for; of a responder whose queue is full, later.

        Returns:
            Whether anything was to be sent.

        """
        engine = self.engine
        if not engine.has_to_send():
            return False
        now_ns, again = self.now_ns(), True
        while again:
            again = False
            for at, client in enumerate(self._clients):
                again |= self._send_to(at, client, now_ns)
        return True

    def _send_to(self, at: int, client: transports.RecoveryClient, now_ns: int) -> bool:
        """Send to one responder; return whether another one is to be asked instead."""
        engine, was_denied = self.engine, False
        while (found := engine.next_to_send(at)) is not None:
            asked, is_again = found
            if self._has_keys:
                if denied := self._denied_here(at, asked.topic, client):
                    engine.deny(at, asked, denied, now_ns)
                    was_denied = True
                    continue
                client.check()
                client.retry()
            data = engine.frame_of(asked, now_ns)
            # Sent once more, over a slow network, it would delay all that comes next.
            if not (is_again and len(data) >= _LARGE_BYTES and client.is_sending()):
                if not client.send(data):
                    break
                self._turn.is_theirs = True
            engine.on_sent(at, asked.number)
        return was_denied

    def _check_keys(self, now_ns: int) -> None:
        for at, client in enumerate(self._clients):
            if client.check():
                self.engine.refuse(at, client.refusal, now_ns)

    def _check_connections(self, now_ns: int) -> None:
        """Make those again that ZeroMQ has given up, or that take no requests any more."""
        self._connections_due_ns = now_ns + _CONNECTIONS_NS
        for at, client in enumerate(self._clients):
            if client.was_ended_here():
                self._reconnect(at, client, _GIVEN_UP)
            elif self.engine.is_stuck(at):
                self._reconnect(at, client, _FULL)
            if client.has_returned():
                self.engine.on_returned(at)

    def _reconnect(self, at: int, client: transports.RecoveryClient, why: str) -> None:
        client.reconnect()
        self.reconnects += 1
        if self._reconnects_logged[at].is_due():
            _log.warning("%s: the connection is made again, since %s", self.endpoints[at], why)

    def _denied_here(self, at: int, topic: str, client: transports.RecoveryClient) -> str:
        """Return why a responder may not answer this; "" where it may."""
        rules = self._rules
        if rules is None:
            return ""
        rules.refresh()
        user = server_of(client)
        if rules.may(user, "respond", topic):
            return ""
        why = rules.why(user, "respond", topic)
        place = self.endpoints[at].address
        return f"the key of the responder at {place} has no right to it here: {why}"

    def _check_presence(self, now_ns: int) -> None:
        """Find out what is at endpoints that have never answered."""
        if now_ns >= self.unanswered.next_ns:
            answered = self.engine.has_answered
            self.unanswered.check(answered, [0] * len(answered), now_ns)

    def _log_presence(self, asked: list[int]) -> str:
        """Log what is at endpoints that have never answered; return that as the end of a text."""
        now_ns, places = self.now_ns(), []
        for at in asked:
            found = "" if self.engine.has_answered[at] else self.unanswered.found[at]
            if found:
                self.unanswered.say(at, now_ns)
                places.append(f"{self.endpoints[at]}: {found}")
        return f" ({'; '.join(places[:4])})" if places else ""

    def _result(self, request: Request, timeout: float) -> Any:
        if request.error is not None:
            raise request.error
        if request.answer is None:
            raise self._failed(request, timeout)
        return self.engine.outcome(request.topic, *request.answer)

    def _failed(self, request: Request, timeout: float) -> LateError | SecurityError:
        """Return what to raise where nobody answered."""
        from transports.diagnosis import NEEDS_KEYS

        asked, refusals = request.asked, request.refusals
        where = self._log_presence(asked)
        for at in asked:
            found = self.unanswered.found[at]
            if at in refusals or self._has_keys:
                continue  # what comes of keys, the connection says: one that is silent is busy
            if found.startswith(NEEDS_KEYS):
                refusals[at] = found
        if refusals and all(at in refusals for at in asked):
            first = asked[0] if asked else next(iter(refusals))
            refusal = refusals[first]
            if isinstance(refusal, AccessDeniedError):
                return refusal
            return AuthenticationError(self.endpoints[first].address, refusal)
        said = [f"{self.endpoints[at].address}: {why}" for at, why in refusals.items()]
        text = f"request {request.topic!r}: no answer within {timeout} s, "
        text += f"{request.attempts_max} asked"
        return LateError(text + (where or (f" ({'; '.join(said[:4])})" if said else "")))


class RequesterBase(FaceBase):
    """What a requester has that never waits."""

    _peer: RequesterPeer
    _closes_at_once = True

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
        self._begin(RequesterPeer, endpoints, message_bytes_max, busy_wait, pending_max, security)

    def stats(self) -> AskingStats:
        """Return the counters as they are now; also after `close`."""
        return self._read(self._peer.stats)


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
