"""A collector's sockets: one `poll` over all, and the reading of those that are ready.

Python has no recvmmsg, but libc has: called through ctypes it reads 64 datagrams a call, and a
datagram of 30 bytes costs 640 ns where `recv` costs 1,120 (kernel included, measured here). UDP GRO
merges nothing that comes from independent senders.
"""

import ctypes
import errno
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.grammar import LINE_BYTES_MAX
from p2pmsg.statsd.listen import ListenEndpoint, kernel_drops, open_socket
from p2pmsg.toolkit import Section, Trouble
from p2pmsg.toolkit import own_log as _log

_SLOTS = 64
_SLOT_BYTES = 65_536
_STRIDE_BYTES = _SLOT_BYTES + 1_088
"""From slot to slot: at a power of two, all slots would compete for the same cache lines."""
_MSG_DONTWAIT = 0x40
_EMPTY = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR)
_LENGTH_BYTES = 4


_HEADER = np.dtype(
    [
        ("name", np.uintp), ("name_length", np.uint32), ("vectors", np.uintp),
        ("vector_count", np.uintp), ("control", np.uintp), ("control_length", np.uintp),
        ("flags", np.intc),
    ],
    align=True,
)  # fmt: skip
_MESSAGE = np.dtype([("header", _HEADER), ("length", np.uint32)], align=True)
"""C's struct mmsghdr."""
try:
    _recvmmsg: Any = ctypes.CDLL(None, use_errno=True).recvmmsg
except (OSError, AttributeError) as missing:
    what = "StatsD lines are read by recvmmsg, which this system does not have"
    raise ImportError(what) from missing
_recvmmsg.argtypes = (
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p,
)  # fmt: skip
_recvmmsg.restype = ctypes.c_int


class BulkReader:
    """Reads up to 64 datagrams a call, without waiting; for one thread."""

    def __init__(self, source: socket.socket) -> None:
        self._fd = source.fileno()
        places = np.arange(_SLOTS, dtype=np.uintp)
        self._memory = np.zeros((_SLOTS, _STRIDE_BYTES), np.uint8)  # pages in use take memory
        self._vectors = np.empty((_SLOTS, 2), np.uintp)
        self._vectors[:, 0] = self._memory.ctypes.data + places * _STRIDE_BYTES
        self._vectors[:, 1] = _SLOT_BYTES
        self._messages = np.zeros(_SLOTS, _MESSAGE)
        self._messages["header"]["vectors"] = (
            self._vectors.ctypes.data + places * self._vectors.strides[0]
        )
        self._messages["header"]["vector_count"] = 1
        self._lengths = self._messages["length"]
        self._address = self._messages.ctypes.data
        self._slots = [slot.data[:_SLOT_BYTES] for slot in self._memory]

    def read(self) -> tuple[bytes, int, bool]:
        """Return datagrams joined by line feeds, their number, and whether more may be there."""
        count = _recvmmsg(self._fd, self._address, _SLOTS, _MSG_DONTWAIT, None)
        if count <= 0:
            number = ctypes.get_errno()
            if count < 0 and number not in _EMPTY:
                raise OSError(number, os.strerror(number))
            return b"", 0, False
        lengths = self._lengths[:count].tolist()
        parts = [slot[:length] for slot, length in zip(self._slots, lengths, strict=False)]
        return b"\n".join(parts), count, count == _SLOTS


