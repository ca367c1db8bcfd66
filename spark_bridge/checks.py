"""What is refused or warned of before it is read: names that nobody has, peers that are away."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import p2pmsg
from spark_bridge.errors import OptionError, PeerUnavailableError
from spark_bridge.offsets import Positions
from spark_bridge.options import EVERYBODY, SourceOptions
from spark_bridge.selection import Selection, named_by, offset_for
from spark_bridge.session_directory import SessionDirectory

NAMES_SECONDS: Final = 2.0
"""How long a new query waits at relays for the publishers that its options name: a relay that was
started again connects to its publishers one after the other."""
_PAUSE_SECONDS: Final = 0.05
_LISTED_MAX: Final = 8
_log: Final = logging.getLogger("spark_bridge")


Found = Sequence[tuple[str, p2pmsg.reader.Heads]]
"""What there is: each session once, with the endpoint where it is read."""


class Checks:
    """The checks of one query in one process."""

    def __init__(self, options: SourceOptions, selection: Selection) -> None:
        self._options = options
        self._selection = selection
        self._is_done = False

    def wait_for_named(self, look: Callable[[], SessionDirectory]) -> SessionDirectory:
        """Return what is known of the peers; wait for the publishers at relays that options name.

        A publisher starts where the options say only if it is there when the query begins.
        """
        deadline = time.monotonic() + NAMES_SECONDS
        while True:
            directory = look()
            is_settled = not any(view.is_relay for view in directory.views.values())
            if is_settled or self._unknown(directory) is None:
                return directory
            if time.monotonic() > deadline:
                return directory
            time.sleep(_PAUSE_SECONDS)

    def begin(self, positions: Positions, directory: SessionDirectory, *, is_new: bool) -> None:
        """Refuse, or warn of, what the options or the checkpoint name and no peer has; once.

        Args:
            positions: where the query continues.
            directory: what is known of the peers.
            is_new: whether the query has no checkpoint. One that has may continue while a publisher
                that the options name is not at its relay: that is a warning, not an error.

        Raises:
            OptionError: no publisher has a name, an offset is beyond its head, or the checkpoint
                is of other peers.

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
                "that it keeps", unknown, listed(away),
            )  # fmt: skip
        elif unknown is not None and is_new:
            raise unknown
        elif unknown is not None:
            _log.warning("%s", unknown)
        beyond = beyond_head("startingOffsets", options, found) if is_new else None
        if beyond is not None:
            raise beyond
        missing = missing_topics(self._selection, found)
        if missing is not None:
            _log.warning("%s; it is read when it comes", missing)
        time_ns = options.startingTimestamp
        if is_new and time_ns is not None and time_ns > time.time_ns():
            _log.warning(
                "startingTimestamp is %.0f s ahead of this clock: messages are read from now on, "
                "of whatever time", (time_ns - time.time_ns()) / 1e9,
            )  # fmt: skip

    def away(self, directory: SessionDirectory, *, is_bounded: bool = False) -> None:
        """Refuse to continue without a peer, if the options say so.

        Args:
            directory: what is known of the peers.
            is_bounded: whether the query ends by itself; then peers that are away are warned of.

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
                f"no answer from {listed(away)}. The query fails because failOnPeerAway is "
                "true; set it to false to read the others until these are back"
            )
        _log.warning(
            "no answer from %s: the query ends without what they have; they keep their place, and "
            "a later run reads it (failOnPeerAway=true fails instead)", listed(away)
        )  # fmt: skip

    def _unknown(self, directory: SessionDirectory) -> OptionError | None:
        """Return an error for the first named publisher that is missing; an empty relay is not."""
        views = directory.views.items()
        empty = [endpoint for endpoint, view in views if view.is_relay and not view.sessions]
        return unknown_publisher(self._options, tuple(directory.homes()), empty)

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
                "and are not read", listed(gone)
            )  # fmt: skip
            return True
        if not any(view.sessions for view in directory.views.values()):
            return False  # no peer has answered yet
        there = directory.views
        refusal = OptionError(
            "peers",
            f"has {listed(there)}, and the checkpoint is of {listed(gone)}: "
            "none of these is there, nor a session of theirs. Name the checkpoint's peers, too, or "
            "take another checkpointLocation; failOnDataLoss=false goes on without them",
        )
        if self._options.failOnDataLoss:
            raise refusal
        _log.warning("%s", refusal)
        return True


def unknown_publisher(
    options: SourceOptions, found: Found, empty: Iterable[str] = ()
) -> OptionError | None:
    """Return an error for the first named publisher that is not there.

    At relays without a session yet (`empty`) it may still come.
    """
    empty = set(empty)
    for option, topic, who in _named(options):
        if who not in empty and not any(
            named_by((who,), endpoint, heads) and _is_assigned(options, topic, endpoint, heads)
            for endpoint, heads in found
        ):
            there = listed(_who(endpoint, heads) for endpoint, heads in found)
            return OptionError(
                option,
                f"names {who!r} for topic {topic!r}, and nobody of whom it is read has such a "
                f"name, endpoint or session; there are {there}",
            )
    return None


def beyond_head(option: str, options: SourceOptions, found: Found) -> OptionError | None:
    """Return an error for the first offset of `option` that is beyond the head of its stream."""
    wanted, time_ns = options.startingOffsets, options.startingTimestamp
    if option == "endingOffsets":
        wanted, time_ns = options.endingOffsets, options.endingTimestamp
    if not isinstance(wanted, dict) or time_ns is not None:  # a time goes before
        return None
    for topic, endpoint, heads in _streams(options, found):
        offset, stream = offset_for(wanted, topic, endpoint, heads), heads.streams.get(topic)
        head = 0 if stream is None else stream.next
        if offset is not None and offset > head:
            return OptionError(
                option,
                f"has {offset} for topic {topic!r} of {_who(endpoint, heads)}, whose head is "
                f"{head}: the offset that its next message will have",
            )
    return None


def end_before_start(options: SourceOptions, found: Found) -> OptionError | None:
    """Return an error for the first stream whose `endingOffsets` is before its start."""
    first, last = options.startingOffsets, options.endingOffsets
    times = (options.startingTimestamp, options.endingTimestamp)
    if not (isinstance(first, dict) and isinstance(last, dict)) or times != (None, None):
        return None
    for topic, endpoint, heads in _streams(options, found):
        start, stop = (offset_for(each, topic, endpoint, heads) for each in (first, last))
        if start is not None and stop is not None and 0 <= stop < start:
            return OptionError(
                "endingOffsets",
                f"has {stop} for topic {topic!r} of {_who(endpoint, heads)}, before its start: "
                f"startingOffsets has {start}",
            )
    return None


def _streams(
    options: SourceOptions, found: Found
) -> Iterator[tuple[str, str, p2pmsg.reader.Heads]]:
    selection = Selection.of(options)
    for endpoint, heads in found:
        for topic in selection.topics_of(endpoint, heads):
            yield topic, endpoint, heads


def empty_times(options: SourceOptions, found: Found) -> str | None:
    """Return a warning for a batch that is empty because of its times."""
    times = {
        name: getattr(options, name)
        for name in ("startingTimestamp", "endingTimestamp")
        if getattr(options, name) is not None
    }
    if not times or not found:
        return None
    said = " and ".join(
        f"{name} {datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%dT%H:%M:%SZ}"
        for name, time_ns in times.items()
    )
    return f"nothing is read: no peer has a message within {said}"


def missing_topics(selection: Selection, found: Found) -> str | None:
    """Return a warning for topics that no peer has; None where there are none."""
    streams: dict[str, None] = {}
    for endpoint, heads in found:
        wanted = set(selection.topics_of(endpoint, heads))
        streams |= dict.fromkeys(topic for topic in heads.streams if topic in wanted)
    others = {topic: None for _, heads in found for topic in heads.streams if topic not in streams}
    there = f"; there are {listed(map(repr, others))}" if others else ""
    if selection.pattern is not None:
        if streams:
            return None
        return f"nobody has a topic that matches {selection.pattern.pattern!r}{there}"
    missing = [topic for topic in selection.known_topics or () if topic not in streams]
    if not missing:
        return None
    return f"nobody has the topic {listed(map(repr, missing))}{there}"


def listed(items: Iterable[str]) -> str:
    """Return the first of some items as a text, and how many more there are."""
    known = list(items)
    text = ", ".join(known[:_LISTED_MAX]) or "none"
    more = len(known) - _LISTED_MAX
    return f"{text} and {more} more" if more > 0 else text


def _named(options: SourceOptions) -> Iterator[tuple[str, str, str]]:
    """Yield option, topic and publisher for each publisher that is named."""
    for topic, names in (options.assign or {}).items():
        for who in names:
            yield "assign", topic, who
    for option, wanted in (
        ("startingOffsets", options.startingOffsets),
        ("endingOffsets", options.endingOffsets),
    ):
        if isinstance(wanted, dict):
            for topic, offsets in wanted.items():
                for who in offsets:
                    if who != EVERYBODY:
                        yield option, topic, who


def _is_assigned(
    options: SourceOptions, topic: str, endpoint: str, heads: p2pmsg.reader.Heads
) -> bool:
    assign = options.assign
    return assign is None or named_by(assign.get(topic, ()), endpoint, heads) is not None


def _who(endpoint: str, heads: p2pmsg.reader.Heads) -> str:
    name = f"{heads.publisher!r} at " if heads.publisher else ""
    return f"{name}{endpoint} (session {heads.session:016x})"
