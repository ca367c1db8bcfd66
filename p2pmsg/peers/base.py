"""What the faces of all peers share: how they make their peer, and what never waits."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from p2pmsg.checks import shown
from p2pmsg.peers.network import Network, here

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

R = TypeVar("R")


class FaceBase:
    """The base of both faces of a peer; each adds a `ThreadFace` or a `LoopFace`."""

    _driver: Any
    _network: Network
    _peer: Any
    _open: Any

    def _begin(self, peer: Callable[..., Any], *arguments: Any) -> None:
        """Have `peer(*arguments, network)` driven from now on; the last step of a constructor."""
        self._network = here()
        self._open(partial(peer, *arguments, self._network))

    def _read(self, call: Callable[..., R], *arguments: Any) -> R:
        """Return what only reads the peer, also after it was closed."""
        found: R = self._driver.section.read(call, *arguments)
        return found

    @property
    def _closed(self) -> bool:
        return bool(self._peer.is_closed)

    def __repr__(self) -> str:
        return shown(self, lambda: self._peer.places)


class BoundBase(FaceBase):
    """The base of peers that others connect to."""

    _security: "Security | None"

    @property
    def endpoint(self) -> str:
        """Where others connect to, with the port that was picked."""
        places: str = self._peer.places
        return places

    def revoke(self, who: str) -> list[str]:
        """Admit a peer no more: its connections are ended, and it is sent nothing.

        It returns at once; the connections are ended in the next turn, within some ms. Jobs that it
        had go to others, and what it says of them does not count any more. It holds for all peers
        that were given the same `Security`, while the process runs: take the peer out of the files
        as well. Others lose nothing.

        Args:
            who: the name of a peer that is known, or its public key as text.

        Returns:
            The public keys that were revoked, as text.

        Raises:
            ConfigError: there is no `security`, or no such peer.
            ClosedError: it is closed.

        """
        from p2pmsg.security.access_watch import revoke_here

        self._driver.check_caller()
        self._driver.section.run(self._peer.check_open)
        users = revoke_here(self._security, who)
        self._driver.wake()
        return users
