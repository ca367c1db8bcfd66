"""Where the streams of a durable subscriber, or of a relay's receiving side, resume.

A publisher has gone back where the head of a stream is below what this subscriber has of it: its
log was restored from a copy, or has lost its end, goes on in the same session, and uses sequences
again. Only the answer of the publisher itself to a PROBE is compared: it was made after the PROBE
was sent (`newer`), so the heads of a publisher that has not gone back cannot be below what the
subscriber had then, however late other frames are. Relays lag.

A publisher may have passed the subscriber's position again by then. It is known all the same if
its echo says that its new incarnation began below what its former incarnation had sent to us, or
below what that had reported of itself: each echo and heartbeat says of which incarnation it is.
From the first sign of another incarnation until the echo, nothing of the session is taken: the
sequences may be those of other messages. Where relays have or had the session, only what it had
reported is compared.

In a multicast anybody can report messages that never were. So a head that was only heard of shows
nothing there: what came or was confirmed counts, and before a stream has begun only what came and
is not further ahead of the answer than is believed at all. Nothing that another incarnation sends
is taken before its echo there either, since its datagrams come from another port; so all that came
until then was of the former incarnation. (Where it got the same port by chance, 1 in 28,232 by
Linux's defaults, or where relays have the session, too, the head alone is compared.)

::

    PROBE: remember the heads ──▶ ECHO: a head is below ──▶ what is still missing is lost: `rewound`
                                                            the stream begins again where the log
                                                            of the publisher's new incarnation ended
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from p2pmsg import control
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.sessions import Compared, Session, Stream
from p2pmsg.topics import matches

if TYPE_CHECKING:
    from p2pmsg.stats import CursorStats
    from recovery import CursorFile


class Resume:
    """What a `SubscriberCore` asks to know where streams begin; of itself it notes nothing."""

    newcomers: list[Session]
    """Sessions that are to be noted before anything of them is delivered."""

    def contacted(self, line: int) -> bool:
        """Whether a publisher was met at a connection's endpoint before."""
        return False

    def start_of(self, session: int, topic: str, of_new: int) -> int | None:
        """Return where a stream begins, `of_new` if it is new; None: not known."""
        return None

    def known(self, session: int) -> Mapping[str, int]:
        """Return where the streams of a session resume, by topic."""
        return {}

    def rewind(self, peer: Session, topic: str, following: int) -> None:
        """Let a stream resume earlier: its publisher has gone back."""

    def note(self, peer: Session) -> None:
        """Note that the streams of a session begin."""

    def forget(self, peer: Session) -> None:
        """Note that a session is forgotten: it begins no more, and holds no other one up."""
        if peer in self.newcomers:
            self.newcomers.remove(peer)

    def recording(self, connections: Sequence[Connection]) -> Iterable[Callable[[], object]]:
        """Yield what writes the newcomers down, one by one; each is called before the next."""
        return ()

    def committed(self, stream: Stream) -> int | None:
        """Return the next sequence after a restart, or None."""
        return None


class ResumePoints(Resume):
    """Says where streams begin, by a cursor, and notes which sessions were joined.

    A session must be noted before anything of it is delivered: a subscriber that starts at
    `latest`, gets a message and dies before the first commit would begin at another `latest` and
    miss what was in between. So the shell has them recorded while there are `newcomers`, and
    delivers nothing, and the publisher counts the subscriber only then.

    Args:
        file: the cursor.
        endpoints: the endpoints, one a line.
        topics: what is subscribed to; empty: all.

    Attributes:
        newcomers: sessions that are to be noted.

    """

    def __init__(self, file: "CursorFile", endpoints: list[str], topics: list[str]) -> None:
        self.file = file
        self.newcomers: list[Session] = []
        self._rewound: dict[tuple[int, str], int] = {}
        self._endpoints = endpoints
        self._scope = ("*",) if not topics or "*" in topics else tuple(topics)

    def contacted(self, line: int) -> bool:
        """Whether a publisher was met at a line's endpoint, in this or a former incarnation.

        Then a session that is new there has begun since, as when a publisher restarts without a
        log, and nothing of it is too old.
        """
        return self._endpoints[line] in self.file.cursor.endpoints

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

    def recording(self, connections: Sequence[Connection]) -> Iterator[Callable[[], object]]:
        """Yield what writes the newcomers down, one by one; it may be begun again.

        Each raises as `CursorFile.join`, and has returned before the next one is asked for.
        """
        for (session, topic), following in list(self._rewound.items()):
            yield partial(self.file.rewind, session, topic, following)
            self._rewound.pop((session, topic), None)
        while self.newcomers:
            peer = self.newcomers[0]
            if not peer.is_decided:
                return  # an exception cut its joining short; it is probed again
            streams = list(peer.streams.values())
            starts = {s.topic: s.receiver.start for s in streams if s.receiver.started}
            at = {i for i, line in enumerate(connections) if line.session == peer.session}
            at |= {route.line for route in (peer.own, *peer.relayed)}
            endpoints = [self._endpoints[line] for line in sorted(at) if line >= 0]
            # Of one that was never joined, other streams may be as old as can be.
            scope = self._scope if peer.joined else tuple(peer.streams)
            yield partial(self.file.join, peer.session, scope, starts, endpoints)
            peer.own.keep_alive_ns = 0
            self.forget(peer)  # another call may have done the same

    def commit(self, positions: Iterable[tuple[Stream, int]], *, durable: bool) -> int:
        """Write positions down; return how many streams advanced."""
        return self.file.advance(self.entries(positions), durable=durable)

    def entries(self, positions: Iterable[tuple[Stream, int]]) -> list[tuple[int, str, int]]:
        """Return positions as the file has them: session, topic, and the next sequence."""
        return [
            (stream.peer.session, stream.topic, following)
            for stream, following in positions
            if not stream.retired
        ]

    def stats(self) -> "CursorStats":
        """Return the counters of the cursor."""
        from p2pmsg.stats import CursorStats

        file = self.file
        return CursorStats(
            path=file.path,
            commits=file.commits,
            sessions=len(file.cursor.sessions),
            streams=sum(len(known.streams) for known in list(file.cursor.sessions.values())),
            sessions_dropped=file.sessions_dropped,
            streams_dropped=file.streams_dropped,
        )

    def committed(self, stream: Stream) -> int | None:
        """Return the next sequence after a restart, or None where none was noted yet."""
        return self.file.cursor.next(stream.peer.session, stream.topic)


