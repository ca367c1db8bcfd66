"""Makes space for new sessions and streams: those that ended first are forgotten first."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from p2pmsg.control import Welcome
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.sessions import Session
from p2pmsg.subscriber.streams import StreamTable
from p2pmsg.wire import FrameError

PEERS_MAX = 4096
"""Sessions known at once."""
_WARN_NS: Final = 60_000_000_000


_HEADERS_BYTES: Final = 512
"""More than a frame has in addition to its only message: topic, header, ends of columns."""


def large_text(welcome: Welcome, limit: int) -> str:
    """Return a warning where a publisher may send messages above `limit`; else ""."""
    most = welcome.message_bytes_max
    is_multicast = welcome.receivers >= 0  # there, messages come in parts
    if not most or most + _HEADERS_BYTES <= limit or is_multicast:
        return ""
    return (
        f"publisher {welcome.name!r} may send messages of {most:,} bytes (its "
        f"message_bytes_max); with headers, what is larger than frame_bytes_max ({limit:,} "
        "bytes, SubscriberConfig) is lost here, as too_large"
    )


class Space:
    """Forgets sessions that have ended, with their streams, where there are as many as may be.

    Args:
        peers: the sessions by their ids.
        table: their streams, which asks for space here.
        effects: gets the warnings.
        invalid: the frames that were refused, by reason.
        forget: forgets a session.

    """

    def __init__(
        self,
        peers: Mapping[int, Session],
        table: StreamTable,
        effects: Effects,
        invalid: Counter[str],
        forget: Callable[[int], None],
    ) -> None:
        self._peers = peers
        self._table = table
        self._effects = effects
        self._invalid = invalid
        self._forget = forget
        self._ended: dict[int, None] = {}
        self._due_ns = self._logged = 0
        table.make_space = self._for_stream

    def on_end(self, session: int) -> None:
        """Note that a session has ended; it may come back."""
        self._ended.pop(session, None)
        self._ended[session] = None

    def on_forgotten(self, session: int) -> None:
        """Note that a session is not known any more."""
        self._ended.pop(session, None)

    def for_session(self) -> None:
        """Forget the session that ended first if there are too many; `FrameError` if none has."""
        if len(self._peers) >= PEERS_MAX and not self._forget_first(None):
            raise FrameError("peers_max")

    def _for_stream(self, peer: Session) -> bool:
        """Forget other sessions than `peer` until there is space; return whether there is."""
        while self._table.is_full:
            if not self._forget_first(peer):
                return False
        return True

    def _forget_first(self, but: Session | None) -> bool:
        for session in [*self._ended]:
            peer = self._peers[session]
            if peer is but:
                continue
            del self._ended[session]
            if peer.gone:
                self._forget(session)
                return True
        return False

    def warn(self, now_ns: int) -> None:
        """Say that sessions or streams were refused, at the first time and then once a minute."""
        sessions, streams = self._invalid["peers_max"], self._invalid["streams_max"]
        if sessions + streams > self._logged and now_ns >= self._due_ns:
            self._logged, self._due_ns = sessions + streams, now_ns + _WARN_NS
            most = f"{self._table.config.streams_max:,} streams (`streams_max`) of {PEERS_MAX:,}"
            self._effects.warn(
                -1, 0,
                f"there are as many as may be, {most} publishers' sessions, and none has ended: "
                f"frames of others were refused, {streams:,} of streams and {sessions:,} of "
                f"sessions, so that their messages are neither delivered nor reported lost",
            )  # fmt: skip
