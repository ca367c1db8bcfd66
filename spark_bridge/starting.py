"""Where a query starts and a batch ends: words, JSON and times made into sequences."""

import logging
from typing import Final

import p2pmsg
from spark_bridge import offsets
from spark_bridge.errors import PeerUnavailableError
from spark_bridge.heads import ask_once
from spark_bridge.options import SourceOptions
from spark_bridge.selection import place, resolve

_ASK_SECONDS: Final = 5.0
_log: Final = logging.getLogger("spark_bridge")


def start_of(options: SourceOptions, default: str) -> offsets.Start:
    """Return where streams start by `startingTimestamp` or `startingOffsets`.

    Args:
        options: of the query.
        default: `latest` or `earliest`, where the options do not say, or do not name a stream.

    """
    if options.startingTimestamp is not None:
        return _at_time(options, options.startingTimestamp)
    wanted = default if options.startingOffsets is None else options.startingOffsets
    return _at_offsets(options, wanted, default)


def end_of(options: SourceOptions) -> offsets.Start:
    """Return where the streams of a batch end by `endingTimestamp` or `endingOffsets`."""
    if options.endingTimestamp is not None:
        return _at_time(options, options.endingTimestamp)
    return _at_offsets(options, options.endingOffsets, "latest")


def _at_offsets(
    options: SourceOptions, wanted: str | dict[str, dict[str, int]], default: str
) -> offsets.Start:
    def start(endpoint: str, topic: str, heads: p2pmsg.Heads) -> int:
        found = wanted if isinstance(wanted, str) else place(wanted, topic, endpoint, heads)
        return resolve(default if found is None else found, heads.streams.get(topic))

    return start


def _at_time(options: SourceOptions, time_ns: int) -> offsets.Start:
    answers = ask_once(options.peers, _ASK_SECONDS, time_ns=time_ns)
    heads_at = {
        (endpoint, heads.session): heads for endpoint, found in answers.items() for heads in found
    }

    def start(endpoint: str, topic: str, heads: p2pmsg.Heads) -> int:
        asked = heads_at.get((endpoint, heads.session))
        if endpoint not in answers:  # the earliest would be too much, and as an end nothing at all
            raise PeerUnavailableError(
                f"{endpoint} was there and has not said within {_ASK_SECONDS:g} s where its "
                f"streams stood at {time_ns / 1e6:.0f} ms (startingTimestamp, endingTimestamp). "
                "Begin again when it answers"
            )
        if asked is None:
            return offsets.earliest(endpoint, topic, heads)
        stream = asked.streams.get(topic)
        if stream is None:
            return 0
        return stream.next if stream.first_at is None else min(stream.first_at, stream.next)

    return start
