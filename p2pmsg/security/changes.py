"""Says when rights have changed, to who follows them."""

from typing import Protocol


class Changing(Protocol):
    """Rights that change; `rights.Rights` are such, and `revoked.Unlimited`."""

    version: int

    def refresh(self) -> bool:
        """Look at the files, once a second at most; return whether anything changed."""


class RightsChanges:
    """Compares the version of rights with that of the last call.

    Args:
        rights: whose changes are to be followed.

    """

    __slots__ = ("_rights", "_version")

    def __init__(self, rights: Changing) -> None:
        self._rights = rights
        self._version = rights.version

    def look(self) -> bool:
        """Look at the files, and do as `check`; for owners without a lock that others wait for."""
        self._rights.refresh()
        return self.check()

    def check(self) -> bool:
        """Return whether the rights have changed since the last call."""
        if self._rights.version == self._version:
            return False
        self._version = self._rights.version
        return True
