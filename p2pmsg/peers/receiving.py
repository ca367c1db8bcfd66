"""What a subscriber and a relay receive with: between their sockets and a subscriber's core."""

from typing import TYPE_CHECKING, Any, Final

import transports
from p2pmsg.errors import AuthenticationError, SecurityError
from p2pmsg.peers.network import Network
from p2pmsg.security.use import curve_of_group
from p2pmsg.subscriber import partial_frames
from p2pmsg.subscriber.core import Intake, SubscriberCore
from p2pmsg.subscriber.effects import Command
from p2pmsg.subscriber.missing_topics import MissingTopics, asked_peers, known_topics
from p2pmsg.subscriber.redundancy import LineCount
from p2pmsg.subscriber.resync import resync
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.unanswered import Unanswered
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.peers.datagram_line import DatagramLine
    from p2pmsg.peers.mold_line import MoldClient, MoldLine
    from p2pmsg.security.settings import Security
    from p2pmsg.stats import LineStats
    from transports.curve import CurveClient

_MS: Final = 1_000_000
_FRAMES: Final = 64
"""How many frames a round takes from one of several sockets."""
_FULL_NS: Final = 5 * _MS
"""After how long is looked again whether there is space."""
_KEYS_NS: Final = 20 * _MS
"""How often handshakes are checked, with security."""
_ENDS_NS: Final = 100 * _MS
"""How often connections are checked that ZeroMQ may have ended."""
_EVERY_NS: Final = 5000 * _MS
"""How often all recovery connections are looked at."""
_REFUSAL_NS: Final = 60_000 * _MS
"""How often a warning says that another publisher of a group was refused."""


