"""Following the heads of many publishers and relays in one thread.

::

    asked   a publisher with new heads: every `refresh`; a quiet one: ever more rarely
    heard   by heartbeats of the followed topics, 10 ms after a stream falls quiet

    a publisher   one session: its welcome says which, HEADS and heartbeats where it stands
    a relay       all that its list says; its pulse says when there is another list
"""

import selectors
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final

import transports
from p2pmsg import control, wire
from p2pmsg.checks import checked, shown, time_to_wait
from p2pmsg.driver.lifecycle import INHERITED, ClosesAtOnce, close_in_children
from p2pmsg.errors import AccessDeniedError, ClosedError, ConfigError, P2PError, SecurityError
from p2pmsg.reader.channel import MS, PeerSocket, RangeChannel
from p2pmsg.reader.fetch import denied_by
from p2pmsg.reader.reader import Heads, StreamHead, check_patterns, heads_of
from p2pmsg.reader.sessions import Presence
from p2pmsg.security.use import curve_client
from p2pmsg.sync.key_watch import EVERY_NS
from p2pmsg.sync.settings import check_endpoints
from p2pmsg.sync.worker import Notifier, Worker
from p2pmsg.wire import Frame, FrameError, Kind
from recovery.checks import to_ns
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

__all__ = ["HeadsWatch"]

_ASKS_A_SECOND: Final = 1000
"""All publishers together are asked so often at most: a tenth of a core."""
_QUIET_ASKS_A_SECOND: Final = 200
"""And those who have nothing new: heartbeats report them anyway."""
_CEILING_NS: Final = 1000 * MS
_AGAIN_S: Final = 0.25
"""How long the thread rests where a socket could not be made."""
_SILENT_NS: Final = 2000 * MS
"""A publisher that was silent for so long is no longer reachable."""
_RECONNECT_NS: Final = 8000 * MS
"""How often a silent one is connected to again: who needs seconds for an answer (thousands of
streams on a busy machine) would be cut off each time before it has come."""
_ALONE_NS: Final = 100 * MS
"""How often a peer is checked that cannot be asked yet."""
_LIST_NS: Final = 1000 * MS
"""How often a relay is asked for its sessions, whatever its pulse says."""
_LIST_AGAIN_NS: Final = 50 * MS
"""And after a pulse that says that there is another list: an older one may be on its way."""
_FRAMES_MAX: Final = 1000


class _Question:
    """What a session is asked again and again."""

    __slots__ = ("due_ns", "presence", "wait_ns")

    def __init__(self, presence: Presence) -> None:
        self.presence = presence
        self.due_ns = self.wait_ns = 0


