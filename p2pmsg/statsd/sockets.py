"""All sockets of a collector, and the turns in which they are read."""

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.listen import ListenEndpoint, bound_endpoint, kernel_drops, open_socket
from p2pmsg.statsd.management import Management
from p2pmsg.statsd.parser import LINE_BYTES_MAX
from p2pmsg.statsd.receive import (
    DatagramReader,
    EitherBuffer,
    FrameBuffer,
    LineBuffer,
    StreamBuffer,
    make_reader,
)

CONNECTIONS_MAX = 1000
_READS_MAX = 8
"""Calls of a reader a turn: 512 datagrams, some half a millisecond."""
_STREAM_BYTES = 64 * 1024
_ROOMY_BYTES = 2 * 2**20
_GATHER_S, _GATHER_TIGHT_S = 0.001, 0.0001
"""Pause between two reads that found little, so that datagrams come in bulk. A roomy buffer holds
what comes in a millisecond."""
_ANSWER_BYTES_MAX = 16 * 2**20
_FAILURES_LOGGED = 3
_log = logging.getLogger("p2pmsg")

_BUFFERS: dict[str, Callable[[int], StreamBuffer]] = {
    "tcp": LineBuffer, "unix": EitherBuffer, "unixstream": FrameBuffer,
}  # fmt: skip

Handler = Callable[[], bool]


