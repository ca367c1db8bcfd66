"""Key files: a peer's secret key, which only its owner may read.

::

    # Secret key of a p2pmsg peer. Who has it is this peer.
    secret-key TQ…43 characters…

A file that its group or others can read, or that another user owns, is refused: a key that was read
by others is no secret any more, and nobody would notice. The public key is not in the file: it
follows from the secret one.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from p2pmsg.errors import ConfigError
from p2pmsg.security.files import read_file
from recovery.durable import make_folder, require_folder, sync_path
from transports.curve import CurveKeys, key_text, parse_key
from transports.hiding import hiding

FILE_BYTES_MAX: Final = 4096
_MODE: Final = 0o600
_TOO_WIDE: Final = 0o077
KEY_LINE: Final = "secret-key"
_COMMENT: Final = "# Secret key of a p2pmsg peer. Who has it is this peer."


OWN_FOLDER: Final = "~/.config/p2pmsg"
"""Where a peer's key and its known peers are by default."""


def ready_folder(folder: Path) -> None:
    """Make the default folder, also where its user has no `~/.config` yet; require any other."""
    own = Path(os.path.expanduser(OWN_FOLDER))
    if folder == own:
        make_folder(own.parent)
        make_folder(own)
    require_folder(folder)


def new_keys() -> CurveKeys:
    """Return a new pair, the text of whose public key is not taken for an option: no leading -."""
    while True:
        keys = CurveKeys.new()
        if not key_text(keys.public).startswith("-"):
            return keys


@hiding
def write_key_file(path: str | os.PathLike[str], keys: CurveKeys) -> None:
    """Write `keys` to a new file, mode 0600, which is on the disk on return.

    Raises:
        ConfigError: there is something at `path` already; a key is never overwritten.
        OSError: it cannot be written; nothing is left of it.

    """
    place = Path(os.path.expanduser(path))
    text = f"{_COMMENT}\n{KEY_LINE} {key_text(keys.secret)}\n"
    ready_folder(place.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(place, flags, _MODE)
    except FileExistsError as error:
        raise ConfigError("key", "a path where nothing is yet", str(place)) from error
    try:
        os.write(fd, text.encode())
        os.fsync(fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(place)
        raise
    finally:
        os.close(fd)
    with suppress(PermissionError):
        sync_path(place.parent)


def read_key_file(path: str | os.PathLike[str]) -> CurveKeys:
    """Return the pair of the key file `path`.

    Raises:
        ConfigError: it is no file that only its owner can read, or no key is in it. The error names
            what is wrong, and never shows what is in the file.
        OSError: it cannot be read.

    """
    place = os.path.expanduser(os.fspath(path))
    try:
        keys, size, found = _read(place)
    except IsADirectoryError:
        raise ConfigError("key", "a file", place) from None
    mode = stat.S_IMODE(found.st_mode)
    if mode & _TOO_WIDE:
        limit = "a file that only its owner can read (chmod 600)"
        raise ConfigError("key", limit, f"{place}, mode {mode:04o}")
    if found.st_uid not in (os.geteuid(), 0):  # its owner may read it, and change its mode
        limit = "a file of the user that reads it, or of root (chown)"
        raise ConfigError("key", limit, f"{place}, owner {found.st_uid}")
    if size > FILE_BYTES_MAX:
        raise ConfigError("key", f"a file of {FILE_BYTES_MAX} bytes at most", place)
    if keys is None:
        limit = f"a file with one line '{KEY_LINE} KEY', as `p2pmsg key new` writes it"
        raise ConfigError("key", limit, place)
    return keys


def _read(place: str) -> tuple[CurveKeys | None, int, os.stat_result]:
    """Return the pair, if there is one, the size of what was read, and the file's state.

    What was read may be the secret: an error of what it is must not be raised from here, since a
    traceback may be shown with the locals of each frame.
    """
    data, found = read_file(place, "key", FILE_BYTES_MAX)
    lines = [line.split() for line in data.decode("utf-8", "replace").splitlines()]
    fields = [words for words in lines if words and not words[0].startswith("#")]
    with suppress(ValueError):
        ((name, secret),) = fields
        if name == KEY_LINE:
            return CurveKeys.of_secret(parse_key(secret)), len(data), found
    return None, len(data), found