class StreamBuffer:
    """Cuts the bytes of one connection into lines, or into DogStatsD's frames.

    A frame is a u32, little-endian, then so many bytes of lines, as in a datagram. Source: the
    `unixstream://` transport of Datadog's clients.

    Args:
        bytes_max: bound of a line and of a frame. A longer line is skipped; a longer frame means
            that these are no frames.
        framed: whether frames come. None: the fourth byte of the connection shows it, since it is
            zero in a frame's length (below 2^17) and in no line (no name has control characters).

    Attributes:
        framed: as above; None until the fourth byte has come.
        overlong: lines and frames beyond the bound.
        broken: whether what comes can no longer be understood: the connection is useless.

    """

    def __init__(self, bytes_max: int, *, framed: bool | None) -> None:
        self._bytes_max = bytes_max
        self.framed = framed
        self._rest = b""
        self._skipping = False
        self.overlong = 0
        self.broken = False

    def feed(self, data: bytes) -> bytes:
        """Return the lines that are whole now, without the last line feed."""
        if self.framed is None:
            data = self._rest + data
            if len(data) < _LENGTH_BYTES:
                self._rest = data
                return b""
            self._rest = b""
            self.framed = data[_LENGTH_BYTES - 1] == 0
        return self._feed_frames(data) if self.framed else self._feed_lines(data)

    def _feed_lines(self, data: bytes) -> bytes:
        if self._skipping:
            _, found, data = data.partition(b"\n")
            if not found:
                return b""
            self._skipping = False
        whole, found, rest = data.rpartition(b"\n")
        if found:
            whole = self._rest + whole
            self._rest = rest
        else:
            self._rest += data
        if len(self._rest) > self._bytes_max:
            self._rest, self._skipping = b"", True
            self.overlong += 1
        return whole

    def _feed_frames(self, data: bytes) -> bytes:
        data = self._rest + data
        frames: list[bytes] = []
        at = 0
        while not self.broken and len(data) - at >= _LENGTH_BYTES:
            size = int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
            if size > self._bytes_max:
                self.overlong += 1
                self.broken = True
                break
            stop = at + _LENGTH_BYTES + size
            if stop > len(data):
                break
            frames.append(data[at + _LENGTH_BYTES : stop])
            at = stop
        self._rest = b"" if self.broken else data[at:]
        return b"\n".join(frames)

    def end(self) -> bytes:
        """Return the incomplete line or frame that is left when the connection ends."""
        rest, self._rest = self._rest, b""
        return rest


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
            self._add(made, lambda: self._accept(made, _FRAMED[place.scheme]))

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

    def _feed(self, lines: bytes, packets: int = 1) -> None:
        self._aggregator.feed(lines, packets)
        self.last_message_s = time.time()

    def _read_datagrams(self, reader: BulkReader) -> bool:
        for _ in range(_READS_MAX):
            data, count, full = reader.read()
            if count:
                self._feed(data, count)
            if not full:
                return False
        return True

    def count_drops(self) -> None:
        """Look up how many datagrams the kernel has dropped."""
        if self._udp and not self._closed:
            self.counts["kernel_drops"] = kernel_drops(self._udp)

    def _accept(self, listener: socket.socket, framed: bool | None) -> bool:
        try:
            made, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError as error:
            self._not_accepted.note(error)
            return False
        self._not_accepted.over()
        if self.counts["connections"] >= CONNECTIONS_MAX:
            self.counts["connections_refused"] += 1
            made.close()
            return False
        made.setblocking(False)
        self.counts["connections"] += 1
        lines = self._streams[made.fileno()] = StreamBuffer(LINE_BYTES_MAX, framed=framed)
        self._add(made, lambda: self._read_stream(made, lines))
        return False

    def _read_stream(self, made: socket.socket, lines: StreamBuffer) -> bool:
        """Read what has arrived; a connection that has ended is dropped."""
        try:
            data = made.recv(_STREAM_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._drop(made)
            return False
        before = lines.overlong
        whole = lines.feed(data)
        self.counts["lines_overlong"] += lines.overlong - before
        if whole:
            self._feed(whole)
        if lines.broken or not data:
            self._drop(made, whole=not data)
        return len(data) == _STREAM_BYTES

    def _end_stream(self, fd: int, *, whole: bool) -> None:
        """Take the last line of a connection if its sender has ended it, and it was not cut off."""
        lines = self._streams.pop(fd, None)
        if lines is None or not (rest := lines.end()):
            return
        if whole and not lines.framed and self._aggregator.config.dialect.grammar != "etsy":
            self._feed(rest)
        else:
            self.counts["lines_unfinished"] += 1

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
