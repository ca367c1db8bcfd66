"""What the peers have, followed in the background, and where in it a query starts and ends.

An unreachable peer delays no batch.
"""

import logging
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import p2pmsg
from spark_bridge import offsets
from spark_bridge.errors import BridgeError, OptionError
from spark_bridge.keys import Keys, security_of
from spark_bridge.options import SourceOptions, read_peers_file
from spark_bridge.selection import Selection, Start, at_offsets
from spark_bridge.session_directory import NO_TOPICS, PeerView

FIRST_WAIT_SECONDS: Final = 2.0
"""How long the first look waits for peers; one that has not answered by then joins later."""
FIRST_WAIT_STRICT_SECONDS: Final = 5.0
"""The same where a peer that is away fails the query: a slow one must not."""
_REREAD_SECONDS: Final = 1.0
_FORMER_MAX: Final = 256
"""How many ended sessions of an endpoint are remembered, with their last heads."""
_THREADS_MAX: Final = 32
_PAUSE_SECONDS: Final = 0.05
_GRACE_SECONDS: Final = 5.0
"""How long a session may be missing at a relay before it has ended: a relay that was started again
connects to its publishers one after the other."""
_AT_TIME_SECONDS: Final = 5.0
_log: Final = logging.getLogger("spark_bridge")


