"""A TCP proxy that misbehaves on request: cuts, partitions, stalls, latency, slow, lost frames.

It stands between real sockets, where the simulator of this package stands between cores:

    with TcpProxy(publisher.endpoint, frame_loss=0.05, seed=7) as proxy:
        subscriber = Subscriber(proxy.endpoint, ...)
        proxy.cut()
"""

import math
import random
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Self

from p2pmsg.toolkit import Endpoint, checked, parse_endpoint

BUFFER_BYTES: Final = 4 * 1024 * 1024
"""How much each direction of a connection holds back at most; then its sender has to wait."""

_CHUNKS_PER_S: Final = 100
"""A slow connection passes on so many pieces a second …"""
_HELD_S: Final = 0.2
"""… and holds back what comes in so long, as a modem does."""
_PREFIX_BYTES: Final = 512
_CHUNK_BYTES: Final = 64 * 1024
_MORE, _LONG, _COMMAND = 1, 2, 4
_Address = tuple[socket.AddressFamily, tuple[str, int]]
_Change = Callable[[bytes], bytes]


class TcpProxy:
    """A TCP proxy on one thread of its own; a context manager.

    Its methods may be called from any thread, and take effect before they return.

    Attributes:
        endpoint: where clients connect to, such as `"tcp://127.0.0.1:40001"`.
        delay, frame_loss, bytes_per_s: as given; they may be set at any time, for bytes that come
            later.
        connections: how many connections were taken up; those that were refused do not count.
        cuts: how many connections were reset by `cut` and `cut_every`.
        bytes_up, bytes_down: how many bytes were passed on to the server, and to clients.
        frames_passed, frames_dropped: how many message frames from server to client were passed
            on, and dropped; counted only where `frame_loss` or `drop` was given.

    """

    @checked(port=(0, 65535), frame_loss=(0, 1))
    def __init__(
        self,
        target: str | tuple[str, int],
        *,
        listen: str = "127.0.0.1",
        port: int = 0,
        seed: int | None = None,
        delay: float = 0.0,
        frame_loss: float | None = None,
        loss_after_frames: int = 0,
        drop: Callable[[bytes], bool] | None = None,
        bytes_per_s: float = 0.0,
    ) -> None:
        """Listen, and start the thread.

        Raises `EndpointError` where the target is not well-formed or not of TCP, `OSError` where
        its host is unknown or the address to listen on is taken, `ValueError` where a number is
        out of range.

        Args:
            target: the server: `"tcp://HOST:PORT"` or `(host, port)`.
            listen: the IPv4 address to listen on. Default: the loopback one.
            port: the port to listen on. Default 0: the system picks one.
            seed: makes losses repeatable: the n-th connection loses the same frames of the same
                sequence of frames. Default None: each run differs.
            delay: latency of every chunk of bytes, each way, in seconds; order is kept. Default 0.
            frame_loss: the probability with which a message from server to client is dropped. The
                server has to speak ZMTP 3, ZeroMQ's protocol, of which commands (handshake,
                heartbeats) are never dropped. Default None: 1 where `drop` is given, else 0.
            loss_after_frames: how many message frames of each connection are passed on first, so
                that a welcome gets through. Default 0.
            drop: gets the first 512 bytes of each message; only where it returns True can that one
                be dropped. Default None: any. What it raises stops the proxy; `close` raises it.
            bytes_per_s: how many bytes a second each connection passes on, each way. Default 0: as
                many as come.

        """
        self.delay, self.bytes_per_s = delay, bytes_per_s
        self.frame_loss = frame_loss if frame_loss is not None else float(drop is not None)
        self.connections = self.cuts = self.bytes_up = self.bytes_down = 0
        self.frames_passed = self.frames_dropped = 0
        self.loss_after_frames, self.drop = loss_after_frames, drop
        self._filters = frame_loss is not None or drop is not None
        self._seed = random.randrange(2**32) if seed is None else seed
        self._refusing = self._stalled = self._stopping = False
        self._cut_every_s = self._cut_at = 0.0
        self._address = _resolve(target)
        self._open: set[_Connection] = set()
        self._calls: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._failure: BaseException | None = None
        self._listener = socket.create_server((listen, port), backlog=128)
        self._listener.setblocking(False)
        self.endpoint = str(Endpoint("tcp", *self._listener.getsockname()))
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Reset all connections, both ends (RST); new ones may come at once."""
        self._call(self._cut_all)

    def cut_every(self, seconds: float) -> None:
        """Do as `cut` does every so often; `ValueError` if `seconds` is not above 0."""
        if seconds <= 0:
            raise ValueError(f"seconds is above 0, not {seconds}")
        self._call(lambda: self._set_cutting(seconds))

    def stop_cutting(self) -> None:
        """End what `cut_every` began."""
        self._call(lambda: self._set_cutting(0.0))

    def refuse(self, refusing: bool = True) -> None:
        """While `refusing`, reset new connections at once; with `cut` it makes a partition."""
        self._call(lambda: setattr(self, "_refusing", refusing))

    def stall(self) -> None:
        """Let no byte through, either way, until `resume`; the connections stay."""
        self._call(lambda: setattr(self, "_stalled", True))

    def resume(self) -> None:
        """End what `stall` began; nothing is lost."""
        self._call(lambda: setattr(self, "_stalled", False))

    def close(self) -> None:
        """Reset all connections and end the thread; raise what `drop` raised, if it did."""
        self._call(lambda: setattr(self, "_stopping", True))
        self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _call(self, function: Callable[[], None]) -> None:
        """Run `function` in the proxy's thread, between two rounds, and wait for it."""
        done = threading.Event()
        self._calls.append((function, done))
        try:
            self._wake_sender.send(b"!")
        except OSError:
            return  # The thread ended and closed its end: there is nothing left to act upon.
        if threading.current_thread() is not self._thread:
            done.wait()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._round()
        except BaseException as failure:
            self._failure = failure
        finally:
            for connection in list(self._open):
                self._close(connection)
            self._selector.close()
            for used in (self._listener, self._wake_receiver, self._wake_sender):
                used.close()
            while self._calls:
                self._calls.popleft()[1].set()

    def _round(self) -> None:
        now = time.monotonic()
        if self._cut_every_s and now >= self._cut_at:
            self._cut_all()
            self._cut_at = now + self._cut_every_s
        due = [self._cut_at] if self._cut_every_s else []
        for connection in self._open:
            for used, events in connection.interests(now, self._stalled):
                self._watch(used, events, connection)
            if not self._stalled:
                pipes = (connection.up, connection.down)
                due += [pipe.due for pipe in pipes if now < pipe.due < math.inf]
        timeout = max(0.0, min(due) - now) if due else None
        for key, events in self._selector.select(timeout):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_receiver:
                self._wake_receiver.recv(_CHUNK_BYTES)
            elif key.data in self._open:
                self._serve(key.data, key.fileobj, events)
        while self._calls:
            function, done = self._calls.popleft()
            function()
            done.set()

    def _watch(self, used: socket.socket, events: int, connection: "_Connection") -> None:
        key = self._selector.get_map().get(used)
        if key is not None and key.events == events:
            return
        if key is not None:
            self._selector.unregister(used)
        if events:
            self._selector.register(used, events, connection)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # The client went away before it was accepted.
        if self._refusing:
            _reset(client)
            return
        self.connections += 1
        change = bytes if not self._filters else _FrameFilter(self, self._seed).feed
        self._open.add(_Connection(client, self._address, change))

    def _serve(self, connection: "_Connection", used: object, events: int) -> None:
        try:
            if used is connection.server:
                connection.connecting = False
            if events & selectors.EVENT_WRITE:
                if used is connection.server:
                    self.bytes_up += connection.up.write()
                else:
                    self.bytes_down += connection.down.write()
            if events & selectors.EVENT_READ:
                pipe = connection.up if used is connection.client else connection.down
                pipe.read(self.delay, self.bytes_per_s)
        except BlockingIOError:
            return
        except OSError:
            # One end was reset, or the server cannot be reached: so it goes with the other end.
            return self._close(connection)
        if connection.up.ended and connection.down.ended:
            self._close(connection, reset=False)

    def _close(self, connection: "_Connection", reset: bool = True) -> None:
        self._open.discard(connection)
        for used in (connection.client, connection.server):
            self._watch(used, 0, connection)
            if reset:
                _reset(used)
            used.close()

    def _cut_all(self) -> None:
        for connection in list(self._open):
            self.cuts += 1
            self._close(connection)

    def _set_cutting(self, seconds: float) -> None:
        self._cut_every_s, self._cut_at = seconds, time.monotonic() + seconds


