"""Positions of a query, how they move, and the ranges between two of them. Pure.

A position is, for each endpoint and each session there, the next sequence of each topic. Spark
keeps it as JSON and compares it as text, so it is always built in sorted order and holds nothing
that changes by itself::

    {"peers": {"tcp://10.0.0.7:5556": {"00c0ffee00c0ffee": {"trades": 4711}}}, "version": 1}

The first position of a new query also has a `pin`: a random text by which a process knows that it
made this position itself (see `source`). Spark does not keep that position, but asks for it again
after a restart, when it would be another one; so the end of the first batch also has its `start`,
and the first batch is read from there.

The end of each batch has the `cut` by which its ranges are spread over tasks. A batch that is taken
up again is cut in the same way, so that each of its partitions has the same messages, whatever the
options say now, and whatever is gone since.

Every topic that is subscribed to has its place in every session, 0 before it exists. A session or
topic that shows up later is *pinned* first: the position that first names it says where it starts,
and its first messages are read by the next batch. So where it starts is in Spark's log, too.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, NamedTuple
from zlib import crc32

import p2pmsg
from spark_bridge.errors import BridgeError
from spark_bridge.options import SourceOptions
from spark_bridge.selection import Start, positions_of, topics_of
from spark_bridge.session_directory import SessionDirectory, SessionLocation

Positions = dict[str, dict[int, dict[str, int]]]
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Range:
    """Messages `[start, stop)` of one stream, and where to fetch them."""

    endpoint: str
    session: int
    topic: str
    start: int
    stop: int
    publisher: str = ""
    recovery_endpoint: str | None = None

    @property
    def count(self) -> int:
        """How many messages."""
        return self.stop - self.start

    @property
    def stream(self) -> tuple[str, int, str]:
        """Its endpoint, session and topic: a batch has one range of each."""
        return self.endpoint, self.session, self.topic

    def until(self, stop: int) -> "Range":
        """Return its part before `stop`."""
        return replace(self, stop=min(self.stop, stop))

    def kept(self, stream: p2pmsg.reader.StreamHead | None) -> "Range":
        """Return its part that a peer keeps; all of it, where nothing is known."""
        if stream is None or stream.earliest <= self.start:
            return self
        return replace(self, start=min(self.stop, stream.earliest))

    def __str__(self) -> str:
        publisher = f"{self.publisher!r} at " if self.publisher else ""
        return (
            f"{self.count} messages [{self.start}, {self.stop}) of topic {self.topic!r} from "
            f"publisher {publisher}{self.endpoint} (session {self.session:016x})"
        )


class Cut(NamedTuple):
    """How the ranges of a batch are spread over its tasks."""

    tasks_max: int
    rows_min: int
    """Fewer messages than this are not worth a second task."""
    tasks_min: int = 1


def to_json(
    positions: Positions,
    pin: str | None = None,
    *,
    start: Positions | None = None,
    cut: Cut | None = None,
) -> dict[str, Any]:
    """Return what Spark keeps: the first position has a `pin`, the first batch's end a `start`.

    The end of each batch has its `cut`.
    """
    offset: dict[str, Any] = {}
    if cut is not None:
        offset["cut"] = list(cut)
    offset["peers"] = _peers(positions)
    if pin is not None:
        offset["pin"] = pin
    if start is not None:
        offset["start"] = _peers(start)
    offset["version"] = VERSION
    return offset


def start_of_batch(start: Mapping[str, Any] | None, end: Mapping[str, Any]) -> Positions | None:
    """Return where a batch begins: the first one where its end says it, others at `start`.

    Args:
        start: where Spark says that it begins; of the first batch, a first position or None.
        end: where it ends.

    """
    for offset in (start or {}, end):
        _check_is_ours(offset)
    if (start is None or "pin" in start) and "start" in end:
        return from_json({"peers": end["start"], "version": end.get("version")})
    return None if start is None else from_json(start)


def cut_of(end: Mapping[str, Any]) -> Cut:
    """Return how a batch is cut by its end; `BridgeError` where that does not say it."""
    try:
        return Cut(*map(int, end["cut"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BridgeError(f"the checkpoint has malformed offsets: {end!r}") from error


def from_json(offset: Mapping[str, Any]) -> Positions:
    """Return the positions of a checkpoint; `BridgeError` where they cannot be read."""
    _check_is_ours(offset)
    if offset.get("version") != VERSION:
        found = offset.get("version")
        raise BridgeError(f"the checkpoint has offsets of version {found}, known is {VERSION}")
    try:
        return {
            endpoint: {
                int(session, 16): {topic: int(following) for topic, following in topics.items()}
                for session, topics in sessions.items()
            }
            for endpoint, sessions in offset["peers"].items()
        }
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise BridgeError(f"the checkpoint has malformed offsets: {offset!r}") from error


def _check_is_ours(offset: Any) -> None:
    """Refuse what another source has written: Spark passes on any JSON that it finds."""
    if offset != {} and not (isinstance(offset, Mapping) and "version" in offset):
        raise BridgeError(
            f"the checkpoint is not of format p2pmsg: it has {repr(offset)[:200]}. Take another "
            "checkpointLocation"
        )


def _peers(positions: Positions) -> dict[str, Any]:
    return {
        endpoint: {
            f"{session:016x}": dict(sorted(topics.items()))
            for session, topics in sorted(sessions.items())
        }
        for endpoint, sessions in sorted(positions.items())
    }


def first(directory: SessionDirectory, options: SourceOptions, start: Start) -> Positions:
    """Return where a new query starts. A peer that is not reachable is left out: it joins later."""
    views = directory.views
    positions: Positions = {endpoint: {} for endpoint, view in views.items() if view.sessions}
    for endpoint, heads in directory.homes():
        positions[endpoint][heads.session] = positions_of(options, endpoint, heads, start)
    return {endpoint: sessions for endpoint, sessions in positions.items() if sessions}


def earliest(endpoint: str, topic: str, heads: p2pmsg.reader.Heads) -> int:
    """Start at the first message that is kept."""
    stream = heads.streams.get(topic)
    return 0 if stream is None else stream.earliest


def latest(endpoint: str, topic: str, heads: p2pmsg.reader.Heads) -> int:
    """Start after the last message."""
    stream = heads.streams.get(topic)
    return 0 if stream is None else stream.next


def advance(
    before: Positions,
    directory: SessionDirectory,
    options: SourceOptions,
    watched: Collection[int] = (),
) -> Positions:
    """Return how far one can read now; never less far than `before`.

    - A session that nobody can be asked about keeps its position.
    - A session that several endpoints have is read once, and continues at another endpoint when its
      own is away.
    - A peer that joins is pinned at the earliest that it keeps, as Kafka's new partitions are; and
      so is a publisher that is new at a relay.
    - A topic that was not subscribed to before is pinned in the same way, and one that is new at 0:
      a topic without a place, of a session that `before` was made with (`watched`).
    - A publisher that has started again is pinned at 0, and its old session, where nobody keeps it,
      is brought to the last head known of it, so that what was not read is a range that fails or
      is skipped. Then it is forgotten.
    """
    read_at = {session: endpoint for endpoint, known in before.items() for session in known}
    after: Positions = {}
    for endpoint, known in before.items():
        moved = after.setdefault(endpoint, {})
        for session, positions in known.items():
            location = directory.where(endpoint, session)
            if location is not None:
                start = _from_zero if session in watched else earliest
                moved[session] = _moved(positions, endpoint, location.heads, options, start)
            elif not directory.has_ended(endpoint, session):
                moved[session] = positions
            else:
                last = directory.last_heads(endpoint, session)
                final = _final(positions, endpoint, last, options)
                if final != positions:
                    moved[session] = final
    names: set[str] | None = None
    for endpoint, heads in directory.homes(read_at):
        if heads.session in read_at:
            continue
        if names is None:
            names = directory.names(read_at)
        is_again = _has_restarted(heads, directory, endpoint, before.get(endpoint), names)
        start = _from_zero if is_again else earliest
        pinned = positions_of(options, endpoint, heads, start)
        after.setdefault(endpoint, {})[heads.session] = pinned
    return after


def kept(positions: Positions, directory: SessionDirectory) -> Positions:
    """Return the positions, but none before what is kept of its stream.

    Of a session that has ended nothing is kept.
    """

    def at(endpoint: str, session: int, topic: str, position: int) -> int:
        location = directory.where(endpoint, session, topic, position)
        if location is None and directory.find(endpoint, session) is None:
            return _next(directory.last_heads(endpoint, session), topic, position)
        stream = None if location is None else location.heads.streams.get(topic)
        return position if stream is None else max(position, stream.earliest)

    return {
        endpoint: {
            session: {topic: at(endpoint, session, topic, each) for topic, each in topics.items()}
            for session, topics in sessions.items()
        }
        for endpoint, sessions in positions.items()
    }


def limit(before: Positions, after: Positions, rows_max: int) -> Positions:
    """Return how far to read so that it is at most `rows_max` messages in all.

    Each stream gets a share by how many messages it has, and at least one while there are any left,
    in an order that changes with the position: so none starves. What only appears in `after` (a new
    stream, pinned) stays as it is.
    """
    wanted = ranges(before, after)
    total = sum(each.count for each in wanted)
    if total <= rows_max:
        return after
    limited = {
        endpoint: {session: dict(topics) for session, topics in sessions.items()}
        for endpoint, sessions in after.items()
    }
    left = rows_max
    Random(crc32(repr(before).encode())).shuffle(wanted)
    for each in wanted:
        share = min(left, max(1, rows_max * each.count // total))
        limited[each.endpoint][each.session][each.topic] = each.start + share
        left -= share
    return limited


def ranges(start: Positions, end: Positions) -> list[Range]:
    """Return what lies between two positions, sorted; a stream that `start` lacks has nothing."""
    found = []
    for endpoint, sessions in sorted(end.items()):
        for session, topics in sorted(sessions.items()):
            known = start.get(endpoint, {}).get(session, {})
            for topic, stop in sorted(topics.items()):
                begin = known.get(topic, stop)
                if begin < stop:
                    found.append(Range(endpoint, session, topic, begin, stop))
    return found


def located(wanted: Range, location: SessionLocation) -> Range:
    """Return `wanted` with the publisher's name and where to ask."""
    heads = location.heads
    recovery = heads.recovery_endpoint if location.is_sure else None
    return Range(
        location.endpoint, wanted.session, wanted.topic, wanted.start, wanted.stop,
        heads.publisher, recovery,
    )  # fmt: skip


