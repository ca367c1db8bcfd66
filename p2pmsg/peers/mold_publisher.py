"""The publisher of a MoldUDP64 feed, with its request server."""

import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import transports
from p2pmsg.checks import checked, whole
from p2pmsg.driver.lifecycle import check_process
from p2pmsg.driver.peer import CLOSED, Peer
from p2pmsg.driver.verbs import Blocking, Verb, Wait
from p2pmsg.errors import BindError, ClosedError, ConfigError, LogFailedError, translated
from p2pmsg.mold import codec
from p2pmsg.mold.log import MoldLog
from p2pmsg.mold.publisher_core import Answer, History, MoldPublisherCore
from p2pmsg.peers.base import FaceBase
from p2pmsg.peers.network import Network
from p2pmsg.peers.settings import log_config
from p2pmsg.stats import LogStats, Stats
from recovery import TokenBucket
from recovery.checks import to_ns
from transports.endpoint import request_address
from transports.own_log import own_log as _log
from transports.trouble import Trouble
from transports.udp import UdpSender

if TYPE_CHECKING:
    from pathlib import Path

    from recovery.log import LogConfig

_REQUESTS_PER_TURN: Final = 256
_ANSWERS_PER_TURN: Final = 64
_REQUEST_BYTES_MAX: Final = 2048
_FULL_NS: Final = 200_000
"""How soon it is tried again where the system had no space for a packet."""
_LOG_NS: Final = 100_000_000
"""How often the log is looked at."""
END_S: Final = 0.35
"""How long the end of a session is said, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoldPublisherStats(Stats):
    """A Mold publisher's counters since it was made.

    Attributes:
        session: its name.
        published: messages accepted.
        replay_bytes: what the replay buffer holds, in bytes.
        requests, messages_repaired: requests taken, and messages sent again.
        unanswered: messages asked for that nothing keeps.
        throttled: requests not answered, since their host had had 16 MiB/s, or all had 64 MiB/s.
        requests_invalid: requests that were dropped, by reason.
        log: the log's counters, or None.
        unsent: packets that the system did not send, as where there is no route or a firewall drops
            them: receivers ask for what was in them.

    """

    session: str
    published: int
    replay_bytes: int
    requests: int
    messages_repaired: int
    unanswered: int
    requests_invalid: dict[str, int]
    log: LogStats | None = None
    throttled: int = 0
    unsent: int = 0


class MoldPublisherPeer(Peer):
    """The socket to the group, the request server's, the log, and the state machine.

    Args:
        endpoint, rate_limit_bytes_s, replay_bytes, history, log: as for `MoldPublisher`.
        session: its name, as it goes over the wire.
        network: the clock.

    Attributes:
        request_address: where requests are answered.

    """

    thread_name = "p2pmsg-mold"
    kind = "publisher"
    name = "the Mold publisher"

    def __init__(
        self, endpoint: str, session: bytes, replay_bytes: int, rate_limit_bytes_s: int,
        history: History | None, log: "LogConfig | None", network: Network,
    ) -> None:  # fmt: skip
        check_process()
        self.now_ns = network.now_ns
        self._bucket = TokenBucket(rate_limit_bytes_s, max(65_536, rate_limit_bytes_s // 100))
        self._again_ns = 0
        self._log: MoldLog | None = None
        self._log_is_open = self._is_at_disk = False
        self._has_history = history is not None
        self._reading: Answer | None = None  # what the upkeep is to look up
        self._reads = threading.Lock()  # held where the log is read, and not to be closed
        with translated():
            at = transports.parse_endpoint(endpoint)
            if at.scheme != "mold":
                raise ConfigError("endpoint", "mold://…", endpoint)
            self._udp = UdpSender(at)
        try:
            self._server = _bind_server(at)
        except BaseException:
            self._udp.close()
            raise
        try:
            if log is not None:
                self._log = MoldLog(log, session, at.option("topic", "mold"))
                self._log_is_open = True
        except BaseException:
            self._close_sockets()
            raise
        self._fds = frozenset({self._server.fileno()})
        host, port = self._server.getsockname()[:2]
        self.places, self.request_address = self._udp.endpoint, (str(host), int(port))
        place = f"the request server at {self.request_address}: answers cannot be sent"
        self._answers = Trouble(place, "receivers ask again")
        self._core = MoldPublisherCore(
            session=session,
            packet_bytes=self._udp.datagram_bytes,
            replay_bytes=replay_bytes,
            history=history,
            now_ns=self.now_ns(),
            log=self._log,
        )

    # ------------------------------------------------------------------ for the driver

    def turn(self, now_ns: int) -> None:
        """Take requests, say where the session stands, and send what the rate allows."""
        for data, address in self._requests():
            self._core.receive_request(data, address, now_ns=now_ns)
        self._core.handle_timer(now_ns=now_ns)
        self._send(now_ns)
        self._answer()

    def fds(self) -> frozenset[int]:
        """Return the request server's."""
        return self._fds

    def next_deadline_ns(self) -> int:
        """Return when there is something to send."""
        now_ns = self.now_ns()
        due_ns = self._core.next_deadline_ns()
        if self._core.has_requests and self._reading is None:
            due_ns = now_ns  # else requests wait for what is looked up
        if self._core.outbox:
            due_ns = min(due_ns, max(self._again_ns, self._bucket.ready_at_ns(now_ns)))
        return due_ns

    def resync(self) -> None:
        """Go on after what may have gone out; what was to be looked up is found again."""
        self._reading = None
        self._core.resync()

    def upkeep(self) -> Verb[None] | None:
        """Bring the log to the disk, apply its retention, and look up what is asked for."""
        return None if self._log is None and not self._has_history else self._keep_up()

    def _keep_up(self) -> Verb[None]:
        while True:
            yield Wait(self._has_disk_work, self.now_ns() + _LOG_NS)
            if self._log is not None and self._log_is_open:
                self._is_at_disk = True
                try:
                    yield from self._log.upkeep(now_ns=self.now_ns())
                finally:
                    self._is_at_disk = False
                self._core.on_synced(now_ns=self.now_ns())
                self._send(self.now_ns())
            for _ in range(_ANSWERS_PER_TURN):
                if self._reading is None:
                    break
                yield from self._look_up(self._reading)

    def _has_disk_work(self) -> bool:
        if self._reading is not None:
            return True
        if self._log is None or not self._log_is_open:
            return False
        now_ns = self.now_ns()
        due_ns = self._log.next_deadline_ns(now_ns=now_ns)
        return bool(self._core.unsynced) or (due_ns is not None and now_ns >= due_ns)

    def _look_up(self, answer: Answer) -> Verb[None]:
        """Answer what is in the log, or in the history, and go on with the next request."""
        try:
            yield Blocking(partial(self._read, answer))
        except Exception:
            self._core.refuse(answer)  # who asks again may get it
            raise
        finally:
            self._reading = None
        if answer.messages:
            self._send_answer(answer)
        else:
            self._core.refuse(answer)
        self._answer()

    def _read(self, answer: Answer) -> None:
        """Look it up, outside of the section; the log may be closed while the store is asked."""
        with self._reads:
            self._core.read_log(answer)
        self._core.ask_history(answer)

    def shut(self) -> None:
        """Close the sockets and the log."""
        self.closed_why = self.closed_why or CLOSED
        self._close_sockets()
        try:
            self._close_log()
        except LogFailedError as error:
            _log.error("%s", error)

    def abandon(self) -> None:
        """In a forked child: the request server's port is free when the parent has ended."""
        super().abandon()
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._udp.close()
        self._server.close()

    # --------------------------------------------------------------------------- verbs

    def publish(self, messages: Sequence[bytes]) -> Verb[tuple[int, int]]:
        """Send messages as soon as those before them have left; return their sequences.

        Where they go to the disk first, the upkeep brings them there, and sends them.
        """
        core = self._core
        while (core.unsynced or core.outbox) and not self.closed_why:
            yield Wait(self._is_synced, by_io=False) if core.unsynced else Wait(self._has_space)
        self.check_open()
        now_ns = self.now_ns()
        first, last, failure = core.publish(messages, now_ns=now_ns)
        self._send(now_ns)
        if core.unsynced:
            if not (yield Wait(lambda: core.head > last or core.following <= first, by_io=False)):
                raise ClosedError("the publisher", "it was closed before it was on the disk")
            if core.following <= first and self._log is not None:
                last, failure = first - 1, LogFailedError(str(self._log.failure))
        if failure is not None:
            failure.add_note(f"{last + 1 - first} of {len(messages)} messages were accepted")
            raise failure
        return first, last

    def close(self, linger: float) -> Verb[None]:
        """Say that the session is over, after all that was published, and go on answering."""
        self.closed_why = CLOSED
        yield Wait(lambda: not self._core.unsynced, by_io=False)
        self._core.end(now_ns=self.now_ns())
        while self._core.outbox:
            yield Wait(self._has_left)
        yield Wait(bool, self.now_ns() + to_ns(max(0.0, linger)))
        yield Wait(lambda: not self._is_at_disk, by_io=False)
        self._close_log()

    def stats(self) -> MoldPublisherStats:
        """Return the counters as they are now."""
        core = self._core
        return MoldPublisherStats(
            session=core.session.decode().rstrip(),
            published=core.following - 1,
            replay_bytes=core.replay.bytes_held,
            requests=core.requests,
            messages_repaired=core.messages_repaired,
            unanswered=core.unanswered,
            requests_invalid=dict(core.invalid),
            throttled=core.throttled,
            log=None if self._log is None else self._log.stats(),
            unsent=self._udp.unsent.count,
        )

    def _has_space(self) -> bool:
        return self.is_closed or not self._core.outbox

    def _is_synced(self) -> bool:
        return self.is_closed or not self._core.unsynced

    def _has_left(self) -> bool:
        return not self._core.outbox

    def _requests(self) -> Iterator[tuple[bytes, Any]]:
        for _ in range(_REQUESTS_PER_TURN):
            try:
                yield self._server.recvfrom(_REQUEST_BYTES_MAX)
            except OSError:
                break

    def _answer(self) -> None:
        """Send answers until there is one that the upkeep has to look up."""
        for _ in range(_ANSWERS_PER_TURN):
            if self._reading is not None:
                return
            answer = self._core.next_answer()
            if answer is None:
                return
            if answer.messages:
                self._send_answer(answer)
            else:
                self._reading = answer

    def _send_answer(self, answer: Answer) -> None:
        data = self._core.packet_of(answer)
        try:
            self._server.sendto(data, answer.address)
            self._answers.over()
        except BlockingIOError:
            pass  # it will ask again
        except OSError as error:
            self._answers.note(error)

    def _send(self, now_ns: int) -> None:
        outbox, bucket = self._core.outbox, self._bucket
        while outbox and bucket.available(now_ns) >= 1:
            if not self._udp.send(outbox[0]):
                self._again_ns = now_ns + _FULL_NS
                break
            bucket.take(len(outbox.popleft()), now_ns)

    def _close_log(self) -> None:
        if self._log is not None and self._log_is_open:
            self._log_is_open = False
            self._core.end_log()
            with self._reads:
                self._log.close()


