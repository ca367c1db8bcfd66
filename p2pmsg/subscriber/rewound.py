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

from typing import TYPE_CHECKING, Final

from p2pmsg import control
from p2pmsg.publisher.requests import matches
from p2pmsg.subscriber.sessions import Session, Stream
from recovery import LossReason, Rewound

if TYPE_CHECKING:
    from p2pmsg.subscriber.core import SubscriberCore

FORMER_MAX: Final = 16
"""Streams of a session that began again and whose ledgers are still shown; of others only the sums
are kept."""

DOUBT_NS: Final = 1_000_000_000
"""How long an echo is waited for at most, until messages of another life are taken as they come."""


def note_life(core: "SubscriberCore", peer: Session, life: int, now_ns: int) -> bool:
    """Note which life of a publisher is heard of; True: it is another one, and to be probed.

    Not in a multicast, where anybody may say so: there it comes over TCP (`Admitted`).
    """
    known = (0, peer.life, peer.next_life)
    if not peer.life or life in known or peer.group is not None:
        return False
    peer.next_life, peer.doubt_until_ns = life, now_ns + DOUBT_NS
    core._last = None  # so that no frame goes a short way
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


def note_probed(core: "SubscriberCore", peer: Session) -> None:
    """Remember how far the streams of a session have come, when it is probed."""
    for stream in peer.streams.values():
        receiver = stream.receiver
        if peer.group is None:
            stream.probed = _heard(core, receiver.head_known)
        elif receiver.started:
            stream.probed = _heard(core, max(receiver.received_stop, stream.confirmed))
        else:
            stream.probed, stream.probed_early = 0, receiver.early_stops


def is_compared(core: "SubscriberCore", peer: Session) -> bool:
    """Whether the answer to a session's probe is compared with anything, so that it must be newer.

    What first comes while the answer is on its way does not count.
    """
    if any(stream.probed or stream.probed_early for stream in peer.streams.values()):
        return True
    return core.cursor is not None and not peer.joined and bool(core.cursor.known(peer.session))


def _heard(core: "SubscriberCore", position: int) -> int:
    """Return a position if its publisher was there; a sequence to start at may be yet to come."""
    asked = core.start.position if core.start.kind == "sequence" else 0
    return position if position > asked else 0


def find_rewound(
    core: "SubscriberCore", peer: Session, heads: control.Heads, now_ns: int
) -> None:
    """Begin again with the streams whose publisher has gone back, as its answer shows."""
    listed = {head.topic: head for head in heads.streams}
    is_other = bool(heads.life and peer.life) and heads.life != peer.life
    for topic, stream in list(peer.streams.items()):
        following, began = _place(listed.get(topic), heads.floor)
        if stream.probed_early:
            _note_early(core, stream, following if topic in listed else None)
        if following < stream.probed or (is_other and began < stream.published):
            _begin_again(core, stream, following, began, now_ns)
    if core.cursor is None or peer.joined:
        return
    patterns = core.topics or ["*"]
    for topic, committed in core.cursor.known(peer.session).items():
        stream_ = peer.streams.get(topic)
        following, began = _place(listed.get(topic), heads.floor)
        if following >= _heard(core, committed) or not matches(topic, patterns):
            continue
        if stream_ is None and core._stream_count >= core.config.streams_max:
            core.invalid["streams_max"] += 1
            continue
        stream_ = stream_ or core._add_stream(peer, topic)
        if not stream_.receiver.started:
            core.cursor.rewind(peer, topic, began)
            core.begin(stream_, began, now_ns=now_ns)
            _tell(core, stream_, Rewound(began, committed, LossReason.REWOUND))
            core._settle(stream_)


def _note_early(core: "SubscriberCore", stream: Stream, following: int | None) -> None:
    """Work out up to where a multicast's publisher was, when it was asked to begin a stream.

    Of a topic that it does not know (None) there may have been nothing: it is asked again.
    """
    stops, stream.probed_early = stream.probed_early, ()
    if following is not None:  # its answer to another question may have begun it since
        believed = [stop for stop in stops if stop <= following + stream.jump_max]
        stream.probed = _heard(core, max(believed, default=0))


def _place(head: control.Head | None, floor: int) -> tuple[int, int]:
    """Return a stream's next sequence, and where its publisher's life began with it."""
    if head is None:
        return floor, floor
    return head.next, head.next if head.began is None else min(head.began, head.next)


def _begin_again(
    core: "SubscriberCore", stream: Stream, following: int, began: int, now_ns: int
) -> None:
    peer, receiver = stream.peer, stream.receiver
    joined = receiver.started
    if not joined:  # what came of the publisher's former life before its echo
        limit = None if peer.group is None else following + stream.jump_max
        first = max(began, receiver.first_known)
        receiver.start_at(first, now_ns=now_ns, head_max=limit)
    receiver.observe_head(stream.probed, now_ns=now_ns)  # it may have been taken back since
    head = receiver.head
    receiver.abandon(LossReason.REWOUND, now_ns=now_ns)
    core._settle(stream)
    if core.tally is not None:
        core.tally.forget(stream)
    stream.retired, core._last = True, None
    peer.former.append(stream)
    if len(peer.former) > FORMER_MAX:
        core.forgotten.update(peer.former.pop(0).totals())
        core._stream_count -= 1
    new = core._add_stream(peer, stream.topic)
    new.history = following  # in a multicast, a log has it
    if core.cursor is not None:
        core.cursor.rewind(peer, stream.topic, began)
    _tell(core, new, Rewound(began, head, LossReason.REWOUND))
    if joined:  # else its echo says where it begins
        new.receiver.start_at(began, now_ns=now_ns)
    core._settle(new)


def _tell(core: "SubscriberCore", stream: Stream, rewound: Rewound) -> None:
    core.streams_rewound += 1
    core.ready.append((stream, rewound))
