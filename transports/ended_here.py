"""Which connections of a bound socket libzmq has ended by itself, while their peers were there.

Its monitor reports the end of a connection, and not who ended it: a peer that went looks like one
that sent a part above `ZMQ_MAXMSGSIZE`. So each connection has a second descriptor here. libzmq
closes its own, which ends nothing then, and the second one shows whether the peer is there.
"""

import os
import select
from typing import Final

_FOLLOWED_MAX: Final = 256
"""Each takes a descriptor more. Of further connections nothing is known."""
_GONE: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL


class EndedHere:
    """Follows the connections of one socket, by what its monitor reports.

    The number of a descriptor that has been closed is soon another connection's. So a second one is
    made by `follow`, and is good once all that was reported before has been read: `confirm`.

    Attributes:
        count: connections that ended while their peers were there.

    """

    def __init__(self) -> None:
        self.count = 0
        self._new: set[int] = set()
        self._unsure: dict[int, int] = {}
        self._followed: dict[int, int] = {}

    def came(self, fd: int) -> None:
        """Note that libzmq has a connection of this descriptor."""
        self._drop(fd)
        self._new.add(fd)

    def went(self, fd: int) -> None:
        """Note that it has ended; the peer that is there gets to know it by this."""
        own = self._followed.get(fd)
        if own is not None:
            poller = select.poll()
            poller.register(own, _GONE)
            self.count += not poller.poll(0)
        self._drop(fd)

    def follow(self) -> bool:
        """Make the descriptors for those that came; return whether to read on, and `confirm`."""
        new, self._new = self._new, set()
        for fd in new:
            if len(self._followed) + len(self._unsure) >= _FOLLOWED_MAX:
                break
            try:
                self._unsure[fd] = os.dup(fd)
            except OSError:
                continue  # it has been closed meanwhile, or no descriptor is left
        return bool(self._unsure)

    def confirm(self) -> None:
        """Note that all was read that was reported before `follow` returned."""
        self._followed.update(self._unsure)
        self._unsure.clear()

    def close(self) -> None:
        """Follow nothing any more."""
        self.confirm()
        for fd in [*self._followed]:
            self._drop(fd)
        self._new.clear()

    def _drop(self, fd: int) -> None:
        self._new.discard(fd)
        own = self._followed.pop(fd, None)
        if own is None:
            own = self._unsure.pop(fd, None)
        if own is not None:
            os.close(own)