class PeersWatch:
    """The heads of several peers, with their former sessions; follows the file of peers."""

    def __init__(self, options: SourceOptions, selection: Selection) -> None:
        self._file = options.peers_file
        self._changed_at = _changed_at(self._file)
        self._reread_at = 0.0
        self._views: dict[str, PeerView] = {peer: PeerView() for peer in options.peers}
        self._missing: dict[tuple[str, int], float] = {}
        self._warned: set[str] = set()
        self._fresh = True
        self._first_wait = (
            FIRST_WAIT_STRICT_SECONDS if options.failOnPeerAway else FIRST_WAIT_SECONDS
        )
        self._version = -1
        self._has_pattern = selection.pattern is not None
        topics = selection.known_topics if options.keys is None else selection.asked()
        self._watch = p2pmsg.reader.HeadsWatch(
            options.peers, topics=topics, refresh=options.headRefreshMs / 1000,
            security=security_of(options.keys),
        )  # fmt: skip

    def views(self) -> dict[str, PeerView]:
        """Return what is known of each peer; the same dict as before where that has not changed.

        It waits only for peers that have never been asked.

        Raises:
            p2pmsg.errors.AccessDeniedError: one of those gives no right to a topic.

        """
        self._reread()
        if self._fresh:
            self._fresh = False
            try:
                self._watch.wait_until_asked(self._first_wait)
            except p2pmsg.errors.AccessDeniedError:
                if not self._has_pattern:  # of a pattern, what may be had is read
                    raise
        version = self._watch.version
        if version == self._version and not self._missing:
            return self._views
        self._version = version
        denied = self._watch.denied()
        views = {
            endpoint: self._view(endpoint, found, denied.get(endpoint, ()))
            for endpoint, found in self._watch.sessions().items()
        }
        known = self._views
        if len(views) != len(known) or any(known.get(each) is not views[each] for each in views):
            self._views = views
        return self._views

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
        view = self._views.get(endpoint, PeerView())
        reachable = self._watch.is_reachable(endpoint)
        self._report(endpoint, reachable)
        sessions = view.sessions if found is None else {heads.session: heads for heads in found}
        is_relay = self._watch.is_relay(endpoint)
        if is_relay:
            sessions = self._with_missing(endpoint, view, dict(sessions))
        denied = {error.topic: error for error in errors}
        if (
            view.reachable == reachable
            and _same(view.sessions, sessions)
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

    def _with_missing(
        self, endpoint: str, view: PeerView, sessions: dict[int, p2pmsg.reader.Heads]
    ) -> dict[int, p2pmsg.reader.Heads]:
        """Return a relay's sessions with those that it has not had for a short time only."""
        now = time.monotonic()
        for session, heads in view.sessions.items():
            if session in sessions:
                self._missing.pop((endpoint, session), None)
            elif now - self._missing.setdefault((endpoint, session), now) < _GRACE_SECONDS:
                sessions[session] = heads
            else:
                del self._missing[endpoint, session]
        return sessions

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
        changed_at = _changed_at(self._file)
        if changed_at == self._changed_at:
            return
        self._changed_at = changed_at
        try:
            peers = read_peers_file(self._file)
            if peers:
                self._watch.set_endpoints(peers)
                self._missing.clear()
        except (OptionError, p2pmsg.errors.SecurityError) as error:
            _log.warning("%s; the peers stay as they were", error)


@dataclass(slots=True)
class Answer:
    """What one peer has said when it was asked once.

    Attributes:
        heads: of its sessions; empty where it gave no answer, or denies everything.
        denied: by topic, or prefix with a `*`, what it gives no right to, of what was asked for.
        reason: why it gave no answer; "" where that is not known.
        refused: whether it refuses our key, or does not hold the one that is pinned.

    """

    heads: tuple[p2pmsg.reader.Heads, ...] = ()
    denied: dict[str, p2pmsg.errors.AccessDeniedError] = field(default_factory=dict)
    reason: str = ""
    refused: bool = False

    @property
    def is_silent(self) -> bool:
        """Whether nothing is known of what the peer has."""
        return not (self.heads or self.denied)


def ask_once(
    peers: tuple[str, ...], timeout: float, *, time_ns: int | None = None, keys: Keys | None = None
) -> dict[str, tuple[p2pmsg.reader.Heads, ...]]:
    """Return the heads of all sessions at those peers that answer in time."""
    answers = ask_peers(peers, timeout, time_ns=time_ns, keys=keys)
    return {peer: answer.heads for peer, answer in answers.items() if answer.heads}


def ask_peers(
    peers: tuple[str, ...],
    timeout: float,
    *,
    time_ns: int | None = None,
    keys: Keys | None = None,
    topics: tuple[str, ...] = (),
) -> dict[str, Answer]:
    """Ask all peers for the heads of all their sessions, and return what each has said in time.

    One that refuses our key, or does not hold the one that is pinned, is logged.

    Args:
        peers: endpoints.
        timeout: in seconds.
        time_ns: fill in `StreamHead.first_at`, too.
        keys: of the query. Default: none, and nothing is denied.
        topics: topics, and prefixes with a `*`, of which to ask whether they are denied.

    """
    security = security_of(keys)
    deadline = time.monotonic() + timeout
    wanted = None if security is None or not topics else (*topics, "*")

    def ask(peer: str) -> Answer:
        answer = Answer()
        with p2pmsg.reader.RangeReader(peer, timeout=timeout, security=security) as reader:
            try:
                while not (entries := reader.sessions(_left(deadline))):
                    time.sleep(_PAUSE_SECONDS)  # a relay that has just started
                found = []
                for each in entries:
                    found.append(
                        reader.heads(
                            _left(deadline), time_ns=time_ns, session=each.session, topics=wanted
                        )
                    )
                    answer.denied |= {
                        topic: reader.denied[topic] for topic in topics if topic in reader.denied
                    }
                answer.heads = tuple(found)
            except TimeoutError:
                answer.reason = reader.unanswered
            except p2pmsg.errors.AccessDeniedError as error:
                answer.denied[error.topic] = error
            except p2pmsg.errors.SecurityError as error:
                _log.warning("%s", error)
                answer.reason, answer.refused = str(error).removeprefix(f"{peer}: "), True
        return answer

    if not peers:
        return {}
    with ThreadPoolExecutor(min(_THREADS_MAX, len(peers))) as pool:
        return dict(zip(peers, pool.map(ask, peers), strict=True))


def start_of(options: SourceOptions, default: str) -> Start:
    """Return where streams start by `startingTimestamp` or `startingOffsets`.

    Args:
        options: of the query.
        default: `latest` or `earliest`, where the options do not say, or do not name a stream.

    """
    if options.startingTimestamp is not None:
        return _at_time(options, options.startingTimestamp)
    return at_offsets(options.startingOffsets, default)


def end_of(options: SourceOptions) -> Start:
    """Return where the streams of a batch end by `endingTimestamp` or `endingOffsets`."""
    if options.endingTimestamp is not None:
        return _at_time(options, options.endingTimestamp)
    return at_offsets(options.endingOffsets, "latest")


def _at_time(options: SourceOptions, time_ns: int) -> Start:
    answers = ask_once(options.peers, _AT_TIME_SECONDS, time_ns=time_ns, keys=options.keys)
    heads_at = {
        (endpoint, heads.session): heads for endpoint, found in answers.items() for heads in found
    }

    def start(endpoint: str, topic: str, heads: p2pmsg.reader.Heads) -> int:
        asked = heads_at.get((endpoint, heads.session))
        if endpoint not in answers:  # the earliest would be too much; as an end, nothing
            raise BridgeError(
                f"{endpoint} was there and has not said within {_AT_TIME_SECONDS:g} s where its "
                f"streams stood at {time_ns / 1e6:.0f} ms (startingTimestamp, endingTimestamp). "
                "Start again when it answers"
            )
        if asked is None:
            return offsets.earliest(endpoint, topic, heads)
        stream = asked.streams.get(topic)
        if stream is None:
            return 0
        return stream.next if stream.first_at is None else min(stream.first_at, stream.next)

    return start


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return max(left, 0.001)


def _same(
    before: Mapping[int, p2pmsg.reader.Heads], now: Mapping[int, p2pmsg.reader.Heads]
) -> bool:
    return before.keys() == now.keys() and all(before[session] is now[session] for session in now)


def _changed_at(path: str | None) -> tuple[int, int] | None:
    try:
        status = None if path is None else os.stat(path)
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size)