def pack(wanted: list[Range], cut: Cut) -> list[list[Range]]:
    """Spread ranges over few tasks of like size; a long range is split, small ones are packed."""
    total = sum(each.count for each in wanted)
    if not total:
        return []
    tasks = max(1, min(cut.tasks_max, total // cut.rows_min), min(cut.tasks_min, total))
    share = -(-total // tasks)
    packed: list[list[Range]] = [[]]
    left = share
    for each in wanted:
        start = each.start
        while start < each.stop:
            if not left:
                packed.append([])
                left = share
            stop = min(each.stop, start + left)
            is_whole = stop - start == each.count
            packed[-1].append(each if is_whole else replace(each, start=start, stop=stop))
            left -= stop - start
            start = stop
    return packed


def without_gone(
    packed: list[list[Range]], left: Mapping[tuple[str, int, str], Range]
) -> list[list[Range]]:
    """Return the tasks of a batch with what is left of its ranges, each in the task where it was.

    Args:
        packed: the ranges as they were planned.
        left: by their endpoint, session and topic, what is left of each, and where to ask for it.

    """
    return [
        [
            replace(found, start=max(each.start, found.start), stop=min(each.stop, found.stop))
            for each in task
            if (found := left.get(each.stream)) is not None
            and max(each.start, found.start) < min(each.stop, found.stop)
        ]
        for task in packed
    ]


def _has_restarted(
    heads: p2pmsg.reader.Heads,
    directory: SessionDirectory,
    endpoint: str,
    known: Mapping[int, Any] | None,
    names: set[str],
) -> bool:
    """Whether a session that was not there before belongs to a publisher that was.

    At a publisher's endpoint it does. At a relay, and in a group, if its name is that of a session
    that was read, or if the name of such a session is not known any more.
    """
    is_shared = directory.views[endpoint].is_relay or endpoint.startswith("udp:")
    if known is None or not is_shared:
        return known is not None
    return heads.publisher in names or any(
        directory.last_heads(endpoint, session) is None for session in known
    )


def _from_zero(endpoint: str, topic: str, heads: p2pmsg.reader.Heads) -> int:
    return 0


def _moved(
    positions: dict[str, int],
    endpoint: str,
    heads: p2pmsg.reader.Heads,
    options: SourceOptions,
    start: Start,
) -> dict[str, int]:
    """Return how far a session can be read. Topics no longer subscribed to keep their location."""
    moved = dict(positions)
    for topic in topics_of(options, endpoint, heads):
        if topic in moved:
            moved[topic] = _next(heads, topic, moved[topic])
        else:
            moved[topic] = start(endpoint, topic, heads)
    return moved


def _final(
    positions: dict[str, int],
    endpoint: str,
    last: p2pmsg.reader.Heads | None,
    options: SourceOptions,
) -> dict[str, int]:
    """Return how far a session that has ended is known to have gone."""
    topics = () if last is None else topics_of(options, endpoint, last)
    return {
        topic: _next(last, topic, position) if topic in topics else position
        for topic, position in positions.items()
    }


def _next(heads: p2pmsg.reader.Heads | None, topic: str, position: int) -> int:
    stream = None if heads is None else heads.streams.get(topic)
    return position if stream is None else max(position, stream.next)
