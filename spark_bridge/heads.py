"""What the peers have, followed in the background, and where in it a query starts and ends.

An unreachable peer delays no batch.
"""

import logging
import os
import time
from contextlib import suppress
from typing import Final

import p2pmsg
from spark_bridge.errors import BridgeError, OptionError
from spark_bridge.keys import security_of
from spark_bridge.options import SourceOptions, read_peers_file
from spark_bridge.selection import Start, known_topics
from spark_bridge.session_directory import SessionDirectory

FIRST_WAIT_SECONDS: Final = 2.0
"""How long the first look waits for peers; one that has not answered by then joins later."""
_REREAD_SECONDS: Final = 1.0
_AT_TIME_SECONDS: Final = 5.0
_log: Final = logging.getLogger("spark_bridge")


class PeersWatch:
    """The heads of several peers, with their former sessions; follows the file of peers."""

    def __init__(self, options: SourceOptions) -> None:
        self._file = options.peers_file
        self._changed_at = 0
        self._reread_at = 0.0
        endpoints = options.endpoints()
        self._directory = SessionDirectory({})
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
        version = self._watch.version
        if version != self._version:
            self._version = version
            views, before = self._watch.heads(), self._directory.views
            for endpoint, view in views.items():
                self._report(endpoint, view, before.get(endpoint))
            self._directory = SessionDirectory(views)
        return self._directory

    def reasons(self) -> dict[str, str]:
        """Return why peers cannot be asked, by endpoint, where that is known."""
        return {at: view.unanswered for at, view in self._watch.heads().items() if view.unanswered}

    def close(self) -> None:
        """Close the sockets."""
        self._watch.close()

    def _report(
        self,
        endpoint: str,
        view: p2pmsg.reader.EndpointHeads,
        before: p2pmsg.reader.EndpointHeads | None,
    ) -> None:
        """Log what has changed at an endpoint that a user of the query wants to know."""
        known = {} if before is None else before.former
        for heads in (each for session, each in view.former.items() if session not in known):
            what = "is no longer at the relay" if view.is_relay else "has restarted"
            _log.warning(
                "publisher %r at %s %s (session %016x)",
                heads.publisher, endpoint, what, heads.session,
            )  # fmt: skip
        if view.reachable and endpoint in self._warned:
            self._warned.discard(endpoint)
            _log.warning("peer %s is reachable again", endpoint)
        elif not view.reachable and endpoint not in self._warned:
            self._warned.add(endpoint)
            why = f" ({view.unanswered})" if view.unanswered else ""
            _log.warning("peer %s is not reachable%s; it keeps its place", endpoint, why)

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
    topics, security = known_topics(options), security_of(options.keys)
    with p2pmsg.reader.HeadsWatch(
        options.endpoints(), topics=topics, time_ns=time_ns, security=security
    ) as watch:
        with suppress(p2pmsg.errors.AccessDeniedError):
            watch.wait_until_asked(_AT_TIME_SECONDS)
        answers = watch.heads()

    def start(endpoint: str, topic: str, heads: p2pmsg.reader.Heads) -> int:
        view = answers.get(endpoint)
        asked = None if view is None else view.sessions.get(heads.session)
        if asked is None:  # the earliest would be too much
            raise BridgeError(
                f"{endpoint} was there and has not said within {_AT_TIME_SECONDS:g} s where its "
                f"streams stood at {time_ns / 1e6:.0f} ms (startingTimestamp, endingTimestamp). "
                "Start again when it answers"
            )
        stream = asked.streams.get(topic)
        if stream is None:
            return 0
        return stream.next if stream.first_at is None else min(stream.first_at, stream.next)

    return start
