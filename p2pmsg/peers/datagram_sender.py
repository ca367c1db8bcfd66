"""Sends a multicast: frames in trains of datagrams, at the right pace."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, cast

import transports
from p2pmsg import wire
from p2pmsg.config import PublisherConfig
from p2pmsg.multicast import datagram
from p2pmsg.multicast.sender import MulticastSender
from p2pmsg.peers.network import Network
from p2pmsg.peers.sending import SLICE_NS, Outgoing
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.wire import Kind
from recovery import TokenBucket
from transports.platform import AnyReadable
from transports.udp import DATAGRAM_BYTES_MAX, SEGMENTS_MAX

_MS: Final = 1_000_000
_ANSWERS_PER_CALL: Final = 256
_REPAIRS_PER_CALL: Final = 64
_DATAGRAM_COST_BYTES: Final = 1024
_BURST_BYTES: Final = 2**20
"""What leaves at once after a pause: a sixteenth of a receive buffer."""
"""What a datagram that comes alone takes of a receive buffer in addition to its bytes."""
_MARK_AGAIN_NS: Final = 2 * _MS
_SENT_AT_ONCE: Final = 8
"""Trains after which others have their turn."""
_PACED_NS: Final = 300_000
"""What may go so soon is waited for without a timer, which has 1 ms at least."""


class _NoConnections:
    fd = -1

    def __len__(self) -> int:
        return 0

    def update(self) -> None:
        """Do nothing."""


class DatagramSender:
    """Stands where a TCP publisher has its socket.

    Attributes:
        multicast: the multicast's part of the protocol.
        lines: the sockets, one a group.
        datagrams_sent: how many went out.
        has_more, refused_by_key, connections: none, as there are no connections.
        waits: times that the receivers' window was found full.

    """

    has_more = False
    refused_by_key = 0

    def __init__(
        self,
        core: PublisherCore,
        multicast: MulticastSender,
        lines: Sequence[transports.GroupSender],
        now_ns: Callable[[], int],
    ) -> None:
        config = core.config.multicast
        self._core = core
        self.connections = _NoConnections()
        self.multicast = multicast
        self._now_ns = now_ns
        self._udp, *self._others = self.lines = tuple(lines)
        # One descriptor that is readable when any of the sockets is.
        self._readable = AnyReadable(one.fileno() for one in lines if one.fileno() >= 0)
        self._bucket = TokenBucket(config.rate_limit_bytes_s, _BURST_BYTES)
        self._flows = core.config.on_full != "drop"
        self._frame_bytes = multicast.frame_bytes
        self._keys = multicast.keys
        self._parts: deque[bytes] = deque()
        self._marked_ns = 0
        self.datagrams_sent = self.waits = 0

    @property
    def endpoint(self) -> str:
        """Where the datagrams go."""
        return self._udp.endpoint

    @property
    def kernel_drops(self) -> int:
        """Datagrams from receivers that the kernel dropped for lack of space."""
        return sum(one.kernel_drops for one in self.lines)

    @property
    def buffer_bytes(self) -> int:
        """How large the kernel's buffer for them is, at the smallest socket."""
        return min(one.buffer_bytes for one in self.lines)

    def fileno(self) -> int:
        """Return the descriptor that is readable when something has come."""
        return self._readable.fileno()

    def send(self, frame: bytes | memoryview) -> bool:
        """Send one frame alone; False: not now, by the pace or for lack of space."""
        if len(frame) > self._frame_bytes or self._parts or self.multicast.parity is not None:
            return False  # it goes the way of the outbox
        return self._may_send() and self._send_train(deque((bytes(frame),)))

    def send_outbox(self, outbox: deque[bytes]) -> bool:
        """Send what is in the outbox, in trains; False where frames remain."""
        trains = 0
        while outbox or self._parts:
            self.take_subscriptions()  # the caller keeps the driver from it
            if trains >= _SENT_AT_ONCE or not self._may_send():
                return False
            if self.multicast.parity is not None:
                while outbox and len(self._parts) < SEGMENTS_MAX:
                    self._parts.extend(self.multicast.with_parity(outbox.popleft()))
            elif not self._parts and len(outbox[0]) > self._frame_bytes:
                self._parts.extend(self.multicast.parts(outbox.popleft()))
            if not self._send_train(self._parts or outbox):
                return False
            trains += 1
        return True

    def send_repairs(self) -> None:
        """Send what was asked for, as far as the rate limit of repairs lets it go."""
        frames: list[bytes] = []
        for _ in range(_REPAIRS_PER_CALL):
            repair = self.multicast.next_repair(now_ns=self._now_ns())
            if repair is None:
                break
            self.multicast.repair_sent(repair, now_ns=self._now_ns())
            frames += repair.frames
        if not frames:
            return
        for made in self.multicast.datagrams_of(frames):  # so that they share signatures
            self._udp.send(made)
            for other in self._others:
                other.send(made)
            self.datagrams_sent += 1
            self.multicast.window.sent(len(made) + _DATAGRAM_COST_BYTES)
            self._bucket.take(len(made), self._now_ns())

    def take_subscriptions(self) -> int:
        """Take what receivers have sent; there are no subscriptions."""
        for one in self.lines:
            for _ in range(_ANSWERS_PER_CALL):
                answer = one.receive()
                if answer is None:
                    break
                self.multicast.receive(*answer, now_ns=self._now_ns())
        self.send_repairs()
        return 0

    def close(self, linger_ms: int = 0) -> None:
        """Close."""
        self._readable.close()
        for one in self.lines:
            one.close()

    @property
    def has_parts(self) -> bool:
        """Whether parts of a frame, or parity, are left of what was taken from the outbox."""
        return bool(self._parts)

    def wait_ns(self) -> int:
        """Return how long until the pace lets something go, in ns."""
        now_ns = self._now_ns()
        return max(0, self._bucket.ready_at_ns(now_ns) - now_ns)

    @property
    def is_paced(self) -> bool:
        """Whether it is the pace that frames wait for, and no receiver."""
        return self._bucket.available(self._now_ns()) < 1

    def _may_send(self) -> bool:
        now_ns = self._now_ns()
        if self._bucket.available(now_ns) < 1:
            return False
        if not self._flows or self.multicast.window.space() > 0:
            return True
        self.waits += 1
        if now_ns - self._marked_ns > _MARK_AGAIN_NS:
            self._mark()  # the last one, or its answers, may have been lost
        return False

    def _send_train(self, frames: deque[bytes]) -> bool:
        """Send frames from the front that make one train; False: no space."""
        taken = self._next_train(frames)
        count = len(taken)
        if self._keys is None or self.multicast.is_open(frames[0]):
            overhead, checksum, pieces = datagram.TRAILER_BYTES, datagram.checksum, list[bytes]()
            for one in taken:
                pieces += (one, checksum(one).to_bytes(4, "big"))
        else:
            group = self._keys.group
            overhead, pieces = group.overhead_bytes(count), group.seal_train(taken)
        segment = len(taken[0]) + overhead
        total = segment * (count - 1) + len(taken[-1]) + overhead
        if not self._udp.send_train(pieces, segment):
            return False
        for _ in range(count):  # first, so that whatever comes none is sent again
            frames.popleft()
        for other in self._others:  # what has no space there is lost there, as on any line
            other.send_train(pieces, segment)
        self._bucket.take(total, self._now_ns())
        self.datagrams_sent += count
        if self.multicast.window.sent(total + _DATAGRAM_COST_BYTES):
            self._mark()
        return True

    def _next_train(self, frames: deque[bytes]) -> list[bytes]:
        """Return frames from the front that make one train, as long as the first one but the last.

        What is not sealed leaves alone.
        """
        keys, largest, taken = self._keys, len(frames[0]), list[bytes]()
        overhead = datagram.TRAILER_BYTES if keys is None else keys.group.overhead_max
        count_max = min(SEGMENTS_MAX, DATAGRAM_BYTES_MAX // (largest + overhead) or 1)
        for frame in islice(frames, count_max):
            if keys is not None and not frame[0] and self.multicast.is_open(frame):
                return taken or [frame]
            size = len(frame)
            if size != largest:
                if size > largest:
                    break
                if 5 * size < 3 * largest:  # too small to fill up: it ends the train
                    return [*taken, frame]
                frame = frame.ljust(largest, b"\0")
            taken.append(frame)
        return taken

    def _mark(self) -> None:
        if self._flows:
            self._marked_ns = self._now_ns()
            position = self.multicast.window.position
            frame = wire.control_frame(Kind.MARK, self._core.session, sequence=position)
            made = self.multicast.datagram_of(frame)
            for one in self.lines:
                one.send(made)


class DatagramOutgoing(Outgoing):
    """`Outgoing`, where frames leave by the train and receivers are waited for as a group."""

    def __init__(
        self, core: PublisherCore, sender: DatagramSender, now_ns: Callable[[], int]
    ) -> None:
        super().__init__(core, cast("transports.DataSender", sender), now_ns)
        self._trains = sender
        # Its core makes bytes of frames: nothing is sent out of ZeroMQ's memory.
        self._datagrams = cast("deque[bytes]", core.outbox)
        self._window = sender.multicast.window

    @property
    def waits(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._datagrams) or self._trains.has_parts

    def send_now(self) -> bool:
        """Send what may leave now; False where frames remain."""
        outbox = self._datagrams
        while not self._trains.send_outbox(outbox):
            if self._trains.is_paced or self._window.space() > 0:
                return False
            if self._on_full == "raise" or self.guard.blocked(now_ns=self._now_ns()) > 0:
                return False
            self._window.shed_slowest()
        self.guard.succeeded(now_ns=self._now_ns())
        return True

    def send_control(self) -> None:
        """Send control frames in trains, as far as the pace and the receivers' window let them."""
        queue = self._core.control
        frames: deque[bytes] = deque()
        for _ in range(SEGMENTS_MAX):
            frame = queue.next(data_waits=self.waits)
            if frame is None:
                break
            queue.leave(frame)
            frames.append(frame)
        if frames and not self._trains.send_outbox(frames):
            queue.give_back(frames)

    def retry_ns(self, now_ns: int) -> int:
        """Return when to try again what may not leave by the pace, or has no space."""
        if self._window.space() <= 0:
            return now_ns + SLICE_NS
        wait_ns = self._trains.wait_ns()
        return now_ns + (0 if wait_ns < _PACED_NS else min(wait_ns, SLICE_NS))


def open_senders(
    endpoints: Sequence[transports.Endpoint], config: PublisherConfig, network: Network
) -> tuple[list[transports.GroupSender], int]:
    """Return the sockets of a multicast publisher, and the size of its datagrams."""
    made: list[transports.GroupSender] = []
    try:
        made.extend(map(network.group_sender, endpoints))
    except BaseException:
        for one in made:
            one.close()
        raise
    size = min(one.datagram_bytes for one in made)
    return made, min(size, config.multicast.datagram_bytes or size)
