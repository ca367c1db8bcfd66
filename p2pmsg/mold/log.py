"""The log of a MoldUDP64 publisher: what its buffer has forgotten, and where a session goes on.

Its records are DATA frames of one stream, so that `p2pmsg log` and Spark read it like any other.
"""

import os
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from p2pmsg import wire
from p2pmsg.errors import ConfigError
from p2pmsg.mold import codec
from p2pmsg.mold.feed import FIRST
from p2pmsg.mold.sessions import session_id
from p2pmsg.publisher.log import PublisherLog, Steps
from p2pmsg.publisher.packing import pack_slice
from p2pmsg.stats import LogStats
from p2pmsg.wire import Frame, FrameError

if TYPE_CHECKING:
    from recovery.log import LogConfig

_REQUESTER: Final = b"mold"
_FRAMES_PER_ANSWER: Final = 64


class MoldLog:
    """The log of one session: for one thread at a time, except for `history`.

    Args:
        config: a `LogConfig`.
        session: the session's name, as it goes over the wire.
        topic: of the stream that the log has.

    Raises:
        ConfigError: the log is another session's.

    """

    def __init__(self, config: "LogConfig", session: bytes, topic: str) -> None:
        wanted = session_id(session)
        # A log that was given up, or of which an end is missing, begins a new session: any but the
        # one wanted, whose sequences may be known to receivers beyond what is left.
        others = wanted if _is_new(config) else secrets.randbits(64)
        self._log = PublisherLog(config, session=others, wall_ns=time.time_ns())
        if self._log.session != wanted:
            self._log.close()
            name = session.decode().rstrip()
            limit = (
                f"one of the session {name!r} that is whole, or a new one; where it was given up "
                "or has come back shorter, begin a session of another name in a new directory"
            )
            raise ConfigError("log", limit, config.directory)
        self._topic = topic
        self._prefix = wire.stream_prefix(topic, wanted)
        self._buffer = bytearray()

    @property
    def following(self) -> int:
        """The sequence after the last message that is in the log for certain."""
        return FIRST if self._log.broken is not None else max(FIRST, self._log.next(self._topic))

    def append(self, sequence: int, packet: bytes) -> None:
        """Write a packet's messages, before it goes out; raises `LogFailedError`.

        With `syncs_first`, `upkeep` comes in between.
        """
        messages = codec.read_packet(packet).messages
        wall_ns = time.time_ns()
        frame = pack_slice(self._prefix, sequence, wall_ns, messages, None, None, self._buffer)[0]
        self._log.append(self._topic, sequence, len(messages), frame, wall_ns, wall_ns)

    @property
    def syncs_first(self) -> bool:
        """Whether packets may go out only when they are on the disk (`fsync="always"`)."""
        return self._log.syncs_first

    @property
    def failure(self) -> str | None:
        """Why nothing can be brought to the disk any more, or None."""
        return self._log.broken

    def history(self, start: int, stop: int) -> Sequence[bytes]:
        """Return the messages from `start` on that are kept, of some frames, up to `stop`.

        One other thread may call it, until the log is closed.
        """
        found: list[bytes] = []
        for _ in range(_FRAMES_PER_ANSWER):
            at = start + len(found)
            try:
                kept = self._log.read(_REQUESTER, self._topic, at) if at < stop else None
            except OSError:
                break  # no descriptor is left to read with: who asks again may get it
            if kept is None or not kept.start <= at < kept.stop:
                break
            try:
                values = wire.decode_columns(Frame(bytes(kept.frame)))[0]
            except FrameError:
                break
            found += values[at - kept.start : stop - kept.start]
        return found

    def next_deadline_ns(self, *, now_ns: int) -> int | None:
        """Return when `upkeep` has something to bring to the disk, or None."""
        return self._log.next_deadline_ns(now_ns=now_ns)

    def upkeep(self, *, now_ns: int) -> Steps[None]:
        """Bring to the disk what is due, and apply retention; what may wait is handed out."""
        due_ns = self._log.next_deadline_ns(now_ns=now_ns)
        if due_ns is not None and now_ns >= due_ns:
            yield from self._log.sync_steps(wall_ns=time.time_ns())

    def close(self) -> None:
        """Close; raises `LogFailedError` where not everything could be written."""
        self._log.close()

    def stats(self) -> LogStats:
        """Return what there is to report of the log."""
        return self._log.stats()


def _is_new(config: "LogConfig") -> bool:
    """Whether there is nothing yet where the log is to be."""
    try:
        return not any(name.endswith((".log", "tail")) for name in os.listdir(config.directory))
    except (OSError, TypeError, AttributeError):
        return True  # what is wrong with it is for the log to say
