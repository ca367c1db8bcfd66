"""Forcing a log to the disk, while it is written to."""

from recovery.log.page_cache import Stretch
from recovery.log.store import LogStore


class PendingSync:
    """A sync that has begun.

    Attributes:
        byte_count: how much it brings to the disk.
        names: of which files.
        names_changed: whether it brings the directory there, too.
        unneeded: what need not be kept in memory then.
        missing: those of `names` that were not there, after `wait`: retention may have deleted
            them.
        error: what went wrong, after `wait`.

    """

    def __init__(
        self,
        store: LogStore,
        byte_count: int,
        names: list[str],
        names_changed: bool,
        unneeded: list[Stretch],
    ) -> None:
        self._store = store
        self.names = names
        self.names_changed = names_changed
        self.byte_count = byte_count
        self.unneeded = unneeded
        self.missing: list[str] = []
        self.error: OSError | None = None

    def wait(self) -> None:
        """Wait for the disk. It never raises: `LogWriter.end_sync` does."""
        try:
            for name in self.names:
                self._sync(name)
            if self.names_changed:
                self._store.sync_directory()
            for stretch in self.unneeded:
                self._uncache(stretch)
        except OSError as error:
            self.error = error

    def _uncache(self, stretch: Stretch) -> None:
        try:
            file = self._store.open(stretch.name)
        except OSError:
            return  # deleted by retention, or another time
        try:
            file.uncache(stretch.start, stretch.stop)
        except OSError:
            pass  # it was but advice
        finally:
            file.close()

    def _sync(self, name: str) -> None:
        try:
            self._store.sync_file(name)
        except FileNotFoundError:
            if name == self.names[-1]:
                raise  # which retention never deletes
            self.missing.append(name)
