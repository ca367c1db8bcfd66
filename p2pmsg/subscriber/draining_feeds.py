"""Keeps asking for what is missing of a feed's session when the feed's next one has begun.

A publisher's session that another one has replaced is over: nobody answers for it. The request
servers of a feed go on answering, for a request names its session.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.sessions import Session

if TYPE_CHECKING:
    from p2pmsg.mold.feed import SessionAnnounced

FORMER_MAX: Final = 4
"""Sessions that are asked for at once and that no line has any more."""


class Joiner(Protocol):
    """Owns the sessions, and ends them."""

    @property
    def lines(self) -> Sequence[Connection]:
        """The connections of the data path."""

    @property
    def peers(self) -> Mapping[int, Session]:
        """The sessions by their ids."""

    def end_peer(self, peer: Session, now_ns: int) -> None:
        """End a session whose place another one has taken."""


class DrainingFeeds:
    """The sessions of feeds that no line has any more, and of which something is missing.

    Args:
        joiner: owns the sessions.

    """

    def __init__(self, joiner: Joiner) -> None:
        self._joiner = joiner
        self._kept: dict[int, None] = {}

    def __contains__(self, session: int) -> bool:
        return session in self._kept

    def replace(self, former: int | None, feed: "SessionAnnounced", now_ns: int) -> int | None:
        """Return the session that a line had, unless another line still has it, or None.

        It ends: now, where nothing of it can be asked for, or is missing; else when that has come
        or is lost. Of a name that begins again, the servers have the new session's messages.
        """
        peers = self._joiner.peers
        self._kept.pop(feed.session, None)
        for session in [*self._kept]:
            if session not in peers or peers[session].name == feed.name:
                self._end(session, now_ns)
        lines = self._joiner.lines
        if former is None or former not in peers or any(one.session == former for one in lines):
            return None
        peer = peers[former]
        if not (feed.can_ask and peer.missing) or peer.gone or peer.name == feed.name:
            self._joiner.end_peer(peer, now_ns)
            return former
        self._kept[former] = None
        if len(self._kept) > FORMER_MAX:
            self._end(next(iter(self._kept)), now_ns)
        return former

    def check(self, now_ns: int) -> None:
        """End those of which nothing is missing any more."""
        peers = self._joiner.peers
        for session in [*self._kept]:
            if session not in peers or not peers[session].missing:
                self._end(session, now_ns)

    def _end(self, session: int, now_ns: int) -> None:
        del self._kept[session]
        peer = self._joiner.peers.get(session)
        if peer is not None and not peer.gone:
            self._joiner.end_peer(peer, now_ns)