class Inlets:
    """Reads datagrams, streams and the management port into an aggregator."""

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self._poll = select.poll()
        self._handlers: dict[int, Handler] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._answers: dict[int, bytes] = {}
        self._udp: list[socket.socket] = []
        self._paths: list[tuple[str, int]] = []
        self._management: Management | None = None
        self._gather_s = _GATHER_S
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._poll.register(self._wake_read, select.POLLIN)
        self._closed = False
        self.endpoints: list[ListenEndpoint] = []
        self.management_endpoint: ListenEndpoint | None = None
        self.kernel_drops = 0
        self.connections = 0
        self.connections_refused = 0
        self.lines_overlong = 0
        self.lines_unfinished = 0
        self._streams: dict[int, StreamBuffer] = {}
        self.failures = 0
        """Exceptions while reading, which should not be."""

    def listen(self, place: ListenEndpoint, *, buffer_bytes: int, reuse_port: bool) -> None:
        """Bind a socket and read it from now on."""
        made = open_socket(place, receive_buffer_bytes=buffer_bytes, reuse_port=reuse_port)
        self.endpoints.append(bound_endpoint(place, made))
        self._note_path(place)
        if place.is_datagram:
            granted = made.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            if granted < _ROOMY_BYTES:
                self._gather_s = _GATHER_TIGHT_S
            reader = make_reader(made)
            self._add(made, lambda: self._read_datagrams(reader))
            if place.scheme == "udp":
                self._udp.append(made)
        else:
            serve = partial(self._serve_stream, _BUFFERS[place.scheme])
            self._add(made, lambda: self._accept(made, serve))

    def listen_management(self, place: ListenEndpoint, management: Management) -> None:
        """Answer the management port from now on."""
        made = open_socket(place, receive_buffer_bytes=65_536, reuse_port=False)
        self.management_endpoint = bound_endpoint(place, made)
        self._note_path(place)
        self._management = management
        self._add(made, lambda: self._accept(made, self._serve_management))

    def _note_path(self, place: ListenEndpoint) -> None:
        if place.path:
            self._paths.append((place.path, os.stat(place.path).st_ino))

    def _add(self, made: socket.socket, handler: Handler) -> None:
        self._sockets[made.fileno()] = made
        self._handlers[made.fileno()] = handler
        self._poll.register(made, select.POLLIN)

    def turn(self, wait_s: float, lock: threading.Lock) -> bool:
        """Wait for something to arrive, and read it; return whether anything was read."""
        events = self._poll.poll(wait_s * 1e3)
        if not events:
            return False
        full = False
        with lock:
            for fd, _ in events:
                handler = self._handlers.get(fd)
                if handler is not None:
                    full = self._call(handler) or full
                elif fd == self._wake_read:
                    os.read(fd, 4096)
        if wait_s > 0 and not full:
            time.sleep(min(self._gather_s, wait_s))
        return True

    def _call(self, handler: Handler) -> bool:
        """Nothing that arrives may end the collector: what nobody thought of is counted too."""
        try:
            return handler()
        except Exception:
            self.failures += 1
            if self.failures <= _FAILURES_LOGGED:
                _log.exception("statsd: reading failed")
            return False

    def wake(self) -> None:
        """End the wait of a turn in another thread."""
        try:
            os.write(self._wake_write, b"\0")
        except OSError:
            pass  # it is awake, or gone

    # ------------------------------------------------------------------------------- datagrams

    def _read_datagrams(self, reader: DatagramReader) -> bool:
        full = True
        for _ in range(_READS_MAX):
            data, count, full = reader.read()
            if count:
                self._aggregator.feed(data, count)
                self._note_message()
            if not full:
                break
        return full

    def _note_message(self) -> None:
        if self._management is not None:
            self._management.last_message_s = time.time()

    def note_drops(self) -> None:
        """Look up what the kernel dropped."""
        if self._udp and not self._closed:
            self.kernel_drops = kernel_drops(self._udp)

    # --------------------------------------------------------------------------------- streams

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> bool:
        try:
            made, _ = listener.accept()
        except OSError:
            return False
        if self.connections >= CONNECTIONS_MAX:
            self.connections_refused += 1
            made.close()
            return False
        made.setblocking(False)
        self.connections += 1
        serve(made)
        return False

    def _serve_stream(
        self, make_buffer: Callable[[int], StreamBuffer], made: socket.socket
    ) -> None:
        lines = self._streams[made.fileno()] = make_buffer(LINE_BYTES_MAX)

        def read() -> bool:
            data = self._receive(made)
            if data:
                before = lines.overlong
                whole = lines.feed(data)
                self.lines_overlong += lines.overlong - before
                if whole:
                    self._aggregator.feed(whole)
                    self._note_message()
                if lines.broken:
                    self._drop(made)
            return len(data) == _STREAM_BYTES

        self._add(made, read)

    def _end_stream(self, fd: int, *, whole: bool) -> None:
        """Take the last line of a connection, where its sender has ended it and not lost it."""
        lines = self._streams.pop(fd, None)
        rest = b"" if lines is None else lines.end()
        framed = isinstance(lines, FrameBuffer) or getattr(lines, "is_framed", False)
        if not rest:
            return
        if whole and not framed and self._aggregator.config.dialect.last_line == "take":
            self._aggregator.feed(rest)
            self._note_message()
        else:
            self.lines_unfinished += 1

    def _serve_management(self, made: socket.socket) -> None:
        def read() -> bool:
            fd = made.fileno()
            if self._answers.get(fd):
                return self._write(made)
            data = self._receive(made)
            assert self._management is not None
            if data:
                answer = self._management.answer(data, time.time())
                if answer is None:
                    self._drop(made)
                else:
                    self._answers[fd] = answer.encode()[:_ANSWER_BYTES_MAX]
                    self._write(made)
            return False

        self._add(made, read)

    def _write(self, made: socket.socket) -> bool:
        """Send what there is to answer; the next command is read when all of it is gone."""
        fd = made.fileno()
        try:
            sent = made.send(self._answers[fd])
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(made)
            return False
        self._answers[fd] = self._answers[fd][sent:]
        self._poll.modify(made, select.POLLOUT if self._answers[fd] else select.POLLIN)
        return False

    def _receive(self, made: socket.socket) -> bytes:
        """Return what has arrived; a connection that has ended is dropped."""
        try:
            data = made.recv(_STREAM_BYTES)
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError:
            self._drop(made)
            return b""
        if not data:
            self._drop(made, whole=True)
        return data

    def _drop(self, made: socket.socket, *, whole: bool = False) -> None:
        fd = made.fileno()
        self._end_stream(fd, whole=whole)
        self._poll.unregister(fd)
        del self._handlers[fd], self._sockets[fd]
        self._answers.pop(fd, None)
        self.connections -= 1
        made.close()

    def close(self) -> None:
        """Close every socket and remove what was left in the file system."""
        if self._closed:
            return
        self.note_drops()
        self._closed = True
        for fd in list(self._streams):
            self._end_stream(fd, whole=False)
        for made in self._sockets.values():
            made.close()
        for path, inode in self._paths:
            try:
                if os.stat(path).st_ino == inode:  # not one that another collector has made since
                    os.unlink(path)
            except OSError:
                pass
        os.close(self._wake_read)
        os.close(self._wake_write)