class WentBack(NamedTuple):
    """A publisher has gone back from `had`; its incarnation began at `began`, is at `following`."""

    topic: str
    had: int
    began: int
    following: int


def take_incarnation(peer: Session, heads: control.Heads) -> None:
    """Take from an echo which incarnation it is of, and up to where that has published."""
    if not heads.incarnation:
        return
    is_same, peer.incarnation = heads.incarnation == peer.incarnation, heads.incarnation
    for head in heads.streams:
        stream = peer.streams.get(head.topic)
        if stream is not None:  # an answer may be older than a heartbeat
            stream.compared.published = max(head.next, stream.compared.published if is_same else 0)


def on_probed(peer: Session, asked: int) -> None:
    """Remember how far the streams of a session have come, when it is probed.

    A position up to `asked`, the sequence to start at, shows nothing: it may be yet to come.
    """
    for stream in peer.streams.values():
        stream.compared.probed = _heard(stream.receiver.head_known, asked)


def is_compared(peer: Session, committed: Mapping[str, int]) -> bool:
    """Whether the answer to a session's probe is compared with anything, so that it must be newer.

    What first comes while the answer is on its way does not count.
    """
    if any(stream.compared.probed for stream in peer.streams.values()):
        return True
    return not peer.joined and bool(committed)


def find_rewound(
    peer: Session, heads: control.Heads, committed: Mapping[str, int], asked: int
) -> list[WentBack]:
    """Return the streams whose publisher has gone back, as its answer shows.

    It is below what it had when it was asked, or was committed of it in a former incarnation of
    this subscriber; or it began below what its own former incarnation had.
    """
    listed = {head.topic: head for head in heads.streams}
    are_known = bool(heads.incarnation and peer.incarnation)
    is_other = are_known and heads.incarnation != peer.incarnation
    found = []
    for topic in dict.fromkeys((*peer.streams, *committed)):
        stream = peer.streams.get(topic)
        compared = Compared() if stream is None else stream.compared
        if topic not in listed and heads.denied and matches(topic, heads.denied):
            compared.unseen |= is_other  # where it is now is not known
            continue
        has_new_incarnation, compared.unseen = is_other or compared.unseen, False
        following, began = _place(listed.get(topic), heads.floor)
        if are_known and not has_new_incarnation:
            continue  # it runs still, and has not gone back; what it does not list, it denies to us
        had = max(compared.probed, _heard(committed.get(topic, 0), asked))
        former = 0
        if stream is not None and has_new_incarnation:
            former = _of_former(peer, stream, asked)
        if following < had or began < former:
            found.append(WentBack(topic, had, began, following))
    return found


def _of_former(peer: Session, stream: Stream, asked: int) -> int:
    """Return up to where the incarnation before the one that answers now was, at least.

    A new connection begins with a WELCOME that says of which incarnation it is, and from then on
    nothing was taken until the echo; so all that came over connections to the publisher itself is
    of the former one. In a multicast that is so where the datagrams came from another address.
    """
    published, receiver = stream.compared.published, stream.receiver
    if peer.was_relayed:
        return published  # a relay may have passed on what the new one published
    if peer.group is None:
        return max(published, _heard(receiver.received_stop, asked))
    return max(published, _heard(receiver.head_known, asked)) if peer.group.moved else published


def _heard(position: int, asked: int) -> int:
    return position if position > asked else 0


def _place(head: control.Head | None, floor: int) -> tuple[int, int]:
    """Return a stream's next sequence, and where its publisher's incarnation began with it."""
    if head is None:
        return floor, floor
    return head.next, head.next if head.began is None else min(head.began, head.next)
