"""Hands what one subscriber receives to many connections, and decides who is too slow.

A view is what all connections with the same topics and format get: its events are encoded once,
into a ring of chunks, and a connection is a place in that ring. No clock, no socket.

::

    batch, loss ─▶ Fanout ─▶ View.add ─▶ ring ─▶ View.take ─▶ connection
                     │                    └─ what falls out at the bound: its readers are cut off
                     └─ following: the next sequence of each stream, the oldest event first
"""

from collections.abc import Mapping
from typing import Final

from p2pmsg.errors import LossReport, RewoundReport
from p2pmsg.http.encoding import Format, encode_batch, encode_event, encode_id, report_fields
from p2pmsg.http.resume import ID_BYTES_MAX, NO_STREAMS, Key, around, entry, single_topic
from p2pmsg.message import MessageBatch
from p2pmsg.toolkit import matches

ViewKey = tuple[tuple[str, ...], Format]

STREAMS_MAX: Final = 10_000
"""Streams that are remembered; the one whose last event is the oldest is forgotten first."""


class Member:
    """A connection that a view serves.

    Args:
        resumed: whether it came with positions, so that a stream which is found late is not to
            begin for it in the middle.

    Attributes:
        resumed: the same.
        place: index of the next chunk it gets; None: it has not joined yet.
        reason: why it is to be cut off; empty: it is not.
        rewound: of a connection that has not joined: where publishers have gone back to.

    """

    def __init__(self, *, resumed: bool) -> None:
        self.resumed = resumed
        self.place: int | None = None
        self.reason = ""
        self.rewound: dict[Key, RewoundReport] = {}

    def cut(self, reason: str) -> None:
        """Note that it is to be cut off; the first reason stays."""
        self.reason = self.reason or reason

    def on_rewound(self, key: Key, report: RewoundReport) -> None:
        """Note that a publisher has gone back before it joined; the earliest place counts."""
        known = self.rewound.get(key)
        if self.place is None and (known is None or report.start < known.start):
            self.rewound[key] = report


class View:
    """The events of some topics in one format.

    Args:
        topics: topics and prefixes.
        form: how values are written.
        buffer_bytes: bound of the ring, in bytes; the newest chunk is kept, whatever its size.
        beginning: the id where there is no stream.

    Attributes:
        members: who reads it.
        entries: of each stream its part of the ids; the ones that are silent for longest first.
        id_bytes: length of an id.

    """

    def __init__(
        self, topics: tuple[str, ...], form: Format, buffer_bytes: int, beginning: str
    ) -> None:
        self.topics = topics
        self.form = form
        self.members: dict[Member, None] = {}
        self.entries: dict[Key, str] = {}
        self.id_bytes = 0
        self._with_topic = single_topic(topics) is None
        self._beginning = beginning
        self._buffer_bytes = buffer_bytes
        self._chunks: list[bytes] = []
        self._first = 0
        self._bytes = 0
        self._joined: dict[int, tuple[bytes, int]] = {}

    @property
    def end(self) -> int:
        """Index of the chunk that comes next."""
        return self._first + len(self._chunks)

    def wants(self, topic: str) -> bool:
        """Whether a topic is one of the view's."""
        return matches(topic, list(self.topics))

    def note(self, key: Key, following: int) -> None:
        """Note a stream's place in the ids."""
        self.forget(key)
        self.entries[key] = text = entry(key, following - 1, with_topic=self._with_topic)
        self.id_bytes += len(text) + 1

    def forget(self, key: Key) -> None:
        """Leave a stream out of the ids."""
        text = self.entries.pop(key, None)
        if text is not None:
            self.id_bytes -= len(text) + 1

    def event_id(self) -> str:
        """Return the id of a connection that has all."""
        return ",".join(self.entries.values()) or self._beginning

    def around(self, key: Key) -> tuple[str, str]:
        """Return what stands around the sequence in the ids of a stream's events."""
        others = (text for other, text in self.entries.items() if other != key)
        return around(key, others, with_topic=self._with_topic)

    def join(self, member: Member) -> None:
        """Let a connection get what comes from now on."""
        member.place = self.end

    def add(self, chunk: bytes) -> None:
        """Append a chunk; who had not taken what falls out of the ring is cut off."""
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        self._joined.clear()
        drop = 0
        while self._bytes > self._buffer_bytes and drop < len(self._chunks) - 1:
            self._bytes -= len(self._chunks[drop])
            drop += 1
        if not drop:
            return
        del self._chunks[:drop]
        self._first += drop
        for member in self.members:
            if member.place is not None and member.place < self._first:
                member.cut("slow")

    def take(self, member: Member, bytes_max: int) -> bytes:
        """Return what a connection has not got yet, in whole chunks of about so many bytes."""
        place = member.place
        if place is None or place >= self.end or member.reason:
            return b""
        found = self._joined.get(place)
        if found is None:
            size, stop = 0, place
            while stop < self.end and (size < bytes_max):
                size += len(self._chunks[stop - self._first])
                stop += 1
            parts = self._chunks[place - self._first : stop - self._first]
            found = self._joined[place] = b"".join(parts), stop
        data, member.place = found
        return data


