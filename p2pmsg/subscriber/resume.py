"""Where the streams of a durable subscriber, or of a relay's receiving side, resume."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from p2pmsg.publisher.requests import matches
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.sessions import Session, Stream
from recovery import CursorFile


class Resume(Protocol):
    """What a `SubscriberCore` asks to know where streams begin."""

    newcomers: list[Session]
    """Sessions that are to be noted before anything of them is delivered."""

    def contacted(self, line: int) -> bool:
        """Whether a publisher was met at a connection's endpoint before."""

    def start_of(self, session: int, topic: str, of_new: int) -> int | None:
        """Return where a stream begins, `of_new` if it is new; None: not known."""

    def known(self, session: int) -> Mapping[str, int]:
        """Return where the streams of a session resume, by topic."""

    def rewind(self, peer: Session, topic: str, following: int) -> None:
        """Let a stream resume earlier: its publisher has gone back."""

    def note(self, peer: Session) -> None:
        """Note that the streams of a session begin."""

    def record(self, connections: Sequence[Connection]) -> None:
        """Write the newcomers down."""

    def committed(self, stream: Stream) -> int | None:
        """Return the next sequence after a restart, or None."""


class ResumePoints:
    """Says where streams begin, by a cursor, and notes which sessions were joined.

    A session must be noted before anything of it is delivered: a subscriber that starts at
    `latest`, gets a message and dies before the first commit would begin at another `latest` and
    miss what was in between. So the shell has them recorded while there are `newcomers`, and
    delivers nothing, and the publisher counts the subscriber only then.

    Args:
        file: the cursor.
        places: the endpoints, one a line.
        topics: what is subscribed to; empty: all.

    Attributes:
        newcomers: sessions that are to be noted.

    """

    def __init__(self, file: CursorFile, places: list[str], topics: list[str]) -> None:
        self.file = file
        self.newcomers: list[Session] = []
        self._rewound: dict[tuple[int, str], int] = {}
        self._places = places
        self._scope = ("*",) if not topics or "*" in topics else tuple(topics)

    def contacted(self, line: int) -> bool:
        """Whether somebody was met at a line's endpoint before, in this life or a former one.

        Then a session that is new there has begun since, as when a publisher restarts without a
        log, and nothing of it is too old.
        """
        return self._places[line] in self.file.cursor.places

    def start_of(self, session: int, topic: str, of_new: int) -> int | None:
        """Return where a stream begins; None: the cursor does not know.

        `of_new` is for a stream that is younger than the joining of its session: the cursor knows
        the session, the stream was subscribed to then, and yet it is not there.
        """
        if (session, topic) in self._rewound:
            return self._rewound[session, topic]
        known = self.file.cursor.sessions.get(session)
        if known is None:
            return None
        following = known.streams.get(topic)
        if following is None and matches(topic, list(known.scope)):
            return of_new
        return following

    def known(self, session: int) -> dict[str, int]:
        """Return where the streams of a session resume, by topic."""
        known = self.file.cursor.sessions.get(session)
        return {} if known is None else {**known.streams}

    def rewind(self, peer: Session, topic: str, following: int) -> None:
        """Let a stream resume from before what was committed: its publisher has gone back."""
        self._rewound[peer.session, topic] = following
        self.note(peer)

    def note(self, peer: Session) -> None:
        """Note that the streams of a session begin; once they have, it has joined or is gone."""
        if peer not in self.newcomers:
            self.newcomers.append(peer)

    def has_begun(self, peer: Session) -> bool:
        """Whether all streams of a session have begun that were there when it was joined."""
        return peer.joined or peer.gone or peer.given_up

    def record(self, connections: Sequence[Connection]) -> None:
        """Write down the newcomers; raises as `CursorFile.join`, and may be called again."""
        for (session, topic), following in list(self._rewound.items()):
            self.file.rewind(session, topic, following)
            del self._rewound[session, topic]
        while self.newcomers:
            peer = self.newcomers[0]
            if not self.has_begun(peer):
                return  # an exception cut its joining short; it is probed anew
            streams = list(peer.streams.values())
            starts = {s.topic: s.receiver.start for s in streams if s.receiver.started}
            at = {i for i, line in enumerate(connections) if line.session == peer.session}
            at |= {route.handshake.line for route in (peer.own, *peer.relayed)}
            places = [self._places[line] for line in sorted(at) if line >= 0]
            # Of one that was never joined, other streams may be as old as can be.
            scope = self._scope if peer.joined else tuple(peer.streams)
            self.file.join(peer.session, scope, starts, places)
            peer.handshake.keep_alive_ns = 0
            del self.newcomers[0]

    def commit(self, positions: Iterable[tuple[Stream, int]], *, durable: bool) -> int:
        """Write positions down; returns how many streams advanced."""
        return self.file.advance(
            [
                (stream.peer.session, stream.topic, following)
                for stream, following in positions
                if not stream.retired
            ],
            durable=durable,
        )

    def committed(self, stream: Stream) -> int | None:
        """Return the next sequence after a restart, or None where none was noted yet."""
        return self.file.cursor.next(stream.peer.session, stream.topic)
