"""What is refused or warned of before it is read: names that nobody has, offsets beyond a head."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import p2pmsg
from spark_bridge.errors import OptionError
from spark_bridge.offsets import Positions
from spark_bridge.options import EVERYBODY, SourceOptions
from spark_bridge.selection import known_topics, named_by, offset_for, topics_of
from spark_bridge.session_directory import SessionDirectory

_LISTED_MAX: Final = 8
_log: Final = logging.getLogger("spark_bridge")

Found = Sequence[tuple[str, p2pmsg.reader.Heads]]
"""What there is: each session once, with the endpoint where it is read."""


def check_stream(
    options: SourceOptions,
    positions: Positions,
    directory: SessionDirectory,
    reasons: Mapping[str, str],
    *,
    is_new: bool,
) -> bool:
    """Refuse, or warn of, what the options or the checkpoint name and no peer has.

    Args:
        options: of the query.
        positions: where it continues.
        directory: what is known of the peers.
        reasons: why peers give no answer, by endpoint, where that is known.
        is_new: whether it has no checkpoint. One that has may continue while a publisher that the
            options name is not there: that is a warning, not an error.

    Returns:
        Whether all is checked; False where it is to be called again, since nobody has answered.

    Raises:
        OptionError: no publisher has a name, an offset is beyond its head, or the checkpoint is of
            other peers.

    """
    if not is_new and not _is_of_these_peers(options, positions, directory):
        return False
    found, away = tuple(directory.homes()), directory.away()
    unknown = unknown_publisher(options, found)
    if is_new:
        if unknown is not None and not away:
            raise unknown
        check_heads(options, found)
    others = f" (no answer from {explained(away, reasons)})" if away else ""
    for problem in (unknown, missing_topics(options, found)):
        if problem is not None:
            _log.warning("%s%s; it is read when it comes", problem, others)
    return True


def check_batch(
    options: SourceOptions, found: Found, denied: Iterable[str] = (), *, has_silent: bool = False
) -> list[str]:
    """Return what to warn of before a batch is read.

    A topic that no peer has is refused, as Kafka's source does: no later batch will read it. With
    `failOnDataLoss=false` that is a warning.

    Args:
        options: of the batch.
        found: what there is.
        denied: topics that a peer denies: it is not known whether it has them.
        has_silent: whether a peer gave no answer, and may be the one that is named.

    Raises:
        OptionError: names what no peer has.

    """
    warnings = []
    unknown = unknown_publisher(options, found)
    if unknown is not None:
        if not has_silent:
            raise unknown
        warnings.append(f"{unknown}. It may be one of those that did not answer")
    check_heads(options, found)
    missing = missing_topics(options, found, denied)
    if missing is not None:
        if options.failOnDataLoss and options.subscribePattern is None:
            option = "subscribe" if options.assign is None else "assign"
            reason = f"cannot be read: {missing}. failOnDataLoss=false reads the others"
            raise OptionError(option, reason)
        warnings.append(missing)
    return warnings


def check_heads(options: SourceOptions, found: Found) -> None:
    """Refuse offsets that are beyond the head of their stream."""
    for option, wanted, time_ns in (
        ("startingOffsets", options.startingOffsets, options.startingTimestamp),
        ("endingOffsets", options.endingOffsets, options.endingTimestamp),
    ):
        if not isinstance(wanted, dict) or time_ns is not None:  # a time goes before
            continue
        for endpoint, heads in found:
            for topic in topics_of(options, endpoint, heads):
                offset, stream = (
                    offset_for(wanted, topic, endpoint, heads),
                    heads.streams.get(topic),
                )
                head = 0 if stream is None else stream.next
                if offset is not None and offset > head:
                    raise OptionError(
                        option,
                        f"has {offset} for topic {topic!r} of {_who(endpoint, heads)}, whose head "
                        f"is {head}: the offset that its next message will have",
                    )


def unknown_publisher(options: SourceOptions, found: Found) -> OptionError | None:
    """Return an error for the first named publisher that is not there."""
    assign = options.assign
    for option, topic, who in _named(options):
        if not any(
            named_by((who,), endpoint, heads)
            and (assign is None or named_by(assign.get(topic, ()), endpoint, heads))
            for endpoint, heads in found
        ):
            there = listed(_who(endpoint, heads) for endpoint, heads in found)
            return OptionError(
                option,
                f"names {who!r} for topic {topic!r}, and nobody of whom it is read has such a "
                f"name, endpoint or session; there are {there}",
            )
    return None


def missing_topics(options: SourceOptions, found: Found, denied: Iterable[str] = ()) -> str | None:
    """Return a warning for topics that no peer has; None where there are none."""
    has: set[str] = set()
    for endpoint, heads in found:
        has |= heads.streams.keys() & set(topics_of(options, endpoint, heads))
    others = {topic: None for _, heads in found for topic in heads.streams if topic not in has}
    there = f"; there are {listed(map(repr, others))}" if others else ""
    if options.subscribePattern is not None:
        text = f"nobody has a topic that matches {options.subscribePattern!r}{there}"
        return None if has else text
    has.update(denied)
    missing = [topic for topic in known_topics(options) or () if topic not in has]
    return f"nobody has the topic {listed(map(repr, missing))}{there}" if missing else None


def explained(peers: Iterable[str], reasons: Mapping[str, str]) -> str:
    """Return the first of some peers as a text, with why they give no answer."""
    return listed(f"{peer} ({reasons[peer]})" if reasons.get(peer) else peer for peer in peers)


def listed(items: Iterable[str]) -> str:
    """Return the first of some items as a text, and how many more there are."""
    known = list(items)
    text = ", ".join(known[:_LISTED_MAX]) or "none"
    more = len(known) - _LISTED_MAX
    return f"{text} and {more} more" if more > 0 else text


def _is_of_these_peers(
    options: SourceOptions, positions: Positions, directory: SessionDirectory
) -> bool:
    """Whether a checkpoint is of these peers; False where that cannot be known yet."""
    views = directory.views
    gone = [
        endpoint
        for endpoint, sessions in positions.items()
        if endpoint not in views and not any(directory.where(endpoint, one) for one in sessions)
    ]
    if not gone:
        return True
    if len(gone) < len(positions):
        _log.warning(
            "the checkpoint is also of %s, which 'peers' does not have: they keep their place and "
            "are not read", listed(gone)
        )  # fmt: skip
        return True
    if not any(view.sessions for view in views.values()):
        return False
    refusal = OptionError(
        "peers",
        f"has {listed(views)}, and the checkpoint is of {listed(gone)}: none of these is there, "
        "nor a session of theirs. Name the checkpoint's peers, too, or take another "
        "checkpointLocation; failOnDataLoss=false goes on without them",
    )
    if options.failOnDataLoss:
        raise refusal
    _log.warning("%s", refusal)
    return True


def _named(options: SourceOptions) -> Iterator[tuple[str, str, str]]:
    """Yield option, topic and publisher for each publisher that is named."""
    named = {
        "assign": options.assign,
        "startingOffsets": options.startingOffsets,
        "endingOffsets": options.endingOffsets,
    }
    for option, by_topic in named.items():
        if isinstance(by_topic, Mapping):
            for topic, publishers in by_topic.items():
                for who in publishers:
                    if who != EVERYBODY:
                        yield option, topic, who


def _who(endpoint: str, heads: p2pmsg.reader.Heads) -> str:
    name = f"{heads.publisher!r} at " if heads.publisher else ""
    return f"{name}{endpoint} (session {heads.session:016x})"