class _Connection:
    """A client's connection and the one to the server that belongs to it."""

    def __init__(self, client: socket.socket, address: _Address, change: _Change) -> None:
        self.client = client
        self.server = socket.socket(address[0], socket.SOCK_STREAM)
        for used in (client, self.server):
            used.setblocking(False)
            used.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connecting = True
        # What comes of it is met when the socket is read or written.
        self.server.connect_ex(address[1])
        self.up = _Pipe(self.client, self.server, bytes)
        self.down = _Pipe(self.server, self.client, change)

    def interests(self, now: float, stalled: bool) -> list[tuple[socket.socket, int]]:
        """Return which events each socket waits for."""
        if self.connecting:
            return [(self.client, 0), (self.server, selectors.EVENT_WRITE)]
        if stalled:
            return [(self.client, 0), (self.server, 0)]
        read, write = selectors.EVENT_READ, selectors.EVENT_WRITE
        return [
            (self.client, read * self.up.has_space | write * (self.down.due <= now)),
            (self.server, read * self.down.has_space | write * (self.up.due <= now)),
        ]


class _Pipe:
    """One direction of a connection: chunks of bytes, each with the time when it is due."""

    def __init__(self, source: socket.socket, sink: socket.socket, change: _Change) -> None:
        self.source, self.sink, self.change = source, sink, change
        self.chunks: deque[tuple[float, bytes]] = deque()
        self.held_bytes = 0
        self.held_max = BUFFER_BYTES
        self.last_due = 0.0
        self.source_ended = self.ended = False

    @property
    def has_space(self) -> bool:
        return not self.source_ended and self.held_bytes < self.held_max

    @property
    def due(self) -> float:
        return self.chunks[0][0] if self.chunks else math.inf

    def read(self, delay_s: float, bytes_per_s: float) -> None:
        size, self.held_max, takes_s = _CHUNK_BYTES, BUFFER_BYTES, 0.0
        if bytes_per_s:
            size = min(size, max(1, int(bytes_per_s / _CHUNKS_PER_S)))
            self.held_max = min(BUFFER_BYTES, max(1, int(bytes_per_s * _HELD_S)))
        chunk = self.source.recv(size)
        self.source_ended = not chunk
        chunk = self.change(chunk)
        if chunk or self.source_ended:
            if bytes_per_s:
                takes_s = len(chunk) / bytes_per_s
            # Never before an earlier one, where the delay was lowered. An empty one is the end.
            self.last_due = max(time.monotonic() + delay_s, self.last_due) + takes_s
            self.chunks.append((self.last_due, chunk))
            self.held_bytes += len(chunk)

    def write(self) -> int:
        """Write the first chunk, if there is one, as far as it goes; return how many bytes went."""
        if not self.chunks:
            return 0
        due, chunk = self.chunks[0]
        sent = self.sink.send(chunk) if chunk else 0
        self.chunks[0] = (due, chunk[sent:])
        if sent == len(chunk):
            self.chunks.popleft()
        if not chunk:
            self.ended = True
            self.sink.shutdown(socket.SHUT_WR)
        self.held_bytes -= sent
        return sent


