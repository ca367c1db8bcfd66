"""Following the heads of many publishers in one thread.

::

    asked   a publisher that has news: every `refresh`; one that is quiet: ever more rarely
    told    by heartbeats of the followed topics, 10 ms after a stream falls quiet
"""

import logging
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import zmq

from p2pmsg import control, wire
from p2pmsg.config import at_least
from p2pmsg.errors import ClosedError, P2PError
from p2pmsg.publisher_stream import check_topic
from p2pmsg.sync.closing import ClosesAtOnce
from p2pmsg.sync.forks import close_in_children
from p2pmsg.sync.range_channel import MS, RangeChannel
from p2pmsg.sync.reader import Heads, StreamHead, heads_of
from p2pmsg.sync.settings import check_endpoints
from p2pmsg.wire import Frame, FrameError, Kind

__all__ = ["HeadsWatch"]

_ASKS_A_SECOND: Final = 1000
"""All publishers together are asked so often at most: a tenth of a core."""
_QUIET_ASKS_A_SECOND: Final = 200
"""And those who have nothing new: heartbeats tell of them anyway."""
_CEILING_NS: Final = 1000 * MS
_SILENT_NS: Final = 2000 * MS
"""A publisher that was silent for so long is no longer reachable, and is connected to anew."""
_FRAMES_MAX: Final = 1000
_log: Final = logging.getLogger("p2pmsg")


