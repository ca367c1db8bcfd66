"""Publishers that have gone back: the head of a stream is below what this subscriber has of it.

A publisher's log that was restored from a copy, or has lost its end, goes on in the same session,
and gives sequences that are in use to other messages. An honest publisher cannot be seen so: its
answer to a PROBE was made after the PROBE was sent (`newer`), so its heads are not below what the
subscriber had then, however late other frames are. Only the publisher's own answer is compared:
relays lag.

One that has passed the subscriber's position again by then is known all the same where it says, in
its echo, that its new life began below what its former life had told of itself: each echo and
heartbeat says of which life it is. As soon as another life is heard of, nothing of the session is
taken until the echo: the sequences may be those of other messages.

In a multicast anybody can tell of messages that never were, so a head that was only heard of shows
nothing: there it is what came or was confirmed that counts, and before a stream has begun only what
came and is not further ahead of the answer than is believed at all.

::

    PROBE: remember the heads ──▶ ECHO: a head is below ──▶ what is still missing is lost: `rewound`
                                                            the stream begins again where the log
                                                            of the publisher's new life ended
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from p2pmsg import control
from p2pmsg.publisher.requests import matches
from p2pmsg.subscriber.sessions import Session, Stream

DOUBT_NS: Final = 1_000_000_000
"""How long an echo is waited for at most, until messages of another life are taken as they come."""


class WentBack(NamedTuple):
    """A publisher has gone back: its life began at `began`, and it is at `following` now."""

    stream: Stream
    following: int
    began: int


class WentBackBelow(NamedTuple):
    """A publisher has gone back to `began`, before what was `committed` of a topic."""

    topic: str
    began: int
    committed: int


def note_life(peer: Session, life: int, now_ns: int) -> bool:
    """Note which life of a publisher is heard of; True: it is another one, and to be probed.

    Not in a multicast, where anybody may say so: there it comes over TCP (`Admitted`).
    """
    known = (0, peer.life, peer.next_life)
    if not peer.life or life in known or peer.group is not None:
        return False
    peer.next_life, peer.doubt_until_ns = life, now_ns + DOUBT_NS
    return True


def take_life(peer: Session, heads: control.Heads) -> None:
    """Take from an echo which life it is of, and up to where that has published."""
    peer.doubt_until_ns = peer.next_life = 0
    if not heads.life or peer.group is not None:
        return
    is_same, peer.life = heads.life == peer.life, heads.life
    for head in heads.streams:
        stream = peer.streams.get(head.topic)
        if stream is not None:  # an answer may be older than a heartbeat
            stream.published = max(head.next, stream.published if is_same else 0)


def note_probed(peer: Session, asked: int) -> None:
    """Remember how far the streams of a session have come, when it is probed.

    A position up to `asked`, the sequence to start at, shows nothing: it may be yet to come.
    """
    for stream in peer.streams.values():
        receiver = stream.receiver
        if peer.group is None:
            stream.probed = _heard(receiver.head_known, asked)
        elif receiver.started:
            stream.probed = _heard(max(receiver.received_stop, stream.confirmed), asked)
        else:
            stream.probed, stream.probed_early = 0, receiver.early_stops


def is_compared(peer: Session, committed: Mapping[str, int]) -> bool:
    """Whether the answer to a session's probe is compared with anything, so that it must be newer.

    What first comes while the answer is on its way does not count.
    """
    if any(stream.probed or stream.probed_early for stream in peer.streams.values()):
        return True
    return not peer.joined and bool(committed)


def find_rewound(peer: Session, heads: control.Heads, asked: int) -> list[WentBack]:
    """Return the streams whose publisher has gone back, as its answer shows."""
    listed = {head.topic: head for head in heads.streams}
    is_other = bool(heads.life and peer.life) and heads.life != peer.life
    found = []
    for topic, stream in peer.streams.items():
        following, began = _place(listed.get(topic), heads.floor)
        if stream.probed_early:
            _note_early(stream, following if topic in listed else None, asked)
        if following < stream.probed or (is_other and began < stream.published):
            found.append(WentBack(stream, following, began))
    return found


def find_below(
    heads: control.Heads, committed: Mapping[str, int], topics: list[str], asked: int
) -> Iterator[WentBackBelow]:
    """Yield the topics of which an answer shows less than was committed."""
    listed = {head.topic: head for head in heads.streams}
    for topic, position in committed.items():
        following, began = _place(listed.get(topic), heads.floor)
        if following < _heard(position, asked) and matches(topic, topics):
            yield WentBackBelow(topic, began, position)


def _heard(position: int, asked: int) -> int:
    return position if position > asked else 0


def _note_early(stream: Stream, following: int | None, asked: int) -> None:
    """Work out up to where a multicast's publisher was, when it was asked to begin a stream.

    Of a topic that it does not know (None) there may have been nothing: it is asked again.
    """
    stops, stream.probed_early = stream.probed_early, ()
    if following is not None:  # its answer to another question may have begun it since
        believed = [stop for stop in stops if stop <= following + stream.jump_max]
        stream.probed = _heard(max(believed, default=0), asked)


def _place(head: control.Head | None, floor: int) -> tuple[int, int]:
    """Return a stream's next sequence, and where its publisher's life began with it."""
    if head is None:
        return floor, floor
    return head.next, head.next if head.began is None else min(head.began, head.next)
