"""What the peers have, asked for in the background so that an unreachable one delays nobody."""

import contextlib
import logging
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

import p2pmsg
from spark_bridge.offsets import PeerView

_ASK_SECONDS: Final = 1.0
_BACKOFF_SECONDS: Final = 1.0
"""A peer that gave no answer is asked again after this pause."""
_THREADS_MAX: Final = 32
_FORMER_MAX: Final = 8
_log: Final = logging.getLogger("spark_bridge")


class _Peer:
    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.view = PeerView()
        self.asking: Future[None] | None = None
        self.asked = False
        self.reachable = False
        self.due = 0.0
        self._reader: p2pmsg.RangeReader | None = None

    def ask(self, refresh_seconds: float) -> None:
        """Ask once, in a thread of the pool; one at a time."""
        try:
            if self._reader is None:
                self._reader = p2pmsg.RangeReader(self.endpoint)
            heads = self._reader.heads(_ASK_SECONDS)
        except (TimeoutError, p2pmsg.P2PError) as error:
            if self.reachable or not self.asked:
                _log.warning("peer %s is not reachable: %s", self.endpoint, error)
            self.reachable, self.asked = False, True
            self.due = time.monotonic() + _BACKOFF_SECONDS
            return
        view = self.view
        former = view.former
        if view.heads is not None and view.heads.session != heads.session:
            _log.warning("publisher %r at %s has restarted", heads.publisher, self.endpoint)
            former = (*former, view.heads)[-_FORMER_MAX:]
        self.view = PeerView(heads, former)
        self.reachable = self.asked = True
        self.due = time.monotonic() + refresh_seconds

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class HeadsWatch:
    """The heads of several peers, no older than `refresh_seconds` where a peer answers.

    Args:
        endpoints: of the peers.
        refresh_seconds: how old heads may be.

    """

    def __init__(self, endpoints: Iterable[str], refresh_seconds: float) -> None:
        self._peers = [_Peer(endpoint) for endpoint in endpoints]
        self._refresh_seconds = refresh_seconds
        threads = min(_THREADS_MAX, len(self._peers))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="spark-bridge-heads")

    def views(self, *, first_wait: float = 2.0, wait_seconds: float = 0.5) -> dict[str, PeerView]:
        """Return what is known of each peer.

        Args:
            first_wait: how long to wait for peers that have never been asked.
            wait_seconds: how long to wait for peers that answered last time.

        """
        now = time.monotonic()
        new, usual = [], []
        for peer in self._peers:
            if peer.asking is not None and peer.asking.done():
                peer.asking.result()
                peer.asking = None
            if peer.asking is None and now >= peer.due:
                peer.asking = self._pool.submit(peer.ask, self._refresh_seconds)
            if peer.asking is not None:
                if not peer.asked:
                    new.append(peer.asking)
                elif peer.reachable:
                    usual.append(peer.asking)
        if usual:
            wait(usual, wait_seconds)
        if new:
            wait(new, first_wait)
        return {peer.endpoint: peer.view for peer in self._peers}

    def close(self) -> None:
        """Close the sockets of all peers that are not being asked at the moment."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for peer in self._peers:
            if peer.asking is None or peer.asking.done():
                with contextlib.suppress(p2pmsg.P2PError):
                    peer.close()
