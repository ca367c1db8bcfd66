"""What the peers have, followed in the background so that an unreachable one delays nobody."""

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import p2pmsg
from spark_bridge.errors import OptionError
from spark_bridge.offsets import PeerView
from spark_bridge.options import SourceOptions, read_peers_file
from spark_bridge.selection import Selection

_FIRST_WAIT_SECONDS: Final = 2.0
"""How long the first look waits for peers; who has not answered by then joins later."""
_REREAD_SECONDS: Final = 1.0
_FORMER_MAX: Final = 8
_THREADS_MAX: Final = 32
_log: Final = logging.getLogger("spark_bridge")


class PeersWatch:
    """The heads of several peers, what came before them, and who they are if a file says it.

    Args:
        options: the peers, and how old their heads may be.
        selection: which topics are of interest.

    """

    def __init__(self, options: SourceOptions, selection: Selection) -> None:
        self._file = options.peers_file
        self._changed_at = _changed_at(self._file)
        self._reread_at = 0.0
        self._views: dict[str, PeerView] = {peer: PeerView() for peer in options.peers}
        self._warned: set[str] = set()
        self._fresh = True
        self._watch = p2pmsg.HeadsWatch(
            options.peers, topics=selection.known_topics, refresh=options.headRefreshMs / 1000
        )

    def views(self) -> dict[str, PeerView]:
        """Return what is known of each peer; it waits for those that have never been asked only."""
        self._reread()
        if self._fresh:
            self._fresh = False
            self._watch.wait_until_asked(_FIRST_WAIT_SECONDS)
        self._views = {
            endpoint: self._view(endpoint, heads) for endpoint, heads in self._watch.heads().items()
        }
        return self._views

    def close(self) -> None:
        """Close the sockets."""
        self._watch.close()

    def _view(self, endpoint: str, heads: p2pmsg.Heads | None) -> PeerView:
        view = self._views.get(endpoint, PeerView())
        reachable = self._watch.is_reachable(endpoint)
        self._tell(endpoint, reachable)
        if heads is view.heads and reachable == view.reachable:
            return view
        former, born = view.former, view.born
        if heads is not None and view.heads is not None:
            if heads.session == view.heads.session:
                born = born | (heads.streams.keys() - view.heads.streams.keys())
            else:
                _log.warning("publisher %r at %s has restarted", heads.publisher, endpoint)
                former, born = (*former, view.heads)[-_FORMER_MAX:], frozenset()
        return PeerView(heads, former, born, reachable)

    def _tell(self, endpoint: str, reachable: bool) -> None:
        if reachable and endpoint in self._warned:
            self._warned.discard(endpoint)
            _log.warning("peer %s is reachable again", endpoint)
        elif not reachable and endpoint not in self._warned:
            self._warned.add(endpoint)
            _log.warning("peer %s is not reachable; it keeps its place", endpoint)

    def _reread(self) -> None:
        """Take up what has changed in the file of peers; a bad one changes nothing."""
        now = time.monotonic()
        if self._file is None or now < self._reread_at:
            return
        self._reread_at = now + _REREAD_SECONDS
        changed_at = _changed_at(self._file)
        if changed_at == self._changed_at:
            return
        self._changed_at = changed_at
        try:
            peers = read_peers_file(self._file)
        except OptionError as error:
            _log.warning("%s; the peers stay as they were", error)
            return
        if peers:
            self._watch.set_endpoints(peers)


def ask_once(
    peers: tuple[str, ...], timeout: float, *, time_ns: int | None = None
) -> dict[str, p2pmsg.Heads]:
    """Return the heads of those peers that answer in time."""

    def ask(peer: str) -> p2pmsg.Heads | None:
        with p2pmsg.RangeReader(peer, timeout=timeout) as reader:
            try:
                return reader.heads(time_ns=time_ns)
            except TimeoutError:
                return None

    if not peers:
        return {}
    with ThreadPoolExecutor(min(_THREADS_MAX, len(peers))) as pool:
        found = dict(zip(peers, pool.map(ask, peers), strict=True))
    return {peer: heads for peer, heads in found.items() if heads is not None}


def _changed_at(path: str | None) -> tuple[int, int] | None:
    try:
        status = None if path is None else os.stat(path)
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size)
