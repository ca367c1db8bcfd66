"""A subscriber's I/O without threads: between its sockets and its core, one round at a time."""

import threading
import time
from typing import TYPE_CHECKING

import zmq

import transports
from p2pmsg.driver.lifecycle import zmq_context
from p2pmsg.errors import AuthenticationError, ClosedError, SecurityError, TransportError
from p2pmsg.security.use import curve_of_group
from p2pmsg.subscriber import partial_frames
from p2pmsg.subscriber.core import Intake, SubscriberCore
from p2pmsg.subscriber.effects import Command
from p2pmsg.subscriber.missing_topics import MissingTopics, asked_peers, known_topics
from p2pmsg.subscriber.redundancy import LineCount
from p2pmsg.subscriber.resync import resync
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.sync.unanswered import Unanswered
from transports.endpoint import host_of
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.access_rules import AccessChanges
    from p2pmsg.security.settings import Security
    from p2pmsg.stats import LineStats
    from p2pmsg.sync.commits import Commits
    from p2pmsg.sync.datagram_line import DatagramLine
    from p2pmsg.sync.mold_line import MoldClient, MoldLine

_MS = 1_000_000
NEVER_NS = 2**63
_SLICE_MS = 100
"""Longest single wait, so that close() and other threads get their turn."""
_GIVEN_S = 20e-6
"""For how long a reader sleeps to let the thread run; with what the kernel adds it is 70 µs."""
_GIVEN_AGAIN_NS = 10 * _MS
"""When again, if that was not enough."""
_CATCH_UP_NS = _MS
"""How often a reader of the newest values reads all that has come."""
_KEYS_NS = 20 * _MS
"""How often handshakes are checked, with security."""
_ENDS_NS = 100 * _MS
"""How often connections are checked that ZeroMQ may have ended."""
_EVERY_NS = 5000 * _MS
"""How often all recovery connections are looked at."""
_REFUSAL_NS = 60_000 * _MS
"""How often a warning says that another publisher of a group was refused."""


