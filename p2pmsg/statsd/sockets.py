"""A collector's sockets: one `poll` over all, and the reading of those that are ready."""

import os
import select
import socket
import time
from collections.abc import Callable
from functools import partial

from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.listen import ListenEndpoint, kernel_drops, open_socket
from p2pmsg.statsd.parser import LINE_BYTES_MAX
from p2pmsg.statsd.receive import BulkReader, StreamBuffer
from p2pmsg.toolkit import Section, Trouble
from p2pmsg.toolkit import own_log as _log

CONNECTIONS_MAX = 1000
RECEIVE_BYTES = 8 * 2**20
"""Of a socket's receive buffer: some 7,000 datagrams of a kilobyte, as the kernel counts."""
_READS_MAX = 8
"""Calls of a reader a turn: 512 datagrams, some half a millisecond."""
_STREAM_BYTES = 64 * 1024
_ROOMY_BYTES = 2 * 2**20
_GATHER_S, _GATHER_TIGHT_S = 0.001, 0.0001
"""Pause between two reads that found little, so that datagrams come in bulk. A roomy buffer holds
what comes in a millisecond."""

_FRAMED = {"tcp": False, "unix": None, "unixstream": True}
"""See `StreamBuffer`."""
Handler = Callable[[], bool]


class Sockets:
    """Reads datagrams and connections into an aggregator.

    Handlers read one ready socket each; they return whether more is waiting.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self._poll = select.poll()
        self._handlers: dict[int, Handler] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._streams: dict[int, StreamBuffer] = {}
        self._udp: list[socket.socket] = []
        self._paths: list[tuple[str, int]] = []
        self.last_message_s = time.time()
        self._gather_s = _GATHER_S
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._poll.register(self._wake_read, select.POLLIN)
        self._not_accepted = Trouble("statsd: accepting connections", "they wait meanwhile")
        self._closed = False
        self.counts = aggregator.counts
        self.endpoints: list[ListenEndpoint] = []

    def listen(self, place: ListenEndpoint, *, reuse_port: bool) -> None:
        """Bind a socket and read it from now on."""
        made, bound = open_socket(place, receive_buffer_bytes=RECEIVE_BYTES, reuse_port=reuse_port)
        if place.path:
            self._paths.append((place.path, os.stat(place.path).st_ino))
        self.endpoints.append(bound)
        if place.is_datagram:
            granted = made.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            if place.scheme == "unixgram":
                self._gather_s = 0.0  # its queue holds 10 datagrams
            elif granted < _ROOMY_BYTES:
                self._gather_s = min(self._gather_s, _GATHER_TIGHT_S)
            reader = BulkReader(made)
            self._add(made, lambda: self._read_datagrams(reader))
            if place.scheme == "udp":
                self._udp.append(made)
        else:
            serve = partial(self._serve_stream, _FRAMED[place.scheme])
            self._add(made, lambda: self._accept(made, serve))

    def _add(self, made: socket.socket, handler: Handler) -> None:
        self._sockets[made.fileno()] = made
        self._handlers[made.fileno()] = handler
        self._poll.register(made, select.POLLIN)

    def turn(self, wait_s: float, section: Section) -> bool:
        """Wait until something arrives, and read it; return whether anything was read."""
        events = self._poll.poll(wait_s * 1e3)
        if not events:
            return False
        full = section.run(self._read, events)
        pause_s = min(self._gather_s, wait_s)
        if pause_s > 0 and not full:
            time.sleep(pause_s)
        return True

    def _read(self, events: list[tuple[int, int]]) -> bool:
        """Read what is ready; return whether there is more."""
        full = False
        for fd, _ in events:
            handler = self._handlers.get(fd)
            if handler is not None:
                full = self._call(handler) or full
            elif fd == self._wake_read:
                os.read(fd, 4096)
        return full

    def _call(self, handler: Handler) -> bool:
        """Run a handler. No input may end the collector, so unexpected exceptions are counted."""
        try:
            return handler()
        except Exception:
            self.counts["read_failures"] += 1
            if self.counts["read_failures"] == 1:
                _log.exception("statsd: reading failed")
            return False

    def wake(self) -> None:
        """End the wait of `turn` in another thread."""
        if self._closed:  # another file may have the descriptor by now
            return
        try:
            os.write(self._wake_write, b"\0")
        except OSError:
            pass  # it is awake, or gone

    def _read_datagrams(self, reader: BulkReader) -> bool:
        for _ in range(_READS_MAX):
            data, count, full = reader.read()
            if count:
                self._aggregator.feed(data, count)
                self.last_message_s = time.time()
            if not full:
                return False
        return True

    def count_drops(self) -> None:
        """Look up how many datagrams the kernel has dropped."""
        if self._udp and not self._closed:
            self.counts["kernel_drops"] = kernel_drops(self._udp)

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> bool:
        try:
            made, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError as error:
            self._not_accepted.note(str(error.strerror), now_ns=time.monotonic_ns())
            return False
        self._not_accepted.over()
        if self.counts["connections"] >= CONNECTIONS_MAX:
            self.counts["connections_refused"] += 1
            made.close()
            return False
        made.setblocking(False)
        self.counts["connections"] += 1
        serve(made)
        return False

    def _serve_stream(self, framed: bool | None, made: socket.socket) -> None:
        lines = self._streams[made.fileno()] = StreamBuffer(LINE_BYTES_MAX, framed=framed)

        def read() -> bool:
            data = self._receive(made)
            if data:
                before = lines.overlong
                whole = lines.feed(data)
                self.counts["lines_overlong"] += lines.overlong - before
                if whole:
                    self._aggregator.feed(whole)
                    self.last_message_s = time.time()
                if lines.broken:
                    self._drop(made)
            return len(data) == _STREAM_BYTES

        self._add(made, read)

    def _end_stream(self, fd: int, *, whole: bool) -> None:
        """Take the last line of a connection if its sender has ended it, and it was not cut off."""
        lines = self._streams.pop(fd, None)
        if lines is None or not (rest := lines.end()):
            return
        if whole and not lines.framed and self._aggregator.config.dialect.grammar != "etsy":
            self._aggregator.feed(rest)
            self.last_message_s = time.time()
        else:
            self.counts["lines_unfinished"] += 1

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
        self.counts["connections"] -= 1
        made.close()

    def forget(self) -> None:
        """Close this process's copies and nothing else, in a forked child."""
        self._closed = True
        for made in list(self._sockets.values()):
            made.close()

    def close(self) -> None:
        """Close every socket and remove the files of those that have one."""
        if self._closed:
            return
        self.count_drops()
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
