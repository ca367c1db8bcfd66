"""A publisher's local log: its settings, and reading it without its publisher."""

import os

import recovery.log
from p2pmsg.checks import checked
from p2pmsg.publisher.log import log_errors
from recovery.log import LogConfig, LogStore

__all__ = ["LogConfig", "LogReader"]


class LogReader(recovery.log.LogReader):  # noqa: D101
    __doc__ = recovery.log.LogReader.__doc__

    @checked()
    def __init__(self, directory: str | os.PathLike[str], *, store: LogStore | None = None) -> None:
        with log_errors():
            super().__init__(directory, store=store)

    def refresh(self) -> None:
        """See what another process has written, and deleted, since the last time.

        Raises:
            LogError: there is no log any more.

        """
        with log_errors():
            super().refresh()