def _bind_server(endpoint: transports.Endpoint) -> socket.socket:
    host, port = request_address(endpoint.option("request", "0.0.0.0:0"))
    made: socket.socket | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        family, _, _, _, address = found[0]
        made = socket.socket(family, socket.SOCK_DGRAM)
        made.setblocking(False)
        made.bind(address)
    except (OSError, UnicodeError) as error:  # the latter: no name can be like that
        if made is not None:
            made.close()
        number = error.errno if isinstance(error, OSError) else None
        raise BindError(f"cannot bind {host}:{port}: {error}", number) from error
    return made


class MoldPublisherBase(FaceBase):
    """What never waits; see the faces."""

    _patience_s: ClassVar[float | None] = END_S
    _peer: MoldPublisherPeer

    @checked(rate_limit_bytes_s=1)
    def __init__(
        self,
        endpoint: str,
        *,
        session: str,
        replay_bytes: int = 64 * 2**20,
        rate_limit_bytes_s: int = 125_000_000,
        history: History | None = None,
        log: "LogConfig | str | Path | None" = None,
    ) -> None:
        whole("replay_bytes", replay_bytes, 0)
        whole("rate_limit_bytes_s", rate_limit_bytes_s, 1000)
        self._begin(
            MoldPublisherPeer, endpoint, codec.session_bytes(session), replay_bytes,
            rate_limit_bytes_s, history, log_config(log),
        )  # fmt: skip

    @property
    def endpoint(self) -> str:
        """Where the packets go."""
        return self._peer.places

    @property
    def request_address(self) -> tuple[str, int]:
        """Where requests are answered: (host, port)."""
        return self._peer.request_address

    def stats(self) -> MoldPublisherStats:
        """Return the counters as they are now; also after `close`."""
        return self._read(self._peer.stats)
