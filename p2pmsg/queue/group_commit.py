"""One fsync for all threads that wait for one.

A thread that pushes with `fsync="always"` appends its record under the pusher's lock, leaves the
lock, and waits here. The first one forces to the disk what was appended by then, without the
lock, while others append; a thread whose record is not among it waits for the next fsync.
"""

import threading
from collections.abc import Callable

from p2pmsg.errors import LogFailedError
from p2pmsg.queue.journal.file import FileJournal
from p2pmsg.sync.lock import PublishLock


class GroupCommit:
    """Waits until records are on the disk.

    Args:
        lock: of the pusher; held only before and after the waiting.
        journal: where the records are.
        work: hands out what is on the disk now; called under the lock.

    """

    def __init__(
        self, lock: PublishLock, journal: FileJournal, work: Callable[[], object]
    ) -> None:
        self._lock = lock
        self._journal = journal
        self._work = work
        self._condition = threading.Condition()
        self._is_syncing = False

    def wait(self, stop: int) -> None:
        """Wait until what was written up to `stop` is on the disk.

        To be called where no signal handler runs: the others wait for the one that syncs.

        Raises:
            LogFailedError: it cannot be forced to the disk.

        """
        journal, condition = self._journal, self._condition
        with condition:
            while self._is_syncing and journal.synced < stop and journal.broken is None:
                condition.wait()
            if journal.synced >= stop:
                return
            if journal.broken is not None:
                raise LogFailedError(journal.broken)
            self._is_syncing = True
        try:
            pending = self._lock.run(journal.begin_sync)
            pending.wait()
            self._lock.run(journal.end_sync, pending)
        finally:
            with condition:
                self._is_syncing = False
                condition.notify_all()
        self._lock.run(self._work)