class HeadsPeer:
    """The publisher or relay at one endpoint.

    It belongs to the watch's thread, except the attributes, each of which is changed in one step.

    Attributes:
        channel: its sockets.
        heads: what is known, by session.
        reachable: whether it has answered lately.
        denied: what is denied, by session and pattern.
        due_ns: when `ask` has something to do.
        has_more: whether `receive` has left something unread.

    """

    def __init__(
        self, endpoint: str, topics: list[str] | None, security: "Security | None" = None
    ) -> None:
        (at,) = check_endpoints(endpoint)
        self.channel = RangeChannel(at, security=security)
        self.heads: dict[int, Heads] = {}
        self.denied: dict[int, dict[str, AccessDeniedError]] = {}
        self._denied: dict[int, dict[str, AccessDeniedError]] = {}
        self._pages = control.HeadPages(control.STREAMS_MAX)
        self.reachable = self.has_more = False
        self.due_ns = 0
        self._questions: dict[int, _Question] = {}
        self._probe = None if topics is None else control.Probe(0, topics, "latest")
        self._request = 0
        self._relay_version = -1
        self._list_due_ns = 0
        self._changed = False
        self._now_ns = self._floor_ns = 0
        self._last_heard_ns = self._connected_ns = time.monotonic_ns()
        self.channel.follow(wire.control_prefix(Kind.HEARTBEAT))  # relays'
        for topic in topics or ():
            if topic.endswith("*"):
                continue
            kind = bytes((wire.VERSION, Kind.HEARTBEAT))
            self.channel.follow(topic.encode() + b"\0" + wire.MAGIC + kind)
        self.channel.listen()

    @property
    def is_relay(self) -> bool:
        """Whether a relay was heard of here last."""
        return self.channel.relay is not None

    @property
    def session_count(self) -> int:
        """How many sessions are asked, at least one."""
        return max(1, len(self._questions))

    @property
    def has_answered(self) -> bool:
        """Whether the heads of all sessions here are known."""
        relay, questions = self.channel.relay, tuple(self._questions)
        if relay is not None and not questions:
            return relay.is_known
        return bool(questions) and all(session in self.heads for session in questions)

    def ask(self, now_ns: int, floor_ns: int, ceiling_ns: int) -> None:
        """Ask for the heads that are due, and say when to ask next."""
        channel = self.channel
        if now_ns - self._last_heard_ns > _SILENT_NS:
            self.reachable = False
            if now_ns - self._connected_ns > _RECONNECT_NS:
                self._connected_ns = now_ns
                channel.reconnect()
        if channel.relay is not None and now_ns >= self._list_due_ns:
            self._list_due_ns = now_ns + _LIST_NS
            channel.relay.begin()
        channel.ask_sessions()
        self._on_presences()
        for session, question in self._questions.items():
            if now_ns >= question.due_ns:
                question.wait_ns = max(floor_ns, min(ceiling_ns, 2 * question.wait_ns))
                question.due_ns = now_ns + question.wait_ns
                self._request += 1
                channel.send(
                    wire.control_frame(
                        Kind.HEADS_REQUEST, session, self._probe, sequence=self._request
                    )
                )
        self._plan(now_ns)

    def receive(self, now_ns: int, floor_ns: int) -> bool:
        """Take what has come; returns whether there is something new."""
        before = self.has_answered, self.reachable, self.is_relay
        self._changed = self.has_more = False
        self._now_ns, self._floor_ns = now_ns, floor_ns
        self.channel.listen(self._take_heartbeat)
        for _ in range(_FRAMES_MAX):
            data = self.channel.receive()
            if data is None:
                break
            self._take_reply(data)
        else:
            self.has_more = True
        self._on_presences()
        self._plan(now_ns)
        return self._changed or (self.has_answered, self.reachable, self.is_relay) != before

    def _plan(self, now_ns: int) -> None:
        relay = self.channel.relay
        due_ns = [question.due_ns for question in self._questions.values()]
        if relay is not None:
            due_ns.append(self._list_due_ns)
        if not due_ns or not (relay is None or relay.is_complete):
            due_ns.append(now_ns + _ALONE_NS)
        self.due_ns = min(due_ns)

    def _on_presences(self) -> None:
        """Ask those from now on who are here now."""
        channel, questions = self.channel, self._questions
        presences = channel.presences()
        if questions.keys() != presences.keys() or any(
            questions[session].presence is not presence for session, presence in presences.items()
        ):
            self._changed = True
            self._questions = {
                session: questions[session]
                if session in questions and questions[session].presence == presence
                else _Question(presence)
                for session, presence in presences.items()
            }
        if channel.relay is not None and channel.relay.is_complete:
            for session in [each for each in self.heads if each not in presences]:
                del self.heads[session]
            if presences:  # one that has nothing for us lists no session
                self.denied = {s: found for s, found in self.denied.items() if s in presences}

    def _take_reply(self, data: bytes) -> None:
        try:
            frame = Frame(data)
            if frame.kind == Kind.DENIED:
                self._on_denied(frame)
                return
            if frame.kind != Kind.HEADS:
                return
            presence = self.channel.presences().get(frame.session)
            if presence is None:
                raise FrameError("session")
            body = self._pages.take(frame.session, control.read_body(frame, control.Heads))
        except (FrameError, P2PError):
            self.channel.invalid += 1
            return
        self._heard()
        if body is None:
            return  # more of it follows
        self._settle_denied(frame.session)
        heads = heads_of(presence, body)
        if self.heads.get(frame.session) == heads:
            return
        self._changed = True
        if self.is_relay:
            self.heads[frame.session] = heads
        else:
            self.heads = {frame.session: heads}  # another session here has ended
        question = self._questions.get(frame.session)
        if question is not None:
            question.wait_ns = 0
            question.due_ns = min(question.due_ns, self._now_ns + self._floor_ns)

    def _on_denied(self, frame: Frame) -> None:
        """Note what is denied of an answer that follows, or by a relay of all that it has."""
        denied = control.read_body(frame, control.Denied)
        relay, presence = self.channel.relay, self.channel.presences().get(frame.session)
        is_relay = relay is not None and relay.relay == frame.session
        if presence is None and not is_relay:
            raise FrameError("session")
        name = f"the relay {frame.session:016x}" if presence is None else presence.name
        self._heard()
        self._denied[frame.session] = {
            each: denied_by(name, each, "" if at else denied.why)  # it is of the first one
            for at, each in enumerate(denied.patterns)
        }
        if is_relay:
            self._settle_denied(frame.session)

    def _settle_denied(self, session: int) -> None:
        """Take what was denied before an answer; what is not denied any more is forgotten."""
        known, found = self.denied.get(session, {}), self._denied.pop(session, {})
        if known.keys() == found.keys():
            return
        self._changed = True
        for pattern in found.keys() - known.keys():
            _log.warning("%s: %s", self.channel.endpoint.address, found[pattern])
        others = {one: each for one, each in self.denied.items() if one != session}
        self.denied = {**others, session: found} if found else others

    def _take_heartbeat(self, frame: Frame) -> None:
        if frame.kind != Kind.HEARTBEAT:
            return
        relay = self.channel.relay
        if relay is not None and frame.session == relay.relay:
            self._heard()
            if frame.sequence != self._relay_version:
                self._relay_version = frame.sequence
                self._list_due_ns = self._now_ns + _LIST_AGAIN_NS
                relay.begin()
            return
        heads, question = self.heads.get(frame.session), self._questions.get(frame.session)
        if heads is None or question is None or not frame.topic:
            return
        beat = control.read_body(frame, control.Heartbeat)
        self._heard()
        known = heads.streams.get(frame.topic)
        if known is None or known.next <= frame.sequence:
            head = StreamHead(beat.earliest, frame.sequence)
            if head != known:
                self._changed = True
                question.wait_ns = 0
                heads = replace(heads, streams={**heads.streams, frame.topic: head})
                self.heads[frame.session] = heads
        due_ns = self._now_ns + self._floor_ns
        if question.wait_ns == 0:
            question.due_ns = min(question.due_ns, due_ns)
        if len(heads.streams) == 1:
            # Nothing that is asked for could be newer than this.
            question.due_ns = max(question.due_ns, due_ns)

    def _heard(self) -> None:
        self._last_heard_ns = self._now_ns
        self.reachable = True


