"""The file that totals survive a crash in: written whole, then renamed."""

import os
import tempfile
from pathlib import Path

from p2pmsg.errors import ConfigError
from p2pmsg.statsd.totals import ExactTotals, StateError
from recovery.durable import sync_path


class StateFile:
    """Totals on disk.

    Args:
        path: of the file; its folder has to be there.

    Raises:
        ConfigError: the folder is not there, or the file holds something else.

    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        if not self._path.parent.is_dir():
            raise ConfigError("state", "a file in a folder that is there", str(path))

    def load(self, names_max: int) -> ExactTotals:
        """Return the totals, from zero where there is no file yet."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return ExactTotals(names_max)
        except OSError as error:
            raise ConfigError("state", f"readable ({error.strerror})", str(self._path)) from error
        try:
            return ExactTotals.decode(data, names_max)
        except StateError as error:
            raise ConfigError("state", f"a state file ({error})", str(self._path)) from error

    def save(self, data: bytes) -> None:
        """Replace the file by one step, so that a crash leaves the old one or the new one."""
        fd, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self._path)
        except BaseException:
            try:
                os.unlink(name)
            except OSError:
                pass  # what went wrong before is what is told
            raise
        sync_path(self._path.parent)
