"""A publisher's local log: its settings, and reading it without its publisher."""

from p2pmsg.publisher.log_reader import LogReader
from recovery.log import LogConfig

__all__ = ["LogConfig", "LogReader"]
