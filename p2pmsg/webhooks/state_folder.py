"""What a sender keeps of one endpoint in a folder: letters, whether it was stopped, requests to it.

=============  ===================================================================================
`cursor`       how far the stream was delivered
`letters`      messages that failed
`stopped`      why the endpoint was stopped (it answered 410), if it was
`asked/`       what was asked for by `p2pmsg hook dead-letters`: empty files, `retry-ID`, `purge-ID`
=============  ===================================================================================
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from recovery.durable import make_folder, replace_file, sync_path

Verb = Literal["retry", "purge"]
LETTERS: Final = "letters"
CURSOR: Final = "cursor"
_STOPPED: Final = "stopped"
_ASKED: Final = "asked"
_ID: Final = re.compile(r"(retry|purge)-([A-Za-z0-9_]{1,100})")
_ASKED_MAX: Final = 10_000
"""How many requests are taken up at once."""


class StateFolder:
    """The folder of one endpoint; raises `OSError` where it cannot be read or written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def make(self) -> None:
        """Make it and the one above it where they are missing; only its owner may look into it."""
        make_folder(self.path.parent)
        make_folder(self.path)
        with suppress(PermissionError):
            os.chmod(self.path, 0o700)

    @property
    def stopped(self) -> str | None:
        """Why the endpoint was stopped, or None."""
        try:
            return (self.path / _STOPPED).read_text("utf-8") or "stopped"
        except FileNotFoundError:
            return None

    def stop(self, reason: str) -> None:
        """Note that nothing is to be sent any more, also after a restart."""
        replace_file(self.path / _STOPPED, reason.encode()).close()
        sync_path(self.path)

    def resume(self) -> None:
        """Note that it is to be sent again."""
        with suppress(FileNotFoundError):
            os.unlink(self.path / _STOPPED)

    def ask(self, verb: Verb, ids: Iterable[str]) -> int:
        """Ask the sender, which runs or will, to send letters again, or to remove them.

        What is no id is left out; returns how many are ids.
        """
        make_folder(self.path / _ASKED)
        count = 0
        for each in ids:
            if _ID.fullmatch(f"{verb}-{each}"):  # what is none would be a path
                (self.path / _ASKED / f"{verb}-{each}").touch()
                count += 1
        return count

    def asked(self) -> list[tuple[Verb, str]]:
        """Return what was asked for."""
        try:
            names = os.listdir(self.path / _ASKED)
        except FileNotFoundError:
            return []
        found: list[tuple[Verb, str]] = []
        for name in names[:_ASKED_MAX]:
            match = _ID.fullmatch(name)
            if match is not None:
                found.append(("retry" if match[1] == "retry" else "purge", match[2]))
        return found

    def answered(self, asked: Iterable[tuple[Verb, str]]) -> None:
        """Note that it was done."""
        for verb, letter_id in asked:
            with suppress(FileNotFoundError):
                os.unlink(self.path / _ASKED / f"{verb}-{letter_id}")


def folders(state: str | Path) -> list[StateFolder]:
    """Return the folders of all endpoints of a sender's state."""
    return [StateFolder(path.parent) for path in sorted(Path(state).glob(f"*/{LETTERS}"))]
