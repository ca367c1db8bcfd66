"""What a peer has of its machine: sockets, clocks and chance; a test gives it others.

A peer gets one `Network` when it is made, and opens, asks the time and draws by it alone. So what
runs on a network in memory, with a clock that is moved by hand, is the very peer that users run.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Final

import transports
from p2pmsg.driver.lifecycle import zmq_context
from p2pmsg.driver.machine import Machine
from p2pmsg.publisher.served import PYTHON_MEMORY, FrameMemory
from transports.base import RECEIVE_BUFFER_BYTES
from transports.zmq_socket import FRAME_BYTES_MAX

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from p2pmsg.queue.frames import Process
    from recovery.log import LogConfig, LogStore
    from recovery.store import Store
    from transports.curve import CurveClient, CurveServer


_QUEUE_FRAMES: Final = 100_000
"""Frames in the sockets of a work queue: more than a worker may have in flight. Its credit is the
bound, and a frame has a job at least."""
_PULLED_FRAMES: Final = 1000
_ZMQ_MEMORY: Final = FrameMemory(transports.make_zmq_frame, transports.free_zmq_frames)


class Network(Machine):
    """The machine's: ZeroMQ's sockets, UDP's, the monotonic clock and that of the wall.

    Attributes:
        now_ns: the monotonic clock, in ns.
        wall_ns: the clock of the wall, in ns since the epoch.
        random: the source of ids, keys and of what is spread by chance.
        keeps_replies: whether a recovery channel that loses anything ends, as one of TCP does.
        queue_segment_bytes: size of a segment of a queue's log: what is settled is deleted by the
            segment. 16 MiB are read in some 100 ms after a crash.

    """

    now_ns: Callable[[], int] = staticmethod(time.monotonic_ns)
    wall_ns: Callable[[], int] = staticmethod(time.time_ns)
    random: Random = SystemRandom()  # a forked child would repeat what another one draws
    keeps_replies = True
    queue_segment_bytes = 16 * 2**20

    @property
    def frame_memory(self) -> FrameMemory:
        """Where frames are kept that leave over connections."""
        return PYTHON_MEMORY if self.in_memory else _ZMQ_MEMORY

    def log_store(self, config: "LogConfig") -> "LogStore":
        """Return what holds a log's files."""
        from recovery.log import FileStore

        return FileStore(config.directory)

    def queue_store(self, directory: "str | os.PathLike[str]") -> "LogStore":
        """Return what holds the files of a queue's log."""
        from recovery.log import FileStore

        return FileStore(directory)

    def open_store(self, path: "str | Path", tables: str) -> "Store":
        """Open a file of SQLite; see `recovery.store.open_store`."""
        from recovery.store import open_store

        return open_store(path, tables)

    # Options are those of the sockets' classes in `transports`.

    def sender(
        self, endpoint: transports.Endpoint, *, queue_frames: int, **options: Any
    ) -> transports.DataSender:
        """Bind a publisher's end of the data channel; see `transports.ZmqSender`."""
        return transports.ZmqSender(
            endpoint, context=zmq_context(), queue_frames=queue_frames, **options
        )

    def recovery_server(
        self, endpoint: transports.Endpoint, *, queue_frames: int, **options: Any
    ) -> transports.RecoveryServer:
        """Bind a publisher's end of the recovery channel; see `transports.ZmqRecoveryServer`."""
        return transports.ZmqRecoveryServer(
            endpoint, context=zmq_context(), queue_frames=queue_frames, **options
        )

    def receiver(
        self,
        endpoint: transports.Endpoint,
        *,
        queue_frames: int,
        follows: bool = True,
        **options: Any,
    ) -> transports.DataReceiver:
        """Make a subscriber's end of the data channel, not connected yet.

        Its connection is followed, unless not `follows`; see `transports.ZmqReceiver`, `watch_end`.
        """
        made = transports.ZmqReceiver(
            endpoint, context=zmq_context(), queue_frames=queue_frames, **options
        )
        if follows:
            made.watch_end()
        return made

    def recovery_client(
        self, endpoint: transports.Endpoint, *, queue_frames: int, **options: Any
    ) -> transports.RecoveryClient:
        """Make a subscriber's end of the recovery channel, not connected yet.

        See `transports.ZmqRecoveryClient`.
        """
        return transports.ZmqRecoveryClient(
            endpoint, context=zmq_context(), queue_frames=queue_frames, **options
        )

    def queue_server(
        self, endpoint: transports.Endpoint, *, bounds_replies: bool = False, **options: Any
    ) -> transports.RecoveryServer:
        """Bind a pusher's socket, or a responder's; see `transports.ZmqRecoveryServer`."""
        return transports.ZmqRecoveryServer(
            endpoint, context=zmq_context(), queue_frames=_QUEUE_FRAMES,
            frame_bytes_max=FRAME_BYTES_MAX, bounds_replies=bounds_replies, **options,
        )  # fmt: skip

    def queue_client(
        self, endpoint: transports.Endpoint, **options: Any
    ) -> transports.RecoveryClient:
        """Make a puller's socket, or a requester's, not connected yet; its connection is followed.

        See `transports.ZmqRecoveryClient`, `watch_end`.
        """
        made = transports.ZmqRecoveryClient(
            endpoint, context=zmq_context(), queue_frames=_QUEUE_FRAMES, **options
        )
        made.watch_end()
        return made

    def push_socket(
        self, endpoint: transports.Endpoint, *, curve: "CurveServer | None" = None
    ) -> transports.PushSocket:
        """Bind what a worker's jobs leave by, by the batch; see `transports.zmq_plain`."""
        from transports.zmq_plain import ZmqPlainSocket

        return ZmqPlainSocket(
            "push", endpoint, binds=True, context=zmq_context(), queue_messages=_QUEUE_FRAMES,
            message_bytes_max=64 * 1024, curve=curve,
        )  # fmt: skip

    def pull_socket(
        self, endpoint: transports.Endpoint, *, curve: "CurveClient | None" = None
    ) -> transports.PullSocket:
        """Make what a pusher's jobs come by, by the batch, not connected yet."""
        from transports.zmq_plain import ZmqPlainSocket

        return ZmqPlainSocket(
            "pull", endpoint, binds=False, context=zmq_context(), queue_messages=_PULLED_FRAMES,
            message_bytes_max=FRAME_BYTES_MAX, curve=curve,
        )  # fmt: skip

    def process(self) -> "Process":
        """Return how others on this machine know the process, so that they see that it ended."""
        from p2pmsg.queue.frames import Process
        from p2pmsg.queue.process_id import this_process

        return Process() if self.in_memory else this_process()

    def busy_wait(
        self, seconds: float, has_come: Callable[[], object], turn: transports.Turn
    ) -> transports.BusyWait:
        """Return what looks whether something `has_come`, for so long, before who waits sleeps.

        In memory it never looks, as no time passes meanwhile.
        """
        looked_us = 0.0 if self.in_memory else seconds * 1e6
        return transports.BusyWait(looked_us, has_come, turn=turn)

    def group_sender(self, endpoint: transports.Endpoint) -> transports.GroupSender:
        """Open a publisher's socket of a multicast; see `transports.udp`."""
        from transports.udp import UdpSender

        return UdpSender(endpoint)

    def group_receiver(
        self, endpoint: transports.Endpoint, *, buffer_bytes: int = RECEIVE_BUFFER_BYTES
    ) -> transports.GroupReceiver:
        """Open a subscriber's socket of a multicast, not connected yet."""
        from transports.udp import UdpReceiver

        return UdpReceiver(endpoint, buffer_bytes=buffer_bytes)


MACHINE: Final = Network()
"""The default of every peer."""
_HERE: Final[ContextVar[Network]] = ContextVar("_HERE", default=MACHINE)


def here() -> Network:
    """Return the network of a peer that is made now."""
    return _HERE.get()


@contextmanager
def on(network: Network) -> Iterator[None]:
    """Have the peers that are made within, and in tasks that begin within, be on a network."""
    token = _HERE.set(network)
    try:
        yield
    finally:
        _HERE.reset(token)