class Fanout:
    """All views, and the place of each stream.

    Args:
        buffer_bytes: bound of each view's ring, in bytes.
        run: names this gateway, as of its start, in 16 hexadecimal digits. Default: none.

    Attributes:
        following: the next sequence of each stream, those whose last event is the oldest first.
        begun: the sequence from which on each stream was received here.
        beginning: the id of a connection that began here when there was no stream.
        views: by topics and format.
        messages, losses, malformed: what came: messages, messages reported lost, and those with a
            value that has no JSON form.

    """

    def __init__(self, buffer_bytes: int, run: str = "") -> None:
        self.following: dict[Key, int] = {}
        self.begun: dict[Key, int] = {}
        self.beginning = NO_STREAMS + run
        self.views: dict[ViewKey, View] = {}
        self.messages = self.losses = self.malformed = 0
        self._buffer_bytes = buffer_bytes
        self._appeared: dict[Key, int] = {}
        self._appearances = 0

    def enter(self, topics: tuple[str, ...], form: Format, member: Member) -> View:
        """Return the view of these topics, with a connection that has not joined yet.

        Args:
            topics: topics and prefixes.
            form: how values are written.
            member: the connection.

        """
        view = self.views.get((topics, form))
        if view is None:
            view = self.views[topics, form] = View(topics, form, self._buffer_bytes, self.beginning)
            for key, at in self.following.items():
                if view.wants(key[1]):
                    self._enter_id(view, key, at)
        view.members[member] = None
        return view

    def leave(self, view: View, member: Member) -> None:
        """Forget a connection, and the view with its last one."""
        view.members.pop(member, None)
        if not view.members:
            self.views.pop((view.topics, view.form), None)

    def know(self, streams: Mapping[Key, int]) -> None:
        """Take where streams stand of which nothing has come yet."""
        new = {key: at for key, at in streams.items() if key not in self.following}
        for key, at in new.items():
            self._begin(key, at)
        for view in self.views.values():
            if any(view.wants(topic) for _, topic in new):
                view.add(encode_id(view.event_id()))

    def take(self, batch: MessageBatch) -> None:
        """Hand a batch to all who want it."""
        key = batch.session, batch.topic
        stop = batch.sequence + len(batch)
        if key not in self.following:
            self._begin(key, batch.sequence)
        self._advance(key, batch.sequence, stop)
        self.messages += len(batch)
        bad = 0
        for view in self._views_of(batch.topic):
            chunk, bad = encode_batch(batch, view.form, *view.around(key))
            view.add(chunk)
        self.malformed += bad

    def lose(self, report: LossReport) -> None:
        """Hand on that a range is lost, or that a publisher has gone back."""
        key = report.session, report.topic
        rewound = isinstance(report, RewoundReport)
        stop = report.start if rewound else report.stop
        if key not in self.following:
            self._begin(key, report.start)
        self._advance(key, min(report.start, stop), stop)
        self.losses += report.count
        for view in self._views_of(report.topic):
            before, after = view.around(key)
            kind = "rewound" if rewound else "loss"
            view.add(encode_event(kind, report_fields(report), f"{before}{stop - 1}{after}"))
            if isinstance(report, RewoundReport):
                for member in view.members:
                    member.on_rewound(key, report)

    def missed(self, view: View, positions: Mapping[Key, int]) -> dict[Key, int]:
        """Return the streams that a connection with these positions is to have, and their places.

        A stream that it does not name began while it was away, unless its entry was left out of
        the id for its length: then a stream that appeared later is named.
        """
        latest = max((self._appeared.get(key, -1) for key in positions), default=-1)
        return {
            key: at
            for key, at in self.following.items()
            if view.wants(key[1])
            and (key in positions or key in view.entries or self._appeared[key] > latest)
        }

    def _views_of(self, topic: str) -> list[View]:
        return [view for view in self.views.values() if view.wants(topic)]

    def _begin(self, key: Key, at: int) -> None:
        """Take up a stream. One in whose middle it is: for who resumed it is to begin earlier."""
        self.following[key] = self.begun[key] = at
        self._appearances += 1
        self._appeared[key] = self._appearances
        for view in self._views_of(key[1]):
            self._enter_id(view, key, at)
        if len(self.following) > STREAMS_MAX:
            oldest = next(iter(self.following))
            del self.following[oldest], self.begun[oldest], self._appeared[oldest]
            for view in self._views_of(oldest[1]):
                view.forget(oldest)
        for view in self._views_of(key[1]) if at else ():
            for member in view.members:
                if member.resumed and member.place is not None:
                    member.cut("late stream")

    def _advance(self, key: Key, start: int, following: int) -> None:
        # `know` may have seen it after what was on its way here, and a publisher may go back.
        self.begun[key] = min(self.begun[key], start)
        del self.following[key]  # so that it goes to the end
        self.following[key] = following
        for view in self._views_of(key[1]):
            self._enter_id(view, key, following)

    def _enter_id(self, view: View, key: Key, following: int) -> None:
        """Note a stream's place in the ids, and keep these below their bound."""
        view.note(key, following)
        while view.id_bytes > ID_BYTES_MAX:
            oldest = self._superseded(view)
            if oldest is None:
                for member in view.members:
                    member.cut("too many streams")
                return
            view.forget(oldest)

    def _superseded(self, view: View) -> Key | None:
        """Return the stream that is silent for longest and was followed by one of its topic."""
        latest: dict[str, int] = {}
        for key in view.entries:
            latest[key[1]] = max(latest.get(key[1], -1), self._appeared[key])
        return next((key for key in view.entries if self._appeared[key] < latest[key[1]]), None)
