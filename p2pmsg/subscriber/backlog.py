"""What a subscriber asks a group for while datagrams lie unread. No I/O.

An answer comes after all that is unread. To ask for it again before that was read brings it twice,
to all receivers of the group.

::

    unread ──for UNREAD_NS──▶ backlog ──all was read──▶ as usual
      │ nothing is asked for    │ an answer is waited for as long as reading what is unread takes
                                └ a stream that misses much: asked for over the recovery channel
"""

from collections.abc import Iterable
from typing import Final

from p2pmsg.subscriber.gaps import GapScheduler, ReceiveWindow
from p2pmsg.subscriber.sessions import Session, Stream
from p2pmsg.subscriber.streams import HISTORY_MESSAGES

UNREAD_NS: Final = 1_000_000_000
"""How long unread datagrams put off losses, and questions: after that more comes than can be read.
It is also the longest wait for an answer that lies unread."""
_MUCH: Final = HISTORY_MESSAGES // 16
"""Who has a backlog and misses more messages than that misses them most likely alone."""


class Backlog:
    """Notes for how long datagrams have been unread, and how long reading them takes.

    Args:
        gaps: the streams that miss something.
        window: counts what was read.

    Attributes:
        lag_ns: how long an answer lies unread; 0: not long.
        has_backlog: whether there was more than could be read for `UNREAD_NS`.

    """

    def __init__(self, gaps: GapScheduler, window: ReceiveWindow) -> None:
        self._gaps = gaps
        self._window = window
        self._since_ns: int | None = None
        self._since_bytes = 0
        self.lag_ns = 0
        self.has_backlog = False

    def note(self, unread: int, peers: Iterable[Session], now_ns: int) -> bool:
        """Note how many bytes are unread; returns whether they put off questions and losses."""
        if not unread:
            self._since_ns = None
            self.has_backlog = False
            if self.lag_ns:
                self._caught_up(peers, now_ns)
            return False
        if self._since_ns is None:
            self._since_ns, self._since_bytes = now_ns, self._window.bytes_read
        elapsed_ns = now_ns - self._since_ns
        self.has_backlog = elapsed_ns >= UNREAD_NS
        if self.has_backlog:
            read = max(1, self._window.bytes_read - self._since_bytes)
            self.lag_ns = min(UNREAD_NS, unread * elapsed_ns // read)
        return not self.has_backlog

    def prepare(self, stream: Stream) -> None:
        """Prepare a stream of a group for being asked for."""
        if not self.has_backlog:
            return
        nacks, wait_ns = stream.receiver.nacks, self.lag_ns
        if nacks.missing_count > _MUCH:
            stream.history = max(stream.history, min(nacks.stop, stream.receiver.head))
            wait_ns = UNREAD_NS  # TCP loses nothing, and there is much that is on its way
        if stream.peer.feedback is not None:
            stream.peer.feedback.unread_ns = wait_ns

    def _caught_up(self, peers: Iterable[Session], now_ns: int) -> None:
        self.lag_ns = 0
        for peer in peers:
            if peer.feedback is not None:
                peer.feedback.unread_ns = 0
        for stream in self._gaps:
            if stream.peer.feedback is not None:
                stream.receiver.nacks.caught_up(now_ns=now_ns)
                self._gaps.note(stream)
