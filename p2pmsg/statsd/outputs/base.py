"""The interface of outputs."""

from collections.abc import Iterable
from typing import Protocol

from p2pmsg.statsd.metric import Event, ServiceCheck
from p2pmsg.statsd.snapshot import Row, Snapshot


class Output(Protocol):
    """Receives flushes, row by row.

    The collector's thread makes all calls but `close`. It reads its sockets in between, so no call
    may block. Exceptions are logged and counted, and the flush goes on with the next row. A
    subclass may leave out `begin`, `write_event`, `end` and `close`, which do nothing. An int
    `failures`, if there is one, is counted with the exceptions: of what the output does by itself,
    such as sending.
    """

    name: str
    """For the management port and the log."""

    def begin(self, snapshot: Snapshot) -> None:
        """Begin a flush; `snapshot` has its time and settings."""
        return

    def write_event(self, event: Event | ServiceCheck) -> None:
        """Take `event` of the flush, or a service check; they come before the rows."""
        return

    def write(self, row: Row) -> None:
        """Take `row` of the flush: a metric."""
        ...

    def end(self, snapshot: Snapshot) -> None:
        """End a flush; `snapshot` is the one it began with."""
        return

    def status(self) -> Iterable[tuple[str, float]]:
        """Return (name, number) for the management port; names with `last_` in front are times."""
        ...

    def close(self, timeout: float) -> None:
        """Send what is left, for `timeout` seconds at most, and close."""
        return
