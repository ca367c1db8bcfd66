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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import p2pmsg
from spark_bridge.errors import BridgeError
from spark_bridge.selection import Selection

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

    def until(self, stop: int) -> "Range":
        """Return its part before `stop`."""
        return replace(self, stop=min(self.stop, stop))

    def kept(self, stream: p2pmsg.StreamHead | None) -> "Range":
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


@dataclass(frozen=True, slots=True)
class PeerView:
    """What is known of one endpoint: who is there, and where ended sessions stood last."""

    heads: p2pmsg.Heads | None = None
    former: tuple[p2pmsg.Heads, ...] = ()
    born: frozenset[str] = field(default_factory=frozenset)
    """Topics that came up while this session was being watched: nothing of them is old."""
    reachable: bool = True

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


Start = Callable[[str, str, p2pmsg.Heads], int]
"""Where a stream starts: of endpoint, topic and heads."""


def first(views: Mapping[str, PeerView], selection: Selection, start: Start) -> Positions:
    """Return where a new query starts. A peer that is not reachable is left out: it joins later."""
    positions: Positions = {}
    for endpoint, heads in _homes(views).items():
        pinned = {
            topic: start(endpoint, topic, heads) for topic in selection.topics_of(endpoint, heads)
        }
        positions[endpoint] = {heads.session: pinned}
    return positions


def earliest(endpoint: str, topic: str, heads: p2pmsg.Heads) -> int:
    """Start at the first message that is kept."""
    stream = heads.streams.get(topic)
    return 0 if stream is None else stream.earliest


def latest(endpoint: str, topic: str, heads: p2pmsg.Heads) -> int:
    """Start behind the last message."""
    stream = heads.streams.get(topic)
    return 0 if stream is None else stream.next


def advance(
    before: Positions, views: Mapping[str, PeerView], selection: Selection
) -> Positions:
    """Return how far one can read now; never behind `before`.

    - A peer without an answer keeps its position.
    - A peer that joins is pinned at the earliest that it keeps, as Kafka's new partitions are.
    - A topic that was not subscribed to before is pinned in the same way, and one that is new at 0.
    - A new session is pinned at 0, and the old one is brought to the last head known of it, so that
      what it still owed is a range that fails or is skipped. Then it is forgotten.
    - A session that another endpoint has, too, is read as if it were there once.
    """
    after: Positions = {}
    homes = _homes(views, before)
    for endpoint in {**before, **views}:
        view = views.get(endpoint)
        sessions = before.get(endpoint)
        heads = homes.get(endpoint)
        if view is None or view.heads is None or (heads is None and not sessions):
            if sessions is not None:
                after[endpoint] = sessions
        elif sessions is None:
            assert heads is not None
            after[endpoint] = {
                heads.session: {
                    topic: earliest(endpoint, topic, heads)
                    for topic in selection.topics_of(endpoint, heads)
                }
            }
        else:
            after[endpoint] = _advance_peer(endpoint, sessions, view, heads, views, selection)
    return after


def _homes(
    views: Mapping[str, PeerView], positions: Positions | None = None
) -> dict[str, p2pmsg.Heads]:
    """Return who is to be read where: each session at one endpoint, where it was read before."""
    at = {
        session: endpoint
        for endpoint, sessions in (positions or {}).items()
        for session in sessions
    }
    homes: dict[str, p2pmsg.Heads] = {}
    for endpoint, view in sorted(views.items()):
        if view.heads is not None and at.setdefault(view.heads.session, endpoint) == endpoint:
            homes[endpoint] = view.heads
    return homes


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


def located(wanted: Range, place: "Place") -> Range:
    """Return `wanted` with the publisher's name and where to ask."""
    return replace(
        wanted,
        endpoint=place.endpoint,
        publisher=place.heads.publisher,
        recovery_endpoint=place.heads.recovery_endpoint if place.is_sure else None,
    )


def named(wanted: Range, heads: p2pmsg.Heads | None) -> Range:
    """Return `wanted` with the name of its publisher, where that is known."""
    return wanted if heads is None else replace(wanted, publisher=heads.publisher)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session can be asked for ranges; sure if it is known to be there now."""

    endpoint: str
    heads: p2pmsg.Heads
    is_sure: bool


def find_place(views: Mapping[str, PeerView], home: str, session: int) -> Place | None:
    """Return the best place to fetch a session's messages from; None where it has ended.

    The peer itself, if it is there; another that has the session, too; else the peer again, which
    may come back. A peer of which nothing is known, is where the range says.
    """
    def rank(endpoint: str) -> tuple[bool, bool]:
        return not views[endpoint].reachable, endpoint != home

    for endpoint in sorted(views, key=rank):
        heads = views[endpoint].heads
        if heads is not None and heads.session == session:
            return Place(endpoint, heads, views[endpoint].reachable)
    view = views.get(home, PeerView())
    if view.ended(session):
        return None
    unknown = p2pmsg.Heads(publisher="", session=session, recovery_endpoint="", streams={})
    return Place(home, view.of_session(session) or unknown, is_sure=False)


def pack(
    wanted: list[Range], tasks_max: int, task_rows_min: int, tasks_min: int = 1
) -> list[list[Range]]:
    """Spread ranges over few tasks of like size; a long range is split, small ones are packed."""
    total = sum(each.count for each in wanted)
    if not total:
        return []
    tasks = max(1, min(tasks_max, total // task_rows_min), min(tasks_min, total))
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


def _advance_peer(
    endpoint: str,
    sessions: dict[int, dict[str, int]],
    view: PeerView,
    heads: p2pmsg.Heads | None,
    views: Mapping[str, PeerView],
    selection: Selection,
) -> dict[int, dict[str, int]]:
    after: dict[int, dict[str, int]] = {}
    for session, positions in sessions.items():
        if heads is not None and session == heads.session:
            continue
        elsewhere = find_place(views, endpoint, session)
        last = view.of_session(session) if elsewhere is None else elsewhere.heads
        final = {
            topic: _next(last, topic, position)
            if last is not None and topic in selection.topics_of(endpoint, last)
            else position
            for topic, position in positions.items()
        }
        if final != positions or elsewhere is not None:
            after[session] = final
    if heads is None:
        return after
    # Topics that are no longer subscribed to keep their place.
    known = sessions.get(heads.session)
    moved = dict(known or {})
    for topic in selection.topics_of(endpoint, heads):
        if known is None or (topic not in known and topic in view.born):
            moved[topic] = 0
        elif topic in known:
            moved[topic] = _next(heads, topic, known[topic])
        else:
            moved[topic] = earliest(endpoint, topic, heads)
    after[heads.session] = moved
    return after


def _next(heads: p2pmsg.Heads | None, topic: str, position: int) -> int:
    stream = None if heads is None else heads.streams.get(topic)
    return position if stream is None else max(position, stream.next)
