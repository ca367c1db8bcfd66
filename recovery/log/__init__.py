"""The local log: frames on the disk, byte for byte as they were sent.

Except for its file store nothing here reads a clock or knows the operating system. See README.md.
"""

from recovery.errors import LogFormatError, LogLockedError, LogWriteError, RecoveryError
from recovery.log.catalog import Finding, StreamSummary
from recovery.log.config import LogConfig
from recovery.log.maintenance import truncate, verify
from recovery.log.memory_store import MemoryStore
from recovery.log.opening import OpenReport
from recovery.log.reader import LogReader, Record
from recovery.log.repair import repair
from recovery.log.store import FileStore, LogFile, LogStore
from recovery.log.sync import PendingSync
from recovery.log.tail import Tail, TailContent, TailSlot
from recovery.log.writer import LogWriter

__all__ = [
    "FileStore",
    "Finding",
    "LogConfig",
    "LogFile",
    "LogFormatError",
    "LogLockedError",
    "LogReader",
    "LogStore",
    "LogWriteError",
    "LogWriter",
    "MemoryStore",
    "OpenReport",
    "PendingSync",
    "Record",
    "RecoveryError",
    "StreamSummary",
    "Tail",
    "TailContent",
    "TailSlot",
    "repair",
    "truncate",
    "verify",
]
