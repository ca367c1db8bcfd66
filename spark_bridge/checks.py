"""What is refused or warned of before it is read: names that nobody has, peers that are away."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import p2pmsg
from spark_bridge.errors import BridgeError, OptionError
from spark_bridge.offsets import Positions
from spark_bridge.options import EVERYBODY, SourceOptions
from spark_bridge.selection import Selection, named_by, offset_for
from spark_bridge.session_directory import SessionDirectory, covers

NAMES_SECONDS: Final = 2.0
"""How long a new query waits at relays for the publishers that its options name: a relay that was
started again connects to its publishers one after the other."""
_PAUSE_SECONDS: Final = 0.05
_LISTED_MAX: Final = 8
_log: Final = logging.getLogger("spark_bridge")


Found = Sequence[tuple[str, p2pmsg.reader.Heads]]
"""What there is: each session once, with the endpoint where it is read."""


class Checks:
    """The checks of one query in one process.

    Args:
        options: of the query.
        selection: what the options say that is read.
        reasons: returns why peers give no answer, by endpoint. Default: that is not known.

    """

    def __init__(
        self,
        options: SourceOptions,
        selection: Selection,
        reasons: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._reasons = reasons
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
        if (denied := denied_pattern(self._selection, directory.errors())) is not None:
            _log.warning("%s", denied)
        if found:
            missing = missing_topics(self._selection, found)
            if missing is not None:
                others = f" (no answer from {self._explained(away)})" if away else ""
                _log.warning("%s%s; it is read when it comes", missing, others)
        else:
            self._warn_of_nobody(directory)
        time_ns = options.startingTimestamp
        if is_new and time_ns is not None and time_ns > time.time_ns():
            _log.warning(
                "startingTimestamp is %.0f s ahead of this clock: messages are read from now on, "
                "of whatever time", (time_ns - time.time_ns()) / 1e9,
            )  # fmt: skip

    def _warn_of_nobody(self, directory: SessionDirectory) -> None:
        """Warn that it is not known what there is to read: nobody has said it."""
        away = directory.away()
        who = self._explained(away) if away else listed(directory.views)
        what = (
            f"matches {self._selection.pattern.pattern!r}"
            if self._selection.pattern is not None
            else f"is called {listed(map(repr, self._selection.known_topics or ()))}"
        )
        no_answer = "no peer has answered yet" if away else "no publisher is there yet"
        _log.warning(
            "%s, so it is not known whether a topic %s: %s; it is read when it comes",
            no_answer, what, who,
        )  # fmt: skip

    def _explained(self, peers: Iterable[str]) -> str:
        """Return some of the peers as a text, with why they give no answer."""
        return explained(peers, self._reasons())

    def away(
        self,
        directory: SessionDirectory,
        before: Positions | None = None,
        *,
        is_bounded: bool = False,
    ) -> None:
        """Refuse to continue without a peer, or without what one denies, if the options say so.

        Args:
            directory: what is known of the peers.
            before: where the query continues, where that is known.
            is_bounded: whether the query ends by itself; then peers that are away are warned of,
                and those who deny something.

        Raises:
            BridgeError: a peer gives no answer, and `failOnPeerAway` is true.
            p2pmsg.errors.AccessDeniedError: a peer denies what is read, and `failOnPeerAway` is
                true; or one denies what a pattern matches, and a query that ends by itself would
                read nothing.

        """
        if not (is_bounded or self._options.failOnPeerAway):
            return
        self._denied(directory, before, is_bounded=is_bounded)
        away = directory.away()
        if not away:
            return
        if self._options.failOnPeerAway:
            raise BridgeError(
                f"no answer from {self._explained(away)}. The query fails because failOnPeerAway "
                "is true; set it to false to read the others until these are back"
            )
        _log.warning(
            "no answer from %s: the query ends without what they have; they keep their place, and "
            "a later run reads it (failOnPeerAway=true fails instead)", self._explained(away)
        )  # fmt: skip

    def _denied(
        self, directory: SessionDirectory, before: Positions | None, *, is_bounded: bool
    ) -> None:
        error, selection = directory.why_denied(), self._selection
        if error is None:
            return
        is_read = selection.pattern is None or denied_streams(before or {}, directory)
        if self._options.failOnPeerAway and is_read:
            raise error
        if not is_bounded:
            return
        found = tuple(directory.homes())
        if selection.pattern is not None and missing_topics(selection, found) is not None:
            raise error
        text = "; ".join(
            f"{listed(map(repr, topics))} at {endpoint}"
            for endpoint, topics in directory.denied().items()
        )
        _log.warning(
            "the query ends without what is denied to it (%s): %s. It keeps its place, and a later "
            "run with the right to it reads it", text, error,
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


def missing_topics(
    selection: Selection,
    found: Found,
    denied: Iterable[p2pmsg.errors.AccessDeniedError] = (),
) -> str | None:
    """Return a warning for topics that no peer has; None where there are none.

    Of those that are denied it is not known whether somebody has them.
    """
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
    known = streams.keys() | {error.topic for error in denied}
    missing = [topic for topic in selection.known_topics or () if topic not in known]
    if not missing:
        return None
    return f"nobody has the topic {listed(map(repr, missing))}{there}"


def denied_pattern(
    selection: Selection, errors: Sequence[p2pmsg.errors.AccessDeniedError]
) -> str | None:
    """Return a warning where peers deny some of what a pattern may match; None where they do not.

    Which topics these are, and whether there are any, they do not say.
    """
    if selection.pattern is None or not errors:
        return None
    more = f" (and so {len(errors) - 1} more)" if len(errors) > 1 else ""
    return (
        f"{errors[0]}{more}: topics that match {selection.pattern.pattern!r} and are denied are "
        "not read, and not counted as missing"
    )


def denied_streams(before: Positions, directory: SessionDirectory) -> list[tuple[str, str]]:
    """Return the streams that were read, and that their peer denies now: endpoint and topic."""
    found = []
    for endpoint, sessions in before.items():
        for session, topics in sessions.items():
            location = directory.where(endpoint, session)
            if location is None or not (denied := directory.views[location.endpoint].denied):
                continue
            found += [
                (location.endpoint, topic)
                for topic in topics
                if topic not in location.heads.streams and covers(denied, topic)
            ]
    return found


def explained(peers: Iterable[str], reasons: Mapping[str, str]) -> str:
    """Return the first of some peers as a text, with why they give no answer."""
    return listed(f"{peer} ({reasons[peer]})" if reasons.get(peer) else peer for peer in peers)


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