class HeadsWatch(ClosesAtOnce):
    """Keeps the heads of the publishers at several endpoints, without receiving their messages.

    Its methods may be called from any thread, and none of them waits for a publisher but
    `wait_until_asked`.

    Args:
        endpoints: of the publishers.
        topics: which are of interest: those are asked for, and heartbeats of them come as well.
            Default: all of a publisher's topics, without their heartbeats.
        refresh: how old the heads of a busy publisher may be, in seconds. Default 0.05. With more
            than 50 endpoints they get older, 1 ms each.

    Raises:
        ConfigError: an argument is out of its limits; `EndpointError` for the endpoints.

    """

    def __init__(
        self,
        endpoints: Iterable[str],
        *,
        topics: Iterable[str] | None = None,
        refresh: float = 0.05,
    ) -> None:
        at_least("refresh", refresh, 0.001)
        self._topics = None if topics is None else sorted(set(topics))
        for topic in self._topics or ():
            check_topic(topic)
        self._refresh_ns = int(refresh * 1e9)
        self._wanted = self._checked(endpoints)
        self._peers: dict[str, _Peer] = {}
        self._news = threading.Condition()
        self._closed = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        close_in_children(self)
        self._thread = threading.Thread(target=self._run, name="p2pmsg-heads", daemon=True)
        self._thread.start()

    def heads(self) -> dict[str, Heads | None]:
        """Return the last known heads by endpoint; None where nobody has answered yet."""
        if self._closed:
            raise ClosedError("the heads watch")
        peers = self._peers
        return {
            endpoint: peers[endpoint].heads if endpoint in peers else None
            for endpoint in self._wanted
        }

    def is_reachable(self, endpoint: str) -> bool:
        """Whether the publisher at `endpoint` has answered lately."""
        peer = self._peers.get(endpoint)
        return peer is not None and peer.reachable

    def wait_until_asked(self, timeout: float) -> bool:
        """Wait until every publisher has answered once, at most `timeout` seconds."""
        with self._news:
            return self._news.wait_for(lambda: self._closed or self._all_answered(), timeout)

    def set_endpoints(self, endpoints: Iterable[str]) -> None:
        """Follow these from now on; those that stay are kept connected."""
        self._wanted = self._checked(endpoints)
        self._wake()

    def close(self) -> None:
        """End the thread and close the sockets; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._wake()
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _forget(self) -> None:
        self._closed = True
        self._news = threading.Condition()

    def _checked(self, endpoints: Iterable[str]) -> tuple[str, ...]:
        wanted = tuple(dict.fromkeys(str(endpoint) for endpoint in endpoints))
        for endpoint in wanted:
            check_endpoints(endpoint)
        return wanted

    def _all_answered(self) -> bool:
        peers = self._peers
        return all(each in peers and peers[each].heads is not None for each in self._wanted)

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass  # it is awake

    def _run(self) -> None:
        try:
            while not self._closed:
                self._renew_peers()
                self._step()
        except Exception:
            if not self._closed:
                _log.exception("the heads of publishers are no longer followed")
        finally:
            for peer in self._peers.values():
                peer.channel.close()
            with self._news:
                self._news.notify_all()

    def _renew_peers(self) -> None:
        if self._wanted == tuple(self._peers):
            return
        known = self._peers
        wanted = self._wanted
        peers = {
            each: known[each] if each in known else _Peer(each, self._topics) for each in wanted
        }
        for endpoint, peer in known.items():
            if endpoint not in peers:
                peer.channel.close()
        self._peers = peers

    def _step(self) -> None:
        """Ask those who are due, wait, and take what has come."""
        now_ns = time.monotonic_ns()
        count = len(self._peers)
        floor_ns = max(self._refresh_ns, count * 1000 * MS // _ASKS_A_SECOND)
        quiet_ns = count * 1000 * MS // _QUIET_ASKS_A_SECOND
        ceiling_ns = max(floor_ns, min(_CEILING_NS, quiet_ns))
        poller = zmq.Poller()
        poller.register(self._wake_read, zmq.POLLIN)
        by_socket: dict[object, _Peer] = {}
        for peer in self._peers.values():
            if now_ns >= peer.due_ns:
                peer.ask(now_ns, floor_ns, ceiling_ns)
            for socket in peer.channel.sockets:
                # The poller names sockets that are not ZeroMQ's by their descriptor.
                by_socket[socket if isinstance(socket, zmq.Socket) else socket.fileno()] = peer
                poller.register(socket, zmq.POLLIN)
        due_ns = min((peer.due_ns for peer in self._peers.values()), default=now_ns + _CEILING_NS)
        wait_ms = max(1, -((time.monotonic_ns() - due_ns) // MS))
        ready = {
            by_socket.get(socket) for socket, _ in poller.poll(min(wait_ms, 1000))
        }
        if None in ready:
            os.read(self._wake_read, 4096)
        now_ns = time.monotonic_ns()
        changed = False
        for readable in ready:
            if readable is not None:
                changed |= readable.receive(now_ns, floor_ns)
        if changed:
            with self._news:
                self._news.notify_all()


class _Peer:
    """One publisher; used by the watch's thread, but for the attributes that it sets in one step.

    Attributes:
        channel: its sockets.
        heads: what is known of it.
        reachable: whether it has answered lately.
        due_ns: when it is to be asked again.

    """

    def __init__(self, endpoint: str, topics: list[str] | None) -> None:
        (at,) = check_endpoints(endpoint)
        self.channel = RangeChannel(at)
        self.heads: Heads | None = None
        self.reachable = False
        self.due_ns = 0
        self._probe = None if topics is None else control.Probe(0, topics, "latest")
        self._request = 0
        self._wait_ns = 0
        self._heard_ns = self._connected_ns = time.monotonic_ns()
        for topic in topics or ():
            kind = bytes((wire.VERSION, Kind.HEARTBEAT))
            self.channel.follow(topic.encode() + b"\0" + wire.MAGIC + kind)
        self.channel.listen()

    def ask(self, now_ns: int, floor_ns: int, ceiling_ns: int) -> None:
        """Ask for the heads, and say when to ask next."""
        self._wait_ns = max(floor_ns, min(ceiling_ns, 2 * self._wait_ns))
        self.due_ns = now_ns + self._wait_ns
        if now_ns - self._heard_ns > _SILENT_NS:
            self.reachable = False
            if now_ns - self._connected_ns > _SILENT_NS:
                self._connected_ns = now_ns
                self.channel.reconnect()
        peer = self.channel.publisher
        if peer is not None:
            self._request += 1
            self.channel.send(
                wire.control_frame(
                    Kind.HEADS_REQUEST, peer.session, self._probe, sequence=self._request
                )
            )

    def receive(self, now_ns: int, floor_ns: int) -> bool:
        """Take what has come; returns whether there is something new."""
        before, session = self.heads, self.channel.publisher
        self.channel.listen(self._take_heartbeat)
        if self.channel.publisher is not session:
            self.due_ns = now_ns  # somebody has come: ask at once
        for _ in range(_FRAMES_MAX):
            data = self.channel.receive()
            if data is None:
                break
            self._take_reply(data)
        if self.heads is before:
            return False
        self._heard_ns = now_ns
        self.reachable = True
        if before is None or self.heads != before:
            self._wait_ns = 0
            self.due_ns = min(self.due_ns, now_ns + floor_ns)
        return True

    def _take_reply(self, data: bytes) -> None:
        peer = self.channel.publisher
        assert peer is not None
        try:
            frame = Frame(data)
            if frame.kind != Kind.HEADS:
                return
            if frame.session != peer.session:
                raise FrameError("session")
            self.heads = heads_of(peer, control.read_body(frame, control.Heads))
        except (FrameError, P2PError):
            self.channel.invalid += 1

    def _take_heartbeat(self, frame: Frame) -> None:
        heads = self.heads
        if frame.kind != Kind.HEARTBEAT or heads is None or frame.session != heads.session:
            return
        beat = control.read_body(frame, control.Heartbeat)
        known = heads.streams.get(frame.topic)
        if known is None or known.next <= frame.sequence:
            head = StreamHead(beat.earliest, frame.sequence)
            self.heads = replace(heads, streams={**heads.streams, frame.topic: head})
