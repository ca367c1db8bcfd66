"""A publisher's local log: its settings; reading and maintaining it without its publisher."""

import os
from collections.abc import Iterator
from functools import partial

import recovery.log
from p2pmsg.checks import checked
from p2pmsg.publisher.log import log_errors, refuse_queue
from p2pmsg.publisher.tail_frames import count_of, frame_of
from p2pmsg.wire import Frame, FrameError
from recovery.log import Finding, LogConfig, LogStore, StreamSummary
from recovery.log.repair import Unkept

__all__ = [
    "Finding",
    "LogConfig",
    "LogReader",
    "StreamSummary",
    "Unkept",
    "repair",
    "truncate",
    "verify",
]

Directory = str | os.PathLike[str]


class LogReader(recovery.log.LogReader):  # noqa: D101
    __doc__ = recovery.log.LogReader.__doc__

    @checked()
    def __init__(self, directory: Directory, *, store: LogStore | None = None) -> None:
        with log_errors():
            super().__init__(directory, store=store)

    def refresh(self) -> None:
        """See what another process has written, and deleted, since the last time.

        Raises:
            LogError: there is no log any more.

        """
        with log_errors():
            super().refresh()

    def waiting_count(self) -> int:
        """Return how many messages are in the log's tail file, and in no frame yet.

        If their publisher runs, they soon are; if it was killed, its next start sends them.
        """
        count = 0
        for content in self.waiting():
            try:
                count += count_of(content)
            except ValueError:
                pass  # it changes while it is read
        return count


def verify(directory: Directory) -> Iterator[Finding]:
    """Check every record of a log by its checksum; yields what is wrong, and where.

    Raises:
        LogError: there is no log.

    """
    with log_errors():
        yield from recovery.log.verify(directory, check=frame_of)


def repair(directory: Directory) -> Unkept:
    """Write each damaged segment of a log again without its damage.

    Subscribers get what could not be kept as lost (crash).

    Args:
        directory: of a log that nobody writes; it may be a queue's.

    Raises:
        LogError: there is no log; `LogInUseError`: a publisher, or a pusher, has it.

    """
    with log_errors():
        session = recovery.log.LogReader(directory).session
        return recovery.log.repair(directory, partial(_stream_of, session))


@checked()
def truncate(
    directory: Directory, *, before_ns: int | None = None, bytes_max: int | None = None
) -> int:
    """Delete the oldest segments of a log that nobody writes; return the bytes that are gone.

    Whole segments go, and the newest one stays. The newest messages cannot be cut off: subscribers
    have them, and their sequences would be used twice.

    Args:
        directory: of the log.
        before_ns: delete segments whose newest frame was appended before it, in ns since the epoch.
        bytes_max: delete segments until they take no more; "50GB" is taken, too.

    Raises:
        LogError: there is no log; `LogInUseError`: a publisher has it.
        LogFormatError: it is the log of a queue, which keeps what is not done.

    """
    with log_errors():
        streams = recovery.log.LogReader(directory).streams()
        refuse_queue(str(directory), [(stream.session, stream.topic) for stream in streams])
        return recovery.log.truncate(directory, before_ns=before_ns, bytes_max=bytes_max)


def _stream_of(session: int | None, data: bytes) -> tuple[int, str]:
    try:
        frame = Frame(data)
    except FrameError as error:
        if session is None:
            raise ValueError(f"no frame: {error}") from error
        from p2pmsg.queue.journal.file import topic_of  # few have a queue

        return session, topic_of(data)
    return frame.session, frame.topic
