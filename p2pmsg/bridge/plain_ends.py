"""The ends that are sockets of other libraries."""

import time
from typing import Any, Final

from p2pmsg.bridge.connection import FIRST_NS
from p2pmsg.bridge.ends import SLICE_S, Batch, IsOver, Source, Target, Written
from p2pmsg.bridge.sequences import Sequences
from p2pmsg.bridge.shapes import Reader, Writer
from p2pmsg.plain import PlainSocket
from p2pmsg.toolkit import Rarely
from p2pmsg.toolkit import own_log as _log

_BATCH_MESSAGES: Final = 2048
_LOOK_MESSAGES: Final = 64
"""After so many messages it is looked again who has subscribed."""
_LOOK_S: Final = 0.02


class PlainSource(Source):
    """Reads a SUB or PULL socket.

    Args:
        socket: closed with this.
        name: whose messages these are, for the log.
        reader: makes topics and values of them.
        sequences: looks at the numbers in them; None: there are none.
        queue_messages: the socket's high-water mark.
        single_parts: whether every message has one part.

    Attributes:
        received_bytes: what came.
        overruns: how often a whole queue of messages was read without finding it empty once.

    """

    def __init__(
        self,
        socket: PlainSocket,
        name: str,
        reader: Reader,
        sequences: Sequences | None,
        *,
        queue_messages: int,
        single_parts: bool,
    ) -> None:
        self._socket = socket
        self._name = name
        self._reader = reader
        self._sequences = sequences
        self._queue_messages = queue_messages
        self._receive = socket.receive_singles if single_parts else socket.receive_many
        self._run = 0
        self._overrun_logged, self._gap_logged = Rarely(), Rarely()
        self._gaps_seen = 0
        self.received_bytes = self.overruns = 0

    def read(self, timeout: float) -> list[Batch]:
        """See `Source`."""
        messages, size, has_more = self._receive(_BATCH_MESSAGES)
        if not messages:
            self._run = 0
            if timeout:
                self._socket.wait(int(timeout * 1000))
            return []
        self.received_bytes += size
        if type(messages[0]) is list and self._receive != self._socket.receive_many:
            self._receive = self._socket.receive_many
            _log.warning(
                "%s sends messages of several parts, against single_parts: they are read as such "
                "from now on; parts of earlier ones may have become messages", self._name,
            )  # fmt: skip
        self._run = self._run + len(messages) if has_more else 0
        if self._run >= self._queue_messages:
            self._run = 0
            self._on_overrun()
        return [self._batch(topic, taken) for topic, taken in self._reader.group(messages).items()]

    def close(self) -> None:
        """See `Source`."""
        self._socket.close()

    def _batch(self, topic: str, values: list[Any]) -> Batch:
        sequences, decoded = self._sequences, self._reader.decode(values)
        if sequences is not None:
            note = sequences.note
            for value in decoded if sequences.reads_values else values:
                note(topic, value)
            if sequences.gaps > self._gaps_seen and self._gap_logged.is_due():
                self._say_gaps(sequences)
        return Batch(topic, decoded)

    def _on_overrun(self) -> None:
        self.overruns += 1
        if not self._overrun_logged.is_due():
            return
        what = "a PUB drops what finds no space at its high-water mark, a PUSH is held up"
        _log.warning(
            "%s sends faster than the bridge reads (%d messages without a pause): %s",
            self._name, self._queue_messages, what,
        )  # fmt: skip

    def _say_gaps(self, sequences: Sequences) -> None:
        self._gaps_seen = sequences.gaps
        assert sequences.newest is not None
        topic, start, stop = sequences.newest
        _log.warning(
            "%s: %d messages were lost before they came here, in %d gaps; the newest is "
            "[%d, %d)%s", self._name, sequences.missing, sequences.gaps, start, stop,
            f" of {topic!r}" if topic else "",
        )  # fmt: skip


