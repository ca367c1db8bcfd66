"""The descriptors by which a puller has its turns taken."""

from collections.abc import Iterable
from typing import Protocol


class Watching(Protocol):
    """A thread, or an event loop."""

    stopping: bool

    def watch(self, fds: Iterable[int], /) -> None:
        """Have turns taken when one of these is readable, and no other."""

    def wake(self) -> None:
        """Have a turn taken soon."""


class Watches:
    """Keeps them together; nothing watches them before `begin`."""

    def __init__(self) -> None:
        self._fds: set[int] = set()
        self._driver: Watching | None = None

    def begin(self, driver: Watching) -> None:
        """Have them watched from now on."""
        self._driver = driver
        driver.watch(self._fds)

    def watch(self, fd: int) -> None:
        """Have a further descriptor watched."""
        self._fds.add(fd)
        self._update()

    def unwatch(self, fd: int) -> None:
        """Undo `watch`, before the descriptor is closed."""
        self._fds.discard(fd)
        self._update()

    def wake(self) -> None:
        """Have a turn taken soon."""
        if self._driver is not None:
            self._driver.wake()

    def _update(self) -> None:
        if self._driver is not None and not self._driver.stopping:
            self._driver.watch(self._fds)