class HeadsWatch(ClosesAtOnce):
    """Keeps the heads of the publishers at several endpoints, without receiving their messages.

    Where a relay is at an endpoint, all sessions that it serves are followed. Its methods may be
    called from any thread, and none of them waits for a publisher but `wait_until_asked`.

    Args:
        endpoints: of publishers and relays.
        topics: which are of interest: those are asked for, and heartbeats of them come as well.
            Prefixes that end in `*` may be among them: without heartbeats, and `denied` says where
            not all of their topics may be had. Default: all of a publisher's topics, without their
            heartbeats; one that may not be had is left out, which `denied` does not say.
        refresh: how old the heads of a busy publisher may be, in seconds. Default 0.05. With more
            than 50 sessions they get older, 1 ms each.
        security: this peer's key, and whom it knows: connections are encrypted, and both ends
            known to each other; over tcp and ipc. Default None: open.
            A connection that is refused is tried again; `unanswered` says why.

    Raises:
        ConfigError: an argument is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.

    Attributes:
        version: counts how often anything changed of what its methods return.

    """

    @checked(refresh=0.001)
    def __init__(
        self,
        endpoints: Iterable[str],
        *,
        topics: Iterable[str] | None = None,
        refresh: float = 0.05,
        security: "Security | None" = None,
    ) -> None:
        self._security = security
        self._topics = None if topics is None else check_patterns(sorted(topics))
        self._refresh_ns = to_ns(refresh)
        self._wanted = self._checked(endpoints)
        self._peers: dict[str, HeadsPeer] = {}
        self._changed = Notifier()
        self._versions = count(1)  # two threads count, and none of their changes may be missed
        self.version = 0
        self._closed, self._why = False, "it is closed"
        self._worker = Worker("p2pmsg-heads", "the heads watch", self._turn, at_end=self._end)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._worker, selectors.EVENT_READ)
        self._sockets: dict[str, list[tuple[PeerSocket, int]]] = {}
        close_in_children(self)
        self._worker.start()

    def heads(self) -> dict[str, Heads | None]:
        """Return the last known heads by endpoint.

        None where nobody has answered yet, and at a relay that serves none or several sessions:
        `sessions` has those.
        """
        return {
            endpoint: found[0] if found is not None and len(found) == 1 else None
            for endpoint, found in self.sessions().items()
        }

    def sessions(self) -> dict[str, tuple[Heads, ...] | None]:
        """Return the last known heads of all sessions at each endpoint; of a publisher one.

        None where nobody has answered yet. What has not changed is the same object as before.

        Raises:
            ClosedError: the watch is closed.

        """
        if self._closed:
            raise ClosedError("the heads watch", self._why)
        peers = self._peers
        return {
            endpoint: tuple(peers[endpoint].heads.values())
            if endpoint in peers and (peers[endpoint].heads or peers[endpoint].has_answered)
            else None
            for endpoint in self._wanted
        }

    def is_reachable(self, endpoint: str) -> bool:
        """Whether the publisher at `endpoint` has answered lately."""
        peer = self._peers.get(endpoint)
        return peer is not None and peer.reachable

    def is_relay(self, endpoint: str) -> bool:
        """Whether there is a relay at `endpoint`, as far as is known."""
        peer = self._peers.get(endpoint)
        return peer is not None and peer.is_relay

    def unanswered(self) -> dict[str, str]:
        """Return who is found at endpoints from which no welcome has come for 5 s, in words.

        By endpoint; each is logged once as a warning as well.
        """
        peers = self._peers.copy()
        return {each: peer.channel.found for each, peer in peers.items() if peer.channel.found}

    def denied(self) -> dict[str, list[AccessDeniedError]]:
        """Return what is denied now, by endpoint; each is logged once as a warning as well."""
        peers = self._peers.copy()
        found = {
            endpoint: [error for each in peer.denied.values() for error in each.values()]
            for endpoint, peer in peers.items()
        }
        return {endpoint: errors for endpoint, errors in found.items() if errors}

    def wait_until_asked(self, timeout: float) -> bool:
        """Wait until every publisher has answered once, at most `timeout` seconds.

        Raises:
            ConfigError: `timeout` is no number of seconds.
            AccessDeniedError: one gives us no right to a topic that was asked for, or to any;
                `denied` has all. It goes on.

        """
        timeout = time_to_wait("timeout", timeout)
        is_there = self._changed.wait_for(lambda: self._closed or self._all_answered(), timeout)
        for errors in self.denied().values():
            first = errors[0]
            raise AccessDeniedError(first.verb, first.topic, first.reason)
        return is_there

    def set_endpoints(self, endpoints: Iterable[str]) -> None:
        """Follow these from now on; those that stay are kept connected."""
        self._wanted = self._checked(endpoints)
        self.version = next(self._versions)
        self._worker.wake()

    def close(self) -> None:
        """End the thread and close the sockets; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._worker.stop()

    def __repr__(self) -> str:
        return shown(self, lambda: ", ".join(self._wanted))

    def _forget(self) -> None:
        self._closed, self._why = True, INHERITED
        self._changed = Notifier()

    def _checked(self, endpoints: Iterable[str]) -> tuple[str, ...]:
        wanted = tuple(dict.fromkeys(str(endpoint) for endpoint in endpoints))
        for endpoint in wanted:
            (at,) = check_endpoints(endpoint)
            if self._security is not None and at.is_datagram:
                raise ConfigError("endpoint", "tcp:// or ipc:// with security", endpoint)
            curve_client(self._security, at)
        return wanted

    def _all_answered(self) -> bool:
        peers = self._peers
        return all(
            each in peers and (peers[each].has_answered or peers[each].denied)
            for each in self._wanted
        )

    def _turn(self) -> None:
        try:
            self._renew_peers()
            self._step()
        except transports.ClosedError:
            raise
        except (transports.TransportError, SecurityError) as error:  # no descriptor, mostly
            if not self._closed:
                _log.warning("it is tried again: %s", error)
                time.sleep(_AGAIN_S)

    def _end(self) -> None:
        for peer in self._peers.values():
            peer.channel.close()
        self._selector.close()
        self._changed.notify()

    def _renew_peers(self) -> None:
        if self._wanted == tuple(self._peers):
            return
        known = self._peers
        wanted = self._wanted
        peers = {
            each: known[each] if each in known else HeadsPeer(each, self._topics, self._security)
            for each in wanted
        }
        for endpoint, peer in known.items():
            if endpoint not in peers:
                self._follow_sockets(endpoint, [])
                peer.channel.close()
        for endpoint, peer in peers.items():
            self._follow_sockets(endpoint, peer.channel.sockets)
        self._peers = peers

    def _step(self) -> None:
        """Ask those who are due, wait, and take what has come."""
        now_ns = time.monotonic_ns()
        peers = self._peers
        session_count = sum(peer.session_count for peer in peers.values())
        floor_ns = max(self._refresh_ns, session_count * 1000 * MS // _ASKS_A_SECOND)
        quiet_ns = session_count * 1000 * MS // _QUIET_ASKS_A_SECOND
        ceiling_ns = max(floor_ns, min(_CEILING_NS, quiet_ns))
        readable, changed = set(), False
        due_ns = now_ns + (_CEILING_NS if self._security is None else EVERY_NS)
        for endpoint, peer in peers.items():
            peer.channel.check_answer(now_ns)
            peer.channel.check_keys(now_ns)
            if now_ns >= peer.due_ns:
                was_reachable = peer.reachable
                peer.ask(now_ns, floor_ns, ceiling_ns)
                changed |= peer.reachable != was_reachable
                # Sending takes note of what has come meanwhile, and the descriptor is silent then.
                readable.add(endpoint)
            elif peer.has_more:
                readable.add(endpoint)
            due_ns = min(due_ns, peer.due_ns)
        wait_ns = 0 if readable else max(MS, due_ns - time.monotonic_ns())
        for key, _ in self._selector.select(wait_ns / 1e9):
            if key.data is None:
                self._worker.clear()
            else:
                readable.add(key.data)
        now_ns = time.monotonic_ns()
        for endpoint in readable:
            if endpoint in peers:
                changed |= peers[endpoint].receive(now_ns, floor_ns)
                self._follow_sockets(endpoint, peers[endpoint].channel.sockets)
        if changed:
            self.version = next(self._versions)
            self._changed.notify()

    def _follow_sockets(self, endpoint: str, sockets: list[PeerSocket]) -> None:
        """Wait for the sockets that a peer has now; it makes others when it meets somebody."""
        known = self._sockets.get(endpoint, [])
        if len(known) == len(sockets) and all(
            socket is each for socket, (each, _) in zip(sockets, known, strict=True)
        ):
            return
        for _, descriptor in known:
            self._selector.unregister(descriptor)
        # With the socket itself, since the number of a closed one may come again.
        self._sockets[endpoint] = [(socket, socket.fileno()) for socket in sockets]
        for _, descriptor in self._sockets[endpoint]:
            self._selector.register(descriptor, selectors.EVENT_READ, endpoint)
