"""What an output is."""

from collections.abc import Iterable
from typing import Protocol

from p2pmsg.statsd.snapshot import Row, Snapshot


class Output(Protocol):
    """Takes flushes, some rows at a time; all but `close` is called by the collector's thread.

    Between two calls of `write` the collector reads its sockets, so no call may wait. What raises
    is logged and counted, and nothing else.
    """

    name: str
    """For the management port and the log."""

    def begin(self, snapshot: Snapshot) -> None:
        """Begin a flush."""
        ...

    def write(self, rows: list[Row]) -> None:
        """Take some rows of it."""
        ...

    def end(self, snapshot: Snapshot) -> None:
        """End it."""
        ...

    def status(self) -> Iterable[tuple[str, float]]:
        """Give what the management port shows; names that begin with `last_` are times."""
        ...

    def close(self, timeout: float) -> None:
        """Send what is left, for at most so many seconds, and close."""
        ...
