"""What the peers have, followed in the background, and where in it a query starts and ends.

An unreachable peer delays no batch.
"""

import logging
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import p2pmsg
from spark_bridge import offsets
from spark_bridge.errors import BridgeError, OptionError
from spark_bridge.keys import security_of
from spark_bridge.options import SourceOptions, read_peers_file
from spark_bridge.selection import Start, known_topics
from spark_bridge.session_directory import NO_TOPICS, PeerView, SessionDirectory

FIRST_WAIT_SECONDS: Final = 2.0
"""How long the first look waits for peers; one that has not answered by then joins later."""
_REREAD_SECONDS: Final = 1.0
_FORMER_MAX: Final = 256
"""How many ended sessions of an endpoint are remembered, with their last heads."""
_THREADS_MAX: Final = 32
_AT_TIME_SECONDS: Final = 5.0
_log: Final = logging.getLogger("spark_bridge")


class PeersWatch:
    """The heads of several peers, with their former sessions; follows the file of peers."""

    def __init__(self, options: SourceOptions) -> None:
        self._file = options.peers_file
        self._changed_at = 0
        self._reread_at = 0.0
        endpoints = options.endpoints()
        self._directory = SessionDirectory({peer: PeerView() for peer in endpoints})
        self._warned: set[str] = set()
        self._fresh = True
        self._version = -1
        self._watch = p2pmsg.reader.HeadsWatch(
            endpoints, topics=known_topics(options), security=security_of(options.keys)
        )

    def directory(self) -> SessionDirectory:
        """Return what is known of the peers; the same object as before where nothing has changed.

        It waits only for peers that have never been asked.

        Raises:
            p2pmsg.errors.AccessDeniedError: one of those gives no right to a topic.

        """
        self._reread()
        if self._fresh:
            self._fresh = False
            self._watch.wait_until_asked(FIRST_WAIT_SECONDS)
        known, version = self._directory.views, self._watch.version
        if version == self._version:
            return self._directory
        self._version = version
        denied = self._watch.denied()
        views = {
            endpoint: self._view(endpoint, found, denied.get(endpoint, ()))
            for endpoint, found in self._watch.sessions().items()
        }
        if len(views) != len(known) or any(known.get(each) is not views[each] for each in views):
            self._directory = SessionDirectory(views)
        return self._directory

    def reasons(self) -> dict[str, str]:
        """Return why peers cannot be asked, by endpoint, where that is known."""
        return self._watch.unanswered()

    def close(self) -> None:
        """Close the sockets."""
        self._watch.close()

    def _view(
        self,
        endpoint: str,
        found: tuple[p2pmsg.reader.Heads, ...] | None,
        errors: Iterable[p2pmsg.errors.AccessDeniedError],
    ) -> PeerView:
        view = self._directory.views.get(endpoint, PeerView())
        reachable = self._watch.is_reachable(endpoint)
        self._report(endpoint, reachable)
        sessions = view.sessions if found is None else {heads.session: heads for heads in found}
        is_relay = self._watch.is_relay(endpoint)
        denied = {error.topic: error for error in errors}
        if (
            view.reachable == reachable
            and view.sessions == sessions
            and view.denied.keys() == denied.keys()
        ):
            return view
        gone = tuple(heads for session, heads in view.sessions.items() if session not in sessions)
        for heads in gone:
            what = "is no longer at the relay" if is_relay else "has restarted"
            _log.warning(
                "publisher %r at %s %s (session %016x)",
                heads.publisher, endpoint, what, heads.session,
            )  # fmt: skip
        born = {
            session: view.born.get(session, NO_TOPICS)
            | (heads.streams.keys() - view.sessions[session].streams.keys())
            for session, heads in sessions.items()
            if session in view.sessions
        }
        former = tuple(heads for heads in view.former if heads.session not in sessions)
        kept = (*former, *gone)[-_FORMER_MAX:]
        return PeerView(sessions, kept, born, reachable, is_relay, denied)

    def _report(self, endpoint: str, reachable: bool) -> None:
        if reachable and endpoint in self._warned:
            self._warned.discard(endpoint)
            _log.warning("peer %s is reachable again", endpoint)
        elif not reachable and endpoint not in self._warned:
            self._warned.add(endpoint)
            why = self.reasons().get(endpoint)
            _log.warning(
                "peer %s is not reachable%s; it keeps its place", endpoint,
                f" ({why})" if why else "",
            )  # fmt: skip

    def _reread(self) -> None:
        """Read the file of peers again if it has changed; a bad one changes nothing."""
        now = time.monotonic()
        if self._file is None or now < self._reread_at:
            return
        self._reread_at = now + _REREAD_SECONDS
        try:
            changed_at = os.stat(self._file).st_mtime_ns
            if changed_at == self._changed_at:
                return
            self._changed_at = changed_at
            peers = read_peers_file(self._file)
            if peers:
                self._watch.set_endpoints(peers)
        except OSError:
            return  # it is being replaced
        except (OptionError, p2pmsg.errors.SecurityError) as error:
            _log.warning("%s; the peers stay as they were", error)


def at_time(options: SourceOptions, time_ns: int) -> Start:
    """Return where streams stood at a time, by what the peers say now."""
    peers, security = options.endpoints(), security_of(options.keys)
    deadline = time.monotonic() + _AT_TIME_SECONDS

    def left() -> float:
        return max(deadline - time.monotonic(), 0.001)

    def ask(peer: str) -> dict[int, p2pmsg.reader.Heads]:
        with p2pmsg.reader.RangeReader(peer, timeout=left(), security=security) as reader:
            return {
                each.session: reader.heads(left(), time_ns=time_ns, session=each.session)
                for each in reader.sessions(left())
            }

    with ThreadPoolExecutor(_THREADS_MAX) as pool:
        answers = {peer: pool.submit(ask, peer) for peer in peers}

    def start(endpoint: str, topic: str, heads: p2pmsg.reader.Heads) -> int:
        try:
            asked = answers[endpoint].result().get(heads.session)
        except (KeyError, TimeoutError, p2pmsg.P2PError) as error:  # the earliest would be too much
            raise BridgeError(
                f"{endpoint} was there and has not said within {_AT_TIME_SECONDS:g} s where its "
                f"streams stood at {time_ns / 1e6:.0f} ms (startingTimestamp, endingTimestamp). "
                "Start again when it answers"
            ) from error
        if asked is None:
            return offsets.earliest(endpoint, topic, heads)
        stream = asked.streams.get(topic)
        if stream is None:
            return 0
        return stream.next if stream.first_at is None else min(stream.first_at, stream.next)

    return start