class _FrameFilter:
    """Takes the bytes of a ZMTP 3 peer and gives them back without the frames that are lost."""

    def __init__(self, proxy: TcpProxy, seed: int) -> None:
        self._proxy = proxy
        # One generator a connection, so that the timing of others does not change its losses.
        self._chance = random.Random(f"{seed}/{proxy.connections}")
        self._spare_frames = proxy.loss_after_frames
        self._held = b""
        # How many bytes of what is under way are still to come; first, of the greeting.
        self._left_bytes = 64
        self._passing = self._message_passes = True
        self._inside_message = False

    def feed(self, data: bytes) -> bytes:
        """Return what of `data`, and of what was held before, is passed on."""
        data = self._held + data
        out: list[bytes] = []
        position = 0
        while position < len(data):
            if self._left_bytes == 0 and not self._begin_frame(data, position):
                break
            taken = data[position : position + self._left_bytes]
            if self._passing:
                out.append(taken)
            position += len(taken)
            self._left_bytes -= len(taken)
        self._held = data[position:]
        return b"".join(out)

    def _begin_frame(self, data: bytes, position: int) -> bool:
        """Decide on the frame at `position`; False: more bytes are needed for that."""
        flags = data[position]
        header_bytes = 9 if flags & _LONG else 2
        payload = position + header_bytes
        payload_bytes = int.from_bytes(data[position + 1 : payload], "big")
        shown = payload + min(payload_bytes, _PREFIX_BYTES)
        if len(data) < payload or len(data) < shown:
            return False
        self._left_bytes = header_bytes + payload_bytes
        if flags & _COMMAND:
            self._passing = True
            return True
        if not self._inside_message:
            self._message_passes = not self._is_lost(data[payload:shown])
        self._inside_message = bool(flags & _MORE)
        self._passing = self._message_passes
        self._proxy.frames_passed += self._passing
        self._proxy.frames_dropped += not self._passing
        return True

    def _is_lost(self, prefix: bytes) -> bool:
        if self._spare_frames > 0:
            self._spare_frames -= 1
            return False
        if self._proxy.drop is not None and not self._proxy.drop(prefix):
            return False
        return self._chance.random() < self._proxy.frame_loss


def _resolve(target: str | tuple[str, int]) -> _Address:
    if isinstance(target, str):
        # with_port refuses what is not tcp.
        endpoint = parse_endpoint(target).require_connectable()
        target = (endpoint.host, endpoint.with_port(endpoint.port).port)
    family, _, _, _, address = socket.getaddrinfo(*target, type=socket.SOCK_STREAM)[0]
    return family, (str(address[0]), int(address[1]))


def _reset(used: socket.socket) -> None:
    """Close with RST; bytes that are under way in the kernel are thrown away."""
    used.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    used.close()
