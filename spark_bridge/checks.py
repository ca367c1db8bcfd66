"""What a stream refuses or warns of before it reads: names that nobody has, peers that are away."""

import logging
import time
from collections.abc import Callable
from typing import Final

from spark_bridge import naming
from spark_bridge.errors import OptionError, PeerUnavailableError
from spark_bridge.offsets import Positions
from spark_bridge.options import SourceOptions
from spark_bridge.selection import Selection
from spark_bridge.session_directory import SessionDirectory

_NAMES_SECONDS: Final = 2.0
"""How long a new query waits at relays for the publishers that its options name: one that was
started again takes up its upstreams one after the other."""
_PAUSE_SECONDS: Final = 0.05
_log: Final = logging.getLogger("spark_bridge")


class Checks:
    """The checks of one query in one process.

    Args:
        options: of the query.
        selection: the same options' streams.

    """

    def __init__(self, options: SourceOptions, selection: Selection) -> None:
        self._options = options
        self._selection = selection
        self._is_done = False

    def wait_for_named(self, look: Callable[[], SessionDirectory]) -> SessionDirectory:
        """Return what is known of the peers; at relays, whom the options name is waited for.

        It has the start that the options say only if it is there when the query begins.
        """
        deadline = time.monotonic() + _NAMES_SECONDS
        while True:
            directory = look()
            is_settled = not any(view.is_relay for view in directory.views.values())
            if is_settled or self._unknown(directory) is None:
                return directory
            if time.monotonic() > deadline:
                return directory
            time.sleep(_PAUSE_SECONDS)

    def begin(self, positions: Positions, directory: SessionDirectory, *, is_new: bool) -> None:
        """Refuse, or warn of, what the options or the checkpoint name and nobody has; once.

        Args:
            positions: where the query goes on.
            directory: what is known of the peers.
            is_new: whether the query has no checkpoint. One that has may go on while a publisher
                that the options name is not at its relay: it is warned of, not refused.

        Raises:
            OptionError: nobody is who is named, an offset is beyond its head, or the checkpoint is
                of other peers.

        """
        if self._is_done:
            return
        if not is_new and not self._is_of_these_peers(positions, directory):
            return
        self._is_done = True
        options, found = self._options, tuple(directory.homes())
        unknown, away = self._unknown(directory), directory.away()
        if unknown is not None and away:
            _log.warning(
                "%s; it may be one of %s, who give no answer, and is then read from the earliest "
                "that it keeps", unknown, naming.listed(away),
            )  # fmt: skip
        elif unknown is not None and is_new:
            raise unknown
        elif unknown is not None:
            _log.warning("%s", unknown)
        beyond = naming.beyond("startingOffsets", options, found) if is_new else None
        if beyond is not None:
            raise beyond
        missing = naming.missing_topics(self._selection, found)
        if missing is not None:
            _log.warning("%s; it is read when it comes", missing)
        time_ns = options.startingTimestamp
        if is_new and time_ns is not None and time_ns > time.time_ns():
            _log.warning(
                "startingTimestamp is %.0f s ahead of this clock: messages are read from now on, "
                "of whatever time", (time_ns - time.time_ns()) / 1e9,
            )  # fmt: skip

    def away(self, directory: SessionDirectory, *, is_bounded: bool = False) -> None:
        """Refuse to go on without a peer, if the options say so.

        Args:
            directory: what is known of the peers.
            is_bounded: whether the query ends by itself, and so is warned of who is away.

        Raises:
            PeerUnavailableError: a peer gives no answer, and `failOnPeerAway` is true.

        """
        if not (is_bounded or self._options.failOnPeerAway):
            return
        away = directory.away()
        if not away:
            return
        if self._options.failOnPeerAway:
            raise PeerUnavailableError(
                f"no answer from {naming.listed(away)}. The query fails because failOnPeerAway is "
                "true; set it to false to read the others until these are back"
            )
        _log.warning(
            "no answer from %s: the query ends without what they have; they keep their place, and "
            "a later run reads it (failOnPeerAway=true fails instead)", naming.listed(away)
        )  # fmt: skip

    def _unknown(self, directory: SessionDirectory) -> OptionError | None:
        """Return an error for the first name that nobody has; a relay without sessions is there."""
        views = directory.views.items()
        empty = [endpoint for endpoint, view in views if view.is_relay and not view.sessions]
        return naming.nobody(self._options, tuple(directory.homes()), empty)

    def _is_of_these_peers(self, positions: Positions, directory: SessionDirectory) -> bool:
        """Whether a checkpoint is of these peers; False where that cannot be known yet."""
        others = [endpoint for endpoint in positions if endpoint not in directory.views]
        gone = [
            endpoint
            for endpoint in others
            if not any(directory.where(endpoint, session) for session in positions[endpoint])
        ]
        if not gone:
            return True
        if len(gone) < len(positions):
            _log.warning(
                "the checkpoint is also of %s, which 'peers' does not have: they keep their place "
                "and are not read", naming.listed(gone)
            )  # fmt: skip
            return True
        if not any(view.sessions for view in directory.views.values()):
            return False  # nobody has said yet who is there
        there = directory.views
        refusal = OptionError(
            "peers",
            f"has {naming.listed(there)}, and the checkpoint is of {naming.listed(gone)}: "
            "none of these is there, nor a session of theirs. Name the checkpoint's peers, too, or "
            "take another checkpointLocation; failOnDataLoss=false leaves them behind",
        )
        if self._options.failOnDataLoss:
            raise refusal
        _log.warning("%s", refusal)
        return True