class SubscriberIO:
    """Moves frames between the sockets and the core.

    `io_lock` belongs to the thread that does the I/O, which may wait; `lock` guards the core and is
    held only while frames are worked on.

    Attributes:
        stopping: set before the sockets are closed; rounds end soon after.
        interrupted: set when an exception may have cut the core's work short; `resync` is called
        then.
        commits: the subscriber's, if it has a cursor.
        last_round_ns: when the sockets were last looked at.
        late_ns: from when on the background thread, if there is one, lacks the interpreter: it
            should have had its turn before. Not where a line is UDP, which is not kept waiting.
        zmq_receiver: the only socket that messages come from, if it is ZeroMQ's; else None.
        followed: the stream whose frames come one after the other with nothing else to be done and
            no repairs to wait for, or None where that is to be found out.
        takes_batches: whether the fast path takes a frame of several messages.
        conflates: whether only the newest values matter of some topic; see `catch_up`.
        fds_changed: set where `fds` may return others than before.
        frames_per_round: how many frames a round takes from a socket, where there are several.
        security: whose keys the connections have; None: they are open.
        refused: what to raise where nothing else is to be returned: a peer refused a connection.

    """

    frames_per_round = 64
    security: "Security | None" = None
    refused: SecurityError | None = None
    _keys_due_ns = _refusal_due_ns = _ends_due_ns = _every_due_ns = 0
    _changes: "AccessChanges | None" = None

    def __init__(
        self,
        core: SubscriberCore,
        receivers: "list[transports.ZmqReceiver | DatagramLine]",
        endpoints: list[transports.Endpoint],
        lock: threading.RLock,
    ) -> None:
        self._core = core
        self._endpoints = endpoints
        self._clients: dict[int, transports.ZmqRecoveryClient | MoldClient] = {}
        self._unconnected: dict[int, Command] = {}  # for lack of descriptors
        self.lock = lock
        self.io_lock = threading.RLock()
        self._unanswered = Unanswered(
            "publisher", endpoints, now_ns=time.monotonic_ns(), datagrams=True
        )
        self._missing_topics = MissingTopics(core.topics)
        self.stopping = False
        self.interrupted = False
        self.fds_changed = False
        self.commits: Commits | None = None
        self.last_round_ns, self.late_ns = 0, NEVER_NS
        self._has_datagrams = any(place.is_datagram for place in endpoints)
        self._receivers = receivers
        only = receivers[0] if len(receivers) == 1 else None
        self.zmq_receiver = only if isinstance(only, transports.ZmqReceiver) else None
        self._feeds: dict[int, MoldLine] = {}
        if self._has_datagrams:  # only then is it imported
            from p2pmsg.sync import mold_line

            lines = enumerate(receivers)
            self._feeds = {at: one for at, one in lines if isinstance(one, mold_line.MoldLine)}
        self.followed: Stream | None = None
        self.conflates = core.policy.any_conflates
        self.takes_batches = core.cursor is None and not self.conflates
        self._caught_up_ns = 0

    def use_security(self, security: "Security | None") -> None:
        """Have connections with keys; called before anything."""
        self.security = security
        access_rules = None if security is None else security.access_rules
        self._changes = None if access_rules is None else access_rules.changes()

    def start(self) -> None:
        """Begin to read in the background."""

    def stop(self) -> None:
        """Announce it to the publishers, close the sockets."""
        self.stopping = True
        with self.io_lock:
            with self.lock:
                self._core.leave()
                self._send_requests()
            for receiver in self._receivers:
                receiver.close()
            for client in self._clients.values():
                client.close(linger_ms=100)

    def fds(self) -> set[int]:
        """Return the descriptors that become readable when something has come.

        ZeroMQ's signal a change only once: read until there is nothing before waiting for them.
        """
        found: set[int] = set()
        for receiver in self._receivers:
            if isinstance(receiver, transports.ZmqReceiver):
                found.add(receiver.fileno())
            else:
                found.update(one.fileno() for one in receiver.sockets)
        for client in self._clients.values():
            found |= fds_of(client)
        return found

    def has_input(self) -> bool:
        """Look whether there is anything at ZeroMQ's sockets, whose descriptors then rest."""
        kinds = transports.ZmqReceiver, transports.ZmqRecoveryClient
        every = [*self._receivers, *self._clients.values()]
        found = [one.has_message() for one in every if isinstance(one, kinds)]
        return True in found  # all were looked at

    def before_close(self, client: "transports.ZmqRecoveryClient | MoldClient") -> None:
        """Do what must be done before a client is closed."""

    def read(self, wait_ms: int) -> int:
        """Do a `round` for somebody who waits; `io_lock` is held."""
        try:
            if self.last_round_ns >= self.late_ns:
                self.give_way()
            return self.round(wait_ms)
        except transports.ClosedError as error:
            raise ClosedError("the subscriber", str(error)) from error
        except transports.TransportError as error:
            raise TransportError(str(error)) from error
        except BaseException:
            self.interrupted = True  # Ctrl-C, somewhere in the core's work
            raise

    def catch_up(self) -> None:
        """Read what has come, for a reader of the newest values that asks for the next message.

        Without that it takes a frame at a time, and a slow one the older ones the longer it runs:
        what waits in the socket is not conflated. It may take as long as the reader was away, so
        that a reader that can hardly follow spends half of its time on it, and 3 ms at most.
        """
        begun_ns = time.monotonic_ns()
        away_ns = begun_ns - self._caught_up_ns
        if away_ns < _CATCH_UP_NS:
            return
        end_ns = begun_ns + min(away_ns, 3 * _MS)
        with self.io_lock:
            while not self.stopping:
                before = self._core.frames_received
                self.read(0)
                if self._core.frames_received == before or time.monotonic_ns() >= end_ns:
                    break
        self._caught_up_ns = time.monotonic_ns()

    def round(self, wait_ms: int) -> int:
        """Do I/O once, waiting at most `wait_ms` for something to come; `io_lock` is held.

        Returns how much came: frames, trains of datagrams, replies.
        """
        core = self._core
        now_ns = time.monotonic_ns()
        self.last_round_ns, self.followed = now_ns, None
        if self.interrupted:
            self.resync()
        if self.security is not None and now_ns >= self._keys_due_ns:
            self._check_keys(now_ns)
        if now_ns >= self._ends_due_ns:
            self._check_ends(now_ns)
            self._check_bytes(now_ns)
        deadline_ns = core.next_deadline_ns()
        if now_ns >= deadline_ns:
            taken = 0
            if self._has_datagrams and not core.is_full:
                # What seems to be missing may have come: it is not to be asked for once more.
                taken = self._take_all()
            self._handle_timer(now_ns)
            if taken and core.ready.entries:
                return taken  # who waits for it can make space, and nobody else can
            deadline_ns = core.next_deadline_ns()
        wait_ms = max(0, min(wait_ms, _SLICE_MS, -((now_ns - deadline_ns) // _MS)))
        with self.lock:
            intake = core.intake(now_ns)
        if intake is not Intake.READ:
            shed = intake is Intake.SHED
            taken = self._take_all(lines=shed, shed=shed)
            if not taken and wait_ms and not core.ready.entries:
                time.sleep(min(wait_ms, 5) / 1000)
            return taken
        if len(self._receivers) == 1 and not core.recovering:
            # Waiting straight in recv saves the poll: 5 µs of a ping-pong's 65.
            receiver = self._receivers[0]
            if not isinstance(receiver, transports.ZmqReceiver):
                taken = receiver.take()
                if not taken and wait_ms and receiver.wait(wait_ms):
                    taken = receiver.take()
                if core.commands or core.requests:
                    self.do_commands()
                return taken
            data = receiver.receive_wait(wait_ms) if wait_ms else receiver.receive()
            if data is not None:
                with self.lock:
                    core.receive_frame(0, data, now_ns=time.monotonic_ns())
                if core.commands or core.requests:
                    self.do_commands()
            return int(data is not None)
        if wait_ms:
            self._poll(wait_ms)
        return self._take_all()

    def only_receiver(self) -> "transports.ZmqReceiver | DatagramLine | None":
        """Return the only socket that anything can come from; None where there are several."""
        receivers = self._receivers
        if len(receivers) != 1 or self._core.is_full or self._core.recovering:
            return None
        if self._has_datagrams and self.security is not None:
            return None  # keys come over the recovery channel, at any time
        return receivers[0]

    def give_way(self) -> None:
        """Let the thread have the interpreter; for who reads when it is `late_ns`.

        Taking a frame gives the interpreter up for some 20 µs. That wakes the thread, which takes
        6 µs of the reader's time, but is over before it runs; it waited for 75 ms of such frames.
        """
        self.late_ns = self.last_round_ns + _GIVEN_AGAIN_NS
        time.sleep(_GIVEN_S)

    def line_stats(self) -> "list[LineStats]":
        """Return what each line brought."""
        from p2pmsg.stats import LineStats

        core, endpoints, found = self._core, self._endpoints, self._unanswered.found
        counts, missing, silent = [LineCount() for _ in endpoints], [0] * len(endpoints), {}
        if core.by_line is not None:
            with self.lock:
                counts, missing, silent = (
                    core.by_line.counts,
                    core.by_line.missing(),
                    core.by_line.silent,
                )
        connected = self.connected()
        made: list[LineStats] = []
        for index, (endpoint, receiver, line, count, text, is_connected) in enumerate(
            zip(endpoints, self._receivers, core.lines, counts, found, connected, strict=True)
        ):
            own = None if isinstance(receiver, transports.ZmqReceiver) else receiver
            said = ("" if own is not None else receiver.refusal) or text or line.problem
            made.append(
                LineStats(
                    endpoint=str(endpoint),
                    frames=line.received,
                    first=count.first,
                    second=count.second,
                    missing=missing[index],
                    lag=count.lag_ns / 1e9,
                    kernel_drops=0 if own is None else own.kernel_drops,
                    buffer_bytes=0 if own is None else own.buffer_bytes,
                    frames_invalid=line.invalid,
                    found=said or silent.get(index, ""),
                    connected=is_connected,
                )
            )
        return made

    def connected(self) -> list[bool]:
        """Return which endpoints have somebody who was joined, and answers."""
        with self.lock:
            if self.stopping:
                return [False] * len(self._endpoints)
            joiner, now_ns = self._core.joiner, time.monotonic_ns()
            return [joiner.is_connected(line, now_ns) for line in range(len(self._endpoints))]

    def unanswered(self) -> dict[str, str]:
        """Return what is at endpoints that nobody was joined at, where that is known."""
        pairs = zip(self._endpoints, self._core.lines, strict=True)
        one_way = {str(endpoint): line.one_way for endpoint, line in pairs if line.one_way}
        return one_way | self._unanswered.by_endpoint()

    def check_answers(self, now_ns: int) -> None:
        """Say which endpoints have not answered, and which topics nobody has, when that is due."""
        if now_ns >= self._missing_topics.next_ns:
            with self.lock:
                places = [str(endpoint.without_key()) for endpoint in self._endpoints]
                peers, relays = self._core.peers, self._core.relays.upstreams
                known, asked = known_topics(peers), asked_peers(peers, relays, places)
            for text in self._missing_topics.check(known, asked, now_ns):
                _log.warning("%s", text)
        if now_ns >= self._unanswered.next_ns:
            lines = self._core.lines
            answered = [line.is_answered for line in lines]
            self._unanswered.has_keys = self.security is not None
            self._unanswered.check(answered, [line.invalid for line in lines], now_ns)
            for place, found in self._unanswered.take_closed():
                self.refused = AuthenticationError(place, found)

    def raise_refused(self) -> None:
        """Raise what a refused connection is to be reported by, once for each refusal."""
        refused, self.refused = self.refused, None
        if refused is not None:
            raise refused

    def _check_ends(self, now_ns: int) -> None:
        """Make connections again that ZeroMQ ended, since a frame was too large."""
        self._ends_due_ns = now_ns + _ENDS_NS
        for line, receiver in enumerate(self._receivers):
            if isinstance(receiver, transports.ZmqReceiver) and receiver.was_ended_here():
                if self._core.lines[line].refused_until_ns is not None:
                    continue  # it is left alone
                receiver.reconnect()
                with self.lock:
                    self._core.connection_ended(line, now_ns)
                self.do_commands()

    def _check_bytes(self, now_ns: int) -> None:
        """Look where a part of a frame has come, that the core does not see yet."""
        core = self._core
        with self.lock:
            for line in partial_frames.silent_lines(core, now_ns):
                if (came_ns := _last_byte_ns(self._receivers[line], now_ns)) is not None:
                    partial_frames.on_line(core, line, came_ns)
            keys = partial_frames.awaited_answers(core, now_ns)
            if now_ns >= self._every_due_ns:  # what is reported of connections has no bound
                self._every_due_ns, keys = now_ns + _EVERY_NS, set(self._clients)
            for key in keys:
                if (came_ns := _last_byte_ns(self._clients.get(key), now_ns)) is not None:
                    partial_frames.on_answer(core, key, came_ns)

    def _check_keys(self, now_ns: int) -> None:
        """Check the handshakes of the connections, and make those again that were refused."""
        self._keys_due_ns = now_ns + _KEYS_NS
        if self._changes is not None and self._changes.poll():
            with self.lock:
                self._core.access_changed()
        for session, client in self._clients.items():
            if isinstance(client, transports.ZmqRecoveryClient) and client.has_returned():
                with self.lock:
                    self._core.recovery_returned(session)
        for one in (*self._receivers, *self._clients.values()):
            if not isinstance(one, transports.ZmqReceiver | transports.ZmqRecoveryClient):
                continue
            if one.check():
                self._on_refused(AuthenticationError(one.endpoint, one.refusal), one)
            elif not one.refusal and getattr(self.refused, "endpoint", "") == one.endpoint:
                self.refused = None  # it is connected meanwhile
        if not self._core.recovering and any(
            client.has_message()
            for client in self._clients.values()
            if isinstance(client, transports.ZmqRecoveryClient)
        ):
            self._take_all(lines=False)  # denials and keys, which nobody waits for

    def _on_refused(self, error: SecurityError, by: object = None) -> None:
        """Have a refused connection raised; where a group has members, it is a warning.

        Anybody can announce publishers to a group: that is no reason to disturb who reads it.
        """
        if by in self._receivers or not self._has_datagrams or not any(self.connected()):
            self.refused = error
            return
        now_ns = time.monotonic_ns()
        if now_ns >= self._refusal_due_ns:
            self._refusal_due_ns = now_ns + _REFUSAL_NS
            _log.warning("%s", error)

    def wait_ms(self, deadline_ns: int | None) -> int:
        """Return how long to wait at most, up to a caller's deadline; 0 where something is due."""
        now_ns = time.monotonic_ns()
        self.last_round_ns = now_ns
        due_ns = self._core.next_deadline_ns()
        if deadline_ns is not None and deadline_ns < due_ns:
            due_ns = deadline_ns
        return min(_SLICE_MS, (due_ns - now_ns) // _MS)

    def resync(self) -> None:
        """Put the core right after an exception."""
        with self.lock:
            resync(self._core, now_ns=time.monotonic_ns())
            self.interrupted = False

    def _poll(self, wait_ms: int) -> None:
        poller = zmq.Poller()
        for receiver in self._receivers:
            if not isinstance(receiver, transports.ZmqReceiver):
                for one in receiver.sockets:
                    poller.register(one, zmq.POLLIN)
            else:
                poller.register(receiver.socket, zmq.POLLIN)
        for client in self._clients.values():
            if client.socket is not None:
                poller.register(client.socket, zmq.POLLIN)
        poller.poll(wait_ms)

    def _take_all(self, *, lines: bool = True, shed: bool = False) -> int:
        core = self._core
        taken = 0
        if not core.replies_full:
            for session, client in list(self._clients.items()):
                for _ in range(self.frames_per_round):
                    reply = client.receive()
                    if reply is None:
                        break
                    taken += 1
                    with self.lock:
                        core.receive_reply(session, reply, now_ns=time.monotonic_ns())
                    if core.replies_full:
                        break
                if client.malformed:
                    core.invalid["parts"] += client.malformed
                    client.malformed = 0
        for index, receiver in enumerate(self._receivers if lines else ()):
            if not isinstance(receiver, transports.ZmqReceiver):
                taken += receiver.take(shed=shed)
                continue
            for _ in range(self.frames_per_round):
                data = receiver.receive()
                if data is None:
                    break
                taken += 1
                with self.lock:
                    core.receive_frame(index, data, now_ns=time.monotonic_ns(), shed=shed)
                if core.is_full and not shed:
                    break
        if core.commands or core.requests:
            self.do_commands()
        return taken

    def _handle_timer(self, now_ns: int) -> None:
        with self.lock:
            unread = 0
            if self._has_datagrams:
                for one in self._receivers:
                    if not isinstance(one, transports.ZmqReceiver) and one.unread:
                        unread = max(unread, one.unread_bytes())
            self._core.handle_timer(now_ns=now_ns, unread=unread)
        if self._core.commands or self._core.requests:
            self.do_commands()
        if self._core.multicast is not None and self._core.multicast.outgoing:
            for receiver in self._receivers:
                if not isinstance(receiver, transports.ZmqReceiver):
                    receiver.flush()

    def do_commands(self) -> None:
        """Do what the core wants done, and send its requests."""
        commands = self._core.commands
        with self.lock:
            while commands:
                try:
                    self._do(commands[0])
                except transports.TransportError as error:
                    _log.warning("%s", error)
                commands.popleft()  # last, so that none is forgotten whatever comes
            self._send_requests()

    def _do(self, command: Command) -> None:
        what = command.what
        if what == "connect":
            if command.session in self._clients:
                return
            if command.line in self._feeds:
                feed = self._feeds[command.line]
                self._clients[command.session] = feed.open_client(command.session)
                self.fds_changed = True
                return
            try:
                self._clients[command.session] = self._connect(command)
            except SecurityError as error:
                self._unconnected[command.session] = command
                self._on_refused(error)
            except transports.EndpointError:
                raise  # it will not do later either
            except transports.TransportError:
                self._unconnected[command.session] = command
                raise
        elif what == "disconnect":
            self._unconnected.pop(command.session, None)
            gone = self._clients.pop(command.session, None)
            if gone is not None:
                self.fds_changed = True
                self.before_close(gone)
                gone.close()
        elif what == "subscribe":
            self._receivers[command.line].subscribe(command.prefix)
        elif what == "unsubscribe":
            self._receivers[command.line].unsubscribe(command.prefix)
        elif what == "reconnect":
            self._receivers[command.line].reconnect()
            key = self._core.lines[command.line].key
            client = None if key is None else self._clients.get(key)
            if isinstance(client, transports.ZmqRecoveryClient):
                client.reconnect(learn=True)
            elif client is not None:
                client.reconnect()
        elif what == "warn":
            place = f"{self._endpoints[command.line]}: " if command.line >= 0 else ""
            _log.warning("%s%s", place, command.text)
        elif what == "leave":
            left = self._receivers[command.line]
            if isinstance(left, transports.ZmqReceiver):
                left.disconnect()

    def _connect(self, command: Command) -> transports.ZmqRecoveryClient:
        announced = transports.parse_endpoint(command.endpoint).without_key()
        endpoint = announced.reached_by(self._host_of(command)).require_connectable()
        client = transports.ZmqRecoveryClient(
            endpoint,
            context=zmq_context(),
            queue_frames=self._core.config.queue_frames,
            frame_bytes_max=self._core.config.frame_bytes_max,
            curve=self._curve_of(command.line, endpoint),
        )
        client.connect()
        self.fds_changed = True
        return client

    def _curve_of(
        self, line: int, endpoint: transports.Endpoint
    ) -> "transports.CurveClient | None":
        """Return the keys of a line's other connections: a peer has one key for all its sockets."""
        receiver = self._receivers[line] if 0 <= line < len(self._receivers) else None
        if isinstance(receiver, transports.ZmqReceiver):
            return receiver.curve
        if self.security is None:
            return None
        return curve_of_group(self.security, self._endpoints[line], endpoint)

    def _connect_again(self, session: int) -> transports.ZmqRecoveryClient | None:
        """Try once more what had no descriptor left; None: there is none yet."""
        try:
            client = self._clients[session] = self._connect(self._unconnected[session])
        except SecurityError as error:
            self._on_refused(error)
            return None
        except transports.TransportError:
            return None
        del self._unconnected[session]
        return client

    def _host_of(self, command: Command) -> str:
        """Return the host by which a publisher is reached."""
        member = self._core.multicast
        if member is not None and command.session in member.sources:
            return host_of(member.sources[command.session][1])
        return self._endpoints[command.line].host

    def _send_requests(self) -> None:
        requests = self._core.requests
        while requests:
            session, frame = requests[0]
            client = self._clients.get(session)
            if client is None and session in self._unconnected:
                client = self._connect_again(session)
            if client is not None:
                client.send(frame)  # what has no space is asked for again
            requests.popleft()


def _last_byte_ns(connection: object, now_ns: int) -> int | None:
    """Return when the last byte came over a ZeroMQ connection; None where it is not known."""
    if not isinstance(connection, transports.ZmqReceiver | transports.ZmqRecoveryClient):
        return None
    return connection.last_byte_ns(now_ns)


def fds_of(client: "transports.ZmqRecoveryClient | MoldClient") -> set[int]:
    """Return the descriptors of a client; a feed's has none while nothing was asked."""
    if isinstance(client, transports.ZmqRecoveryClient):
        return {client.fileno()}
    return set() if client.socket is None else {client.socket.fileno()}
