"""Positions of a query, how they move, and the ranges between two of them. Pure.

A position is, for each endpoint and each session there, the next sequence of each topic. Spark
keeps it as JSON and compares it as text, so it is always built in sorted order and holds nothing
that changes by itself::

    {"peers": {"tcp://10.0.0.7:5556": {"00c0ffee00c0ffee": {"trades": 4711}}}, "version": 1}

The first position of a new query also has a `pin`: a random text by which a process knows that it
made this position itself (see `source`).

Every topic that is subscribed to has its place in every session, 0 before it exists. A session or
topic that shows up later is *pinned* first: the position that first names it says where it starts,
and its first messages are read by the next batch. So where it starts is in Spark's log, too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import p2pmsg
from spark_bridge.errors import BridgeError

Positions = dict[str, dict[int, dict[str, int]]]
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Range:
    """Messages `[start, stop)` of one stream, and where they are to be had."""

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

    def __str__(self) -> str:
        publisher = f"{self.publisher!r} at " if self.publisher else ""
        return (
            f"{self.count} messages [{self.start}, {self.stop}) of topic {self.topic!r} from "
            f"publisher {publisher}{self.endpoint} (session {self.session:016x})"
        )


@dataclass(frozen=True, slots=True)
class PeerView:
    """What is known of one endpoint: who is there, and where ended sessions stood last."""

    heads: p2pmsg.Heads | None = None
    former: tuple[p2pmsg.Heads, ...] = ()

    def of_session(self, session: int) -> p2pmsg.Heads | None:
        """Return the last heads of a session that was here."""
        known = (*self.former, *((self.heads,) if self.heads else ()))
        return next((heads for heads in known if heads.session == session), None)

    def ended(self, session: int) -> bool:
        """Whether another session is here now."""
        return self.heads is not None and self.heads.session != session


def to_json(positions: Positions, pin: str | None = None) -> dict[str, Any]:
    """Return what Spark keeps."""
    peers = {
        endpoint: {
            f"{session:016x}": dict(sorted(topics.items()))
            for session, topics in sorted(sessions.items())
        }
        for endpoint, sessions in sorted(positions.items())
    }
    offset: dict[str, Any] = {"peers": peers}
    if pin is not None:
        offset["pin"] = pin
    offset["version"] = VERSION
    return offset


def from_json(offset: Mapping[str, Any]) -> Positions:
    """Return the positions of a checkpoint; `BridgeError` where they cannot be read."""
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


def first(views: Mapping[str, PeerView], topics: Iterable[str], *, earliest: bool) -> Positions:
    """Return where a new query starts. A peer that is not reachable is left out: it joins later."""
    positions: Positions = {}
    for endpoint, view in views.items():
        if view.heads is not None:
            pinned = {topic: _pin(view.heads, topic, earliest=earliest) for topic in topics}
            positions[endpoint] = {view.heads.session: pinned}
    return positions


def advance(before: Positions, views: Mapping[str, PeerView], topics: Iterable[str]) -> Positions:
    """Return how far one can read now; never behind `before`.

    - A peer without an answer keeps its position.
    - A peer that joins is pinned at the earliest that it keeps, as Kafka's new partitions are.
    - A topic that was not subscribed to before is pinned in the same way.
    - A new session is pinned at 0, and the old one is brought to the last head known of it, so that
      what it still owed is a range that fails or is skipped. Then it is forgotten.
    """
    topics = list(topics)
    after: Positions = {}
    for endpoint in {**before, **views}:
        view = views.get(endpoint)
        sessions = before.get(endpoint)
        if view is None or view.heads is None:
            if sessions is not None:
                after[endpoint] = sessions
        elif sessions is None:
            after[endpoint] = {
                view.heads.session: {
                    topic: _pin(view.heads, topic, earliest=True) for topic in topics
                }
            }
        else:
            after[endpoint] = _advance_peer(sessions, view, view.heads, topics)
    return after


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


def located(wanted: Range, heads: p2pmsg.Heads, *, ended: bool) -> Range:
    """Return `wanted` with the publisher's name, and where to ask unless its session has ended."""
    recovery_endpoint = None if ended else heads.recovery_endpoint
    return replace(wanted, publisher=heads.publisher, recovery_endpoint=recovery_endpoint)


def pack(wanted: list[Range], tasks_max: int, task_rows_min: int) -> list[list[Range]]:
    """Spread ranges over few tasks of like size; a long range is split, small ones are packed."""
    total = sum(each.count for each in wanted)
    if not total:
        return []
    tasks = max(1, min(tasks_max, total // task_rows_min))
    share = -(-total // tasks)
    packed: list[list[Range]] = [[]]
    room = share
    for each in wanted:
        start = each.start
        while start < each.stop:
            if not room:
                packed.append([])
                room = share
            stop = min(each.stop, start + room)
            packed[-1].append(replace(each, start=start, stop=stop))
            room -= stop - start
            start = stop
    return packed


def _pin(heads: p2pmsg.Heads, topic: str, *, earliest: bool) -> int:
    stream = heads.streams.get(topic)
    if stream is None:
        return 0
    return stream.earliest if earliest else stream.next


def _advance_peer(
    sessions: dict[int, dict[str, int]], view: PeerView, heads: p2pmsg.Heads, topics: list[str]
) -> dict[int, dict[str, int]]:
    after: dict[int, dict[str, int]] = {}
    for session, positions in sessions.items():
        if session != heads.session:
            last = view.of_session(session)
            final = {
                topic: _next(last, topic, position) if topic in topics else position
                for topic, position in positions.items()
            }
            if final != positions:
                after[session] = final
    # Topics that are no longer subscribed to keep their place.
    known = sessions.get(heads.session)
    moved = dict(known or {})
    for topic in topics:
        if known is None:
            moved[topic] = 0
        elif topic in known:
            moved[topic] = _next(heads, topic, known[topic])
        else:
            moved[topic] = _pin(heads, topic, earliest=True)
    after[heads.session] = moved
    return after


def _next(heads: p2pmsg.Heads | None, topic: str, position: int) -> int:
    stream = None if heads is None else heads.streams.get(topic)
    return position if stream is None else max(position, stream.next)
