"""The threaded publisher of a MoldUDP64 feed."""

import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import transports
from p2pmsg.checks import check, checked, shown, whole
from p2pmsg.driver.lifecycle import (
    INHERITED,
    ClosesAtOnce,
    check_process,
    close_at_exit,
    close_in_children,
    was_closed,
)
from p2pmsg.errors import BindError, ClosedError, ConfigError, translated
from p2pmsg.mold import codec
from p2pmsg.mold.log import MoldLog
from p2pmsg.mold.publisher_core import History, MoldPublisherCore
from p2pmsg.stats import LogStats, Stats
from p2pmsg.sync.settings import log_config
from p2pmsg.sync.worker import Worker
from recovery import TokenBucket
from transports.endpoint import request_address
from transports.failing import Failing

if TYPE_CHECKING:
    from pathlib import Path

    from recovery.log import LogConfig

_MS: Final = 1_000_000
_REQUESTS_PER_ROUND: Final = 256
_ANSWERS_PER_ROUND: Final = 64
_END_S: Final = 0.35
_now_ns: Final = time.monotonic_ns


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


class MoldPublisher(ClosesAtOnce):
    """Publishes a MoldUDP64 feed, and serves what its receivers missed.

    Any receiver of the standard can read it. The messages are bytes, numbered from 1 on. A thread
    sends heartbeats and answers requests.

    Args:
        endpoint: `mold://GROUP:PORT?interface=…&ttl=…&loopback=…&request=HOST:PORT`, where the
            request option is the address that requests come to; port 0 lets the system pick one.
            Default: port 0 on all interfaces.
        session: its name, 1 to 10 ASCII characters, not only spaces; a new one for every sequence
            space.
        replay_bytes: bound of what is kept for requests, in bytes. Default 64 MiB.
        rate_limit_bytes_s: how fast packets leave, at most, in bytes a second. Default 125 MB/s, a
            gigabit link: the standard has no means for receivers to slow a feed down.
        history: gives older messages, from a store of yours, for requests that neither the buffer
            nor the log can answer.
        log: a `LogConfig`: messages are kept there before they go out, requests are answered from
            it, and a publisher that is started again goes on in its session. A log that was given
            up (`on_error="continue"`) is refused: what went out after that is not in it, and its
            sequences must not be used again.

    Raises:
        ConfigError: a setting is out of its limits, the endpoint is none, or the log is another
            session's.
        BindError: an address could not be bound.

    """

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
        name = codec.session_bytes(session)
        check_process()
        self._closed, self._why = False, "it is closed"
        self._lock = threading.Lock()
        self._bucket = TokenBucket(rate_limit_bytes_s, max(65_536, rate_limit_bytes_s // 100))
        with translated():
            at = transports.parse_endpoint(endpoint)
            if at.scheme != "mold":
                raise ConfigError("endpoint", "mold://…", endpoint)
            self._udp = transports.UdpSender(at)
        self._server = self._bind_server(at)
        self._request_address = self._server.getsockname()[:2]
        self._answers = Failing(
            f"the request server at {self.request_address}",
            "answers cannot be sent",
            "receivers ask again",
        )
        self._log = self._open_log(log_config(log), name, at)
        self._core = MoldPublisherCore(
            session=name,
            packet_bytes=self._udp.datagram_bytes,
            replay_bytes=replay_bytes,
            history=history,
            now_ns=_now_ns(),
            log=self._log,
        )
        self._worker = Worker("p2pmsg-mold", "the Mold publisher", self._turn)
        self._poll = select.poll()
        self._poll.register(self._server, select.POLLIN)
        self._poll.register(self._worker, select.POLLIN)
        close_in_children(self)
        self._worker.start()
        close_at_exit(self, lambda one, left: one.close(min(left, _END_S)))

    def __repr__(self) -> str:
        return shown(self, lambda: self.endpoint)

    @property
    def endpoint(self) -> str:
        """Where the packets go."""
        return self._udp.endpoint

    @property
    def request_address(self) -> tuple[str, int]:
        """Where requests are answered: (host, port)."""
        host, port = self._request_address
        return host, port

    def publish(self, message: bytes) -> int:
        """Send one message and return its sequence.

        Args:
            message: 0 to 65,471 bytes; the standard allows an empty one.

        Raises:
            ConfigError: it is not bytes, or has more than 65,471 of them.
            LogFailedError: the log could not be written; a note says how many were accepted.
            ClosedError: the publisher is closed.

        """
        return self.publish_many([message])[0]

    def publish_many(self, messages: Sequence[bytes]) -> tuple[int, int]:
        """Send messages, in as few packets as hold them; returns the first and last sequence.

        Args:
            messages: each as for `publish`.

        Raises:
            ClosedError: the publisher is closed.
            Others as `publish`.

        """
        check("len(messages)", len(messages), len(messages) > 0, "at least 1")
        with self._lock:
            if self._closed:
                raise ClosedError("the publisher", self._why)
            result = self._core.publish(messages, now_ns=_now_ns())
            self._send_waiting()
        return result

    def stats(self) -> MoldPublisherStats:
        """Return the counters as they are now; also after `close`."""
        with self._lock:
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

    def close(self, linger: float = _END_S) -> None:
        """Say that the session is over, and close.

        Args:
            linger: how long that is repeated and requests are still answered, in seconds. Default
                0.35; exchanges take 30.

        Raises:
            LogFailedError: not everything could be written to the log; it is closed all the same.

        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            was_closed(self)
            self._core.end(now_ns=_now_ns())
        self._worker.wake()
        time.sleep(max(0.0, linger))
        self._worker.stop()
        self._udp.close()
        self._server.close()
        if self._log is not None:
            self._log.close()

    def _open_log(
        self, config: "LogConfig | None", session: bytes, endpoint: transports.Endpoint
    ) -> MoldLog | None:
        if config is None:
            return None
        try:
            return MoldLog(config, session, endpoint.option("topic", "mold"))
        except BaseException:
            self._udp.close()
            self._server.close()
            raise

    def _bind_server(self, endpoint: transports.Endpoint) -> socket.socket:
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
            self._udp.close()
            if made is not None:
                made.close()
            number = error.errno if isinstance(error, OSError) else None
            raise BindError(f"cannot bind {host}:{port}: {error}", number) from error
        return made

    def _send_waiting(self) -> None:
        outbox = self._core.outbox
        while outbox:
            now_ns = _now_ns()
            if self._bucket.available(now_ns) < 1:
                time.sleep(max(0, self._bucket.ready_at_ns(now_ns) - now_ns) / 1e9)
                continue
            if not self._udp.send(outbox[0]):
                time.sleep(0.0002)
                continue
            self._bucket.take(len(outbox.popleft()), now_ns)

    def _turn(self) -> None:
        with self._lock:
            due_ns = self._core.next_deadline_ns(now_ns=_now_ns())
            sync_ns = self._log and self._log.next_deadline_ns(now_ns=_now_ns())
        due_ns = min(due_ns, sync_ns or due_ns)
        self._poll.poll(max(0, min(1000, -(-(due_ns - _now_ns()) // _MS))))
        requests = self._take_requests()
        with self._lock:
            now_ns = _now_ns()
            for data, address in requests:
                self._core.receive_request(data, address, now_ns=now_ns)
            self._core.handle_timer(now_ns=now_ns)
            self._send_waiting()
            for _ in range(_ANSWERS_PER_ROUND):
                answer = self._core.next_answer(now_ns=_now_ns())
                if answer is None:
                    break
                try:
                    self._server.sendto(*answer)
                    if self._answers.why:
                        self._answers.worked()
                except BlockingIOError:
                    pass  # it will ask again
                except OSError as error:
                    self._answers.note(error)
        if self._log is not None:
            self._log.handle_timer(self._lock, now_ns=_now_ns())

    def _take_requests(self) -> list[tuple[bytes, Any]]:
        found: list[tuple[bytes, Any]] = []
        self._worker.clear()
        while len(found) < _REQUESTS_PER_ROUND:
            try:
                found.append(self._server.recvfrom(2048))
            except OSError:
                break
        return found

    def _forget(self) -> None:
        """In a forked child: the sockets and the thread are the parent's."""
        self._closed, self._why = True, INHERITED
        self._udp.close()
        self._server.close()  # its port is free when the parent has ended, although a child lives
        self._lock = threading.Lock()