class PlainTarget(Target):
    """Writes to a PUSH socket: waits until somebody takes a message.

    Args:
        socket: closed with this.
        name: where messages go, for the log.
        writer: makes messages of values.

    """

    def __init__(self, socket: PlainSocket, name: str, writer: Writer) -> None:
        self._socket = socket
        self._name = name
        self._writer = writer
        self._alone_logged = Rarely()

    def write(self, batch: Batch, is_over: IsOver) -> Written:
        """See `Target`."""
        written = Written()
        for value in batch.values:
            try:
                parts = self._writer.parts(batch.topic, value)
            except ValueError as error:
                written.refused[written.done] = str(error)
            else:
                if not self._send(parts, is_over):
                    break
            written.done += 1
        return written

    def close(self, timeout: float) -> None:
        """See `Target`."""
        self._socket.close(linger_ms=int(timeout * 1000))

    def _send(self, parts: list[bytes], is_over: IsOver) -> bool:
        """Send once there is space; False: it was not sent, since the bridge is to stop."""
        if self._socket.send(parts):
            return True
        since_ns = time.monotonic_ns()
        while not is_over():
            self._socket.wait_for_space(int(SLICE_S * 1000))
            if self._socket.send(parts):
                return True
            is_long = time.monotonic_ns() - since_ns >= FIRST_NS
            if is_long and self._socket.is_alone and self._alone_logged.is_due():
                _log.warning(
                    "%s: nobody is connected to take messages; they wait at the source", self._name
                )
        return False


class FanOutTarget(PlainTarget):
    """Writes to a PUB socket.

    Where nobody has subscribed it waits for a while, and then counts what nobody gets. A full queue
    may hold up the bridge as long, and then loses.

    Args:
        socket, name, writer: as of `PlainTarget`.
        stall_timeout: how long a full queue, or that there is no subscriber, may hold up the
            bridge, in seconds.

    """

    def __init__(
        self, socket: PlainSocket, name: str, writer: Writer, stall_timeout: float
    ) -> None:
        super().__init__(socket, name, writer)
        self._pub = socket
        self._stall_timeout = stall_timeout
        self._gave_up = False
        self._has_subscriber = False
        self._unlooked = 0
        self._is_shedding = False
        self._full_logged, self._nobody_logged = Rarely(), Rarely()
        self._dropped = self._without_subscriber = 0

    def write(self, batch: Batch, is_over: IsOver) -> Written:
        """See `Target`."""
        dropped, without = self._dropped, self._without_subscriber
        self._unlooked = 0
        written = super().write(batch, is_over)
        written.dropped = self._dropped - dropped
        written.without_subscriber = self._without_subscriber - without
        return written

    def _send(self, parts: list[bytes], is_over: IsOver) -> bool:
        deadline = None
        while True:
            if self._unlooked <= 0 and not self._check(is_over):
                return False
            self._unlooked -= 1
            if not self._has_subscriber:
                self._on_nobody()
                return True
            if self._pub.send(parts):
                self._is_shedding = False
                return True
            self._unlooked = 0
            left = self._stall_timeout
            if deadline is None:
                deadline = time.monotonic() + left
            else:
                left = deadline - time.monotonic()
            if self._is_shedding or left <= 0 or is_over():
                self._is_shedding = self._is_shedding or left <= 0
                self._drop(parts)
                return True
            time.sleep(min(0.001, left))  # a PUB is always said to have space

    def _check(self, is_over: IsOver) -> bool:
        """Look who is there, and wait if need be; False: the bridge is to stop meanwhile."""
        deadline = None
        while not (is_there := self._pub.has_subscriber()) and not self._gave_up:
            now = time.monotonic()
            deadline = deadline or now + self._stall_timeout
            if now >= deadline:
                self._gave_up = True
            elif is_over():
                return False
            else:
                time.sleep(_LOOK_S)
        if is_there:
            self._gave_up = False
        self._has_subscriber = is_there
        self._unlooked = _LOOK_MESSAGES
        return True

    def _on_nobody(self) -> None:
        self._without_subscriber += 1
        if self._nobody_logged.is_due():
            _log.warning(
                "%s: nobody has subscribed, and nobody came within %g s (stall_timeout): messages "
                "are sent to nobody (%d so far)",
                self._name, self._stall_timeout, self._without_subscriber,
            )  # fmt: skip

    def _drop(self, parts: list[bytes]) -> None:
        """Send to those who have space."""
        self._pub.set_lossy(True)
        self._pub.send(parts)
        self._pub.set_lossy(False)
        self._dropped += 1
        if self._full_logged.is_due():
            _log.warning(
                "%s: a subscriber's queue was full for %g s; messages are dropped for it until it "
                "has space again (%d so far)", self._name, self._stall_timeout, self._dropped,
            )  # fmt: skip