class Receiving:
    """Moves frames between the sockets and the core, one round at a time; it never waits.

    Args:
        core: takes what comes, and says what is to be sent.
        lines: where messages come from, connected.
        endpoints: of the lines.
        network: opens recovery channels, and has the clock.
        security: whose keys the connections have. Default None: they are open.

    Attributes:
        refused: what to raise where nothing else is to be returned: a peer refused a connection.
        is_closed: whether the sockets are closed.
        is_empty: whether `next_frame` found that nothing has come, and nothing is due.
        has_sent: whether something was sent since `settle`, which takes ZeroMQ's signal.

    """

    def __init__(
        self,
        core: SubscriberCore,
        lines: "list[transports.DataReceiver | DatagramLine]",
        endpoints: list[transports.Endpoint],
        network: Network,
        security: "Security | None" = None,
    ) -> None:
        self._core = core
        self._network = network
        self._now_ns = network.now_ns
        self._endpoints = endpoints
        self._security = security
        access_rules = None if security is None else security.access_rules
        changes = None
        if access_rules is not None:
            from p2pmsg.security.access_watch import AccessWatch

            changes = AccessWatch(access_rules)
        self._changes = changes
        self._lines = lines
        self._groups: dict[int, DatagramLine] = {}
        self._connections: dict[int, transports.DataReceiver] = {}
        self._feeds: dict[int, MoldLine] = {}
        self._sort_lines()
        self._clients: dict[int, transports.RecoveryClient | MoldClient] = {}
        self._unconnected: dict[int, Command] = {}  # for lack of descriptors
        self._fds: frozenset[int] | None = None
        self._disconnected: list[transports.RecoveryClient | MoldClient] = []
        """Those that are to be closed when nobody looks at their descriptors any more."""
        self._unwatched: list[transports.RecoveryClient | MoldClient] = []
        self._unanswered = Unanswered(
            "publisher", endpoints, now_ns=self._now_ns(), datagrams=True,
            has_keys=security is not None, in_memory=network.in_memory,
        )  # fmt: skip
        self._missing_topics = MissingTopics(core.topics)
        self._keys_due_ns = self._refusal_due_ns = self._ends_due_ns = self._every_due_ns = 0
        self._plain: transports.DataReceiver | DatagramLine | None = None
        self._due_ns = 0
        self._has_frame = self._has_waited = False
        self.refused: SecurityError | None = None
        self.is_closed = self.is_empty = self.has_sent = False

    def _sort_lines(self) -> None:
        for at, (place, line) in enumerate(zip(self._endpoints, self._lines, strict=True)):
            if not place.is_datagram:
                self._connections[at] = line  # type: ignore[assignment]
                continue
            from p2pmsg.peers.datagram_line import DatagramLine  # only then it is imported
            from p2pmsg.peers.mold_line import MoldLine

            assert isinstance(line, DatagramLine)
            self._groups[at] = line
            if isinstance(line, MoldLine):
                self._feeds[at] = line

    def close(self, linger_ms: int = 100) -> None:
        """Announce it to the publishers, and close the sockets."""
        if self.is_closed:
            return
        self._core.leave()
        self._send_requests()
        self.is_closed = True
        for line in self._lines:
            line.close()
        for client in (*self._clients.values(), *self._disconnected, *self._unwatched):
            client.close(linger_ms)

    def fds(self) -> frozenset[int]:
        """Return the descriptors that become readable when something has come.

        ZeroMQ's signal a change only once: `settle` before waiting for them.
        """
        if self._fds is None or self._feeds:  # whose clients open when there is something to ask
            found = [one.fileno() for one in (*self._connections.values(), *self._clients.values())]
            for group in self._groups.values():
                found += group.fds()
            self._fds = frozenset(found) - {-1}
            self._unwatched += self._disconnected
            self._disconnected.clear()
        return self._fds

    def settle(self) -> bool:
        """Look at ZeroMQ's sockets, whose descriptors then rest; return whether more can be read.

        One of their signals may be of a frame that came after the last read: nothing would signal
        it again.
        """
        self.has_sent = False
        core = self._core
        lines = [one.has_message() for one in self._connections.values()]
        replies = [one.has_message() for one in self._clients.values()]
        if core.is_full:
            return False
        return True in lines or (True in replies and bool(core.recovering))

    def next_deadline_ns(self) -> int:
        """Return when a round is due though nothing came."""
        due_ns = self._core.next_deadline_ns()
        return min(due_ns, self._now_ns() + _FULL_NS) if self._core.is_full else due_ns

    def check(self, now_ns: int) -> None:
        """Do what is due about connections, and say which endpoints have not answered."""
        if self._security is not None and now_ns >= self._keys_due_ns:
            self._check_keys(now_ns)
        if now_ns >= self._ends_due_ns:
            self._check_ends(now_ns)
            self._check_bytes(now_ns)
            self._check_answers(now_ns)
        while self._unwatched:
            self._unwatched.pop().close()

    def round(self, now_ns: int) -> int:
        """Read and send once; return how much came: frames, trains of datagrams, replies."""
        self._has_frame = False
        self.check(now_ns)
        taken = self._round(now_ns)
        self._find_plain()
        return taken

    def _round(self, now_ns: int) -> int:
        core = self._core
        if now_ns >= core.next_deadline_ns():
            taken = 0
            if self._groups and not core.is_full:
                # What seems to be missing may have come: it is not to be asked for once more.
                taken = self._take_all()
            self._handle_timer(now_ns)
            if taken and core.ready.entries:
                return taken  # who waits for it can make space, and nobody else can
        intake = core.intake(now_ns)
        if intake is not Intake.READ:
            shed = intake is Intake.SHED
            return self._take_all(lines=shed, shed=shed)
        if len(self._lines) > 1 or core.recovering:
            return self._take_all()
        taken = 0
        if 0 in self._groups:
            taken = self._groups[0].take()
        elif (data := self._connections[0].receive()) is not None:
            taken = 1
            core.receive_frame(0, data, now_ns=self._now_ns())
        if core.commands or core.requests:
            self.do_commands()
        return taken

    def _find_plain(self) -> None:
        """Find out whether anything can come from one socket alone, and until when that is so.

        Frames that come in order change nothing of that, so it is asked after all else.
        """
        core = self._core
        self._plain = None
        self._due_ns = core.next_deadline_ns()
        if len(self._lines) == 1 and not core.is_full and not core.recovering:
            if self._groups and self._security is not None:
                return  # keys come over the recovery channel, at any time
            self._plain = self._lines[0]

    def sees_frame(self) -> bool:
        """Whether there is one, and `next_frame` may return it, which is faster than a round."""
        if not self._has_frame and self._plain is not None and 0 in self._connections:
            core = self._core
            is_next = core.last_stream is not None and not core.ready.entries
            self._has_frame = is_next and self._connections[0].has_message()
        return self._has_frame

    def next_frame(self) -> tuple[Stream, bytes] | None:
        """Return the frame that is there, and its stream, where nothing else is to be done.

        One that is not there yet is looked for a moment, where this process takes turns with
        another; see `BusyWait`.
        """
        core, has_frame = self._core, self._has_frame
        self.is_empty = self._has_frame = False
        line, stream = self._plain, core.last_stream
        if line is None or stream is None or core.ready.entries or self.is_closed:
            return None
        if self._now_ns() >= self._due_ns:
            return None
        if core.cursor is not None and core.cursor.newcomers:
            return None
        data = self._connections[0].receive() if has_frame else line.receive_awake()
        if data is None:
            self.is_empty = self._has_waited = True
            return None
        if self._has_waited:
            line.on_waited()
            self._has_waited = False
        if not data.startswith(stream.prefix):
            stream = core.stream_of(data) or stream
        return stream, data

    def give(self, data: bytes, now_ns: int) -> None:
        """Give the core a frame of `next_frame` that was not taken."""
        self._core.receive_frame(0, data, now_ns=now_ns)
        self.do_commands()
        self._find_plain()

    def line_stats(self) -> "list[LineStats]":
        """Return what each line brought."""
        from p2pmsg.stats import LineStats

        core, endpoints, found = self._core, self._endpoints, self._unanswered.found
        counts, missing, silent = [LineCount() for _ in endpoints], [0] * len(endpoints), {}
        if core.by_line is not None:
            counts, missing = core.by_line.counts, core.by_line.missing()
            silent = core.by_line.silent
        connected = self.connected()
        made: list[LineStats] = []
        for index, (endpoint, line, count, text, is_connected) in enumerate(
            zip(endpoints, core.lines, counts, found, connected, strict=True)
        ):
            own, connection = self._groups.get(index), self._connections.get(index)
            said = ("" if connection is None else connection.refusal) or text or line.problem
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

    def datagram_sockets(self) -> list[Any]:
        """Return the sockets that datagrams come to, one a line; for tests."""
        return [group.udp.socket for group in self._groups.values()]  # type: ignore[attr-defined]

    def connected(self) -> list[bool]:
        """Return which endpoints have somebody who was joined, and answers."""
        if self.is_closed:
            return [False] * len(self._endpoints)
        joiner, now_ns = self._core.joiner, self._now_ns()
        return [joiner.is_connected(line, now_ns) for line in range(len(self._endpoints))]

    def unanswered(self) -> dict[str, str]:
        """Return what is at endpoints that nobody was joined at, where that is known."""
        pairs = zip(self._endpoints, self._core.lines, strict=True)
        one_way = {str(endpoint): line.one_way for endpoint, line in pairs if line.one_way}
        return one_way | self._unanswered.by_endpoint()

    def _check_answers(self, now_ns: int) -> None:
        """Say which endpoints have not answered, and which topics nobody has, when that is due."""
        if now_ns >= self._missing_topics.next_ns:
            places = [str(endpoint.without_key()) for endpoint in self._endpoints]
            peers, relays = self._core.peers, self._core.relays.upstreams
            known, asked = known_topics(peers), asked_peers(peers, relays, places)
            for text in self._missing_topics.check(known, asked, now_ns):
                _log.warning("%s", text)
        if now_ns >= self._unanswered.next_ns:
            lines = self._core.lines
            answered = [line.is_answered for line in lines]
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
        for line, connection in self._connections.items():
            if connection.was_ended_here():
                if self._core.lines[line].refused_until_ns is not None:
                    continue  # it is left alone
                connection.reconnect()
                self._core.connection_ended(line, now_ns)
                self.do_commands()

    def _check_bytes(self, now_ns: int) -> None:
        """Look where a part of a frame has come, that the core does not see yet."""
        core = self._core
        for line in partial_frames.silent_lines(core, now_ns):
            connection = self._connections.get(line)
            came_ns = None if connection is None else connection.last_byte_ns(now_ns)
            if came_ns is not None:
                partial_frames.on_line(core, line, came_ns)
        keys = partial_frames.awaited_answers(core, now_ns)
        if now_ns >= self._every_due_ns:  # what is reported of connections has no bound
            self._every_due_ns, keys = now_ns + _EVERY_NS, set(self._clients)
        for key in keys:
            client = self._clients.get(key)
            came_ns = None if client is None else client.last_byte_ns(now_ns)
            if came_ns is not None:
                partial_frames.on_answer(core, key, came_ns)

    def _check_keys(self, now_ns: int) -> None:
        """Check the handshakes of the connections, and make those again that were refused."""
        self._keys_due_ns = now_ns + _KEYS_NS
        if self._changes is not None and self._changes.poll():
            self._core.access_changed()
        for session, client in self._clients.items():
            if client.has_returned():
                self._core.recovery_returned(session)
        for one in (*self._connections.values(), *self._clients.values()):
            if one.check():
                self._on_refused(AuthenticationError(one.endpoint, one.refusal), one)
            elif not one.refusal and getattr(self.refused, "endpoint", "") == one.endpoint:
                self.refused = None  # it is connected meanwhile
        if not self._core.recovering and any(
            client.has_message() for client in self._clients.values()
        ):
            self._take_all(lines=False)  # denials and keys, which nobody waits for

    def _on_refused(self, error: SecurityError, by: object = None) -> None:
        """Have a refused connection raised; where a group has members, it is a warning.

        Anybody can announce publishers to a group: that is no reason to disturb who reads it.
        """
        if by in self._lines or not self._groups or not any(self.connected()):
            self.refused = error
            return
        now_ns = self._now_ns()
        if now_ns >= self._refusal_due_ns:
            self._refusal_due_ns = now_ns + _REFUSAL_NS
            _log.warning("%s", error)

    def resync(self) -> None:
        """Put the core right after an exception."""
        self._plain = None
        self._has_frame = False
        resync(self._core, now_ns=self._now_ns())

    def _take_all(self, *, lines: bool = True, shed: bool = False) -> int:
        core = self._core
        taken = 0
        if not core.replies_full:
            for session, client in list(self._clients.items()):
                for _ in range(_FRAMES):
                    reply = client.receive()
                    if reply is None:
                        break
                    taken += 1
                    core.receive_reply(session, reply, now_ns=self._now_ns())
                    if core.replies_full:
                        break
                while client.malformed:
                    client.malformed -= 1
                    core.reject("parts")
        for index in range(len(self._lines) if lines else 0):
            if index in self._groups:
                taken += self._groups[index].take(shed=shed)
                continue
            receive = self._connections[index].receive
            for _ in range(_FRAMES):
                data = receive()
                if data is None:
                    break
                taken += 1
                core.receive_frame(index, data, now_ns=self._now_ns(), shed=shed)
                if core.is_full and not shed:
                    break
        if core.commands or core.requests:
            self.do_commands()
        return taken

    def _handle_timer(self, now_ns: int) -> None:
        unread = 0
        for group in self._groups.values():
            if group.unread:
                unread = max(unread, group.unread_bytes())
        self._core.handle_timer(now_ns=now_ns, unread=unread)
        if self._core.commands or self._core.requests:
            self.do_commands()
        if self._core.multicast is not None and self._core.multicast.outgoing:
            for group in self._groups.values():
                group.flush()

    def do_commands(self) -> None:
        """Do what the core wants done, and send its requests."""
        commands = self._core.commands
        while commands:
            self.has_sent = True
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
                self._fds = None
                self._disconnected.append(gone)
        elif what == "subscribe":
            self._lines[command.line].subscribe(command.prefix)
        elif what == "unsubscribe":
            self._lines[command.line].unsubscribe(command.prefix)
        elif what == "reconnect":
            self._lines[command.line].reconnect()
            key = self._core.lines[command.line].key
            client = None if key is None else self._clients.get(key)
            if client is not None:
                client.reconnect(follow=True)
        elif what == "warn":
            place = f"{self._endpoints[command.line]}: " if command.line >= 0 else ""
            _log.warning("%s%s", place, command.text)
        elif what == "leave" and command.line in self._connections:
            self._connections[command.line].disconnect()

    def _connect(self, command: Command) -> transports.RecoveryClient:
        announced = transports.parse_endpoint(command.endpoint).without_key()
        endpoint = announced.reached_by(self._endpoints[command.line].host).require_connectable()
        client = self._network.recovery_client(
            endpoint,
            queue_frames=self._core.config.queue_frames,
            frame_bytes_max=self._core.config.frame_bytes_max,
            curve=self._curve_of(command.line, endpoint),
        )
        client.connect()
        self._fds = None
        return client

    def _curve_of(self, line: int, endpoint: transports.Endpoint) -> "CurveClient | None":
        """Return the keys of a line's other connections: a peer has one key for all its sockets."""
        if line in self._connections:
            return self._connections[line].curve
        if self._security is None:
            return None
        return curve_of_group(self._security, self._endpoints[line], endpoint)

    def _connect_again(self, session: int) -> transports.RecoveryClient | None:
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

    def _send_requests(self) -> None:
        requests = self._core.requests
        while requests:
            session, frame = requests[0]
            client = self._clients.get(session)
            if client is None and session in self._unconnected:
                client = self._connect_again(session)
            if client is not None:
                client.send(frame)  # what has no space is asked for again
                self.has_sent = True
            requests.popleft()
