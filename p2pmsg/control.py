"""Bodies of the control frames, as msgpack arrays; a body that does not fit raises `FrameError`."""

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Final, TypeVar
from zlib import crc32

from p2pmsg import codec
from p2pmsg.wire import Frame, FrameError

RANGES_MAX: Final = 1024
"""How many ranges one NACK may have; a receiver asks for the rest with its next one."""

PAGES_MAX: Final = 4096
"""Pages of heads: a GiB."""
STREAMS_MAX: Final = 2**20
"""Of how many streams a reader takes the heads: 16 times as many as a publisher has by default."""
_PAGE_BYTES: Final = 256 * 1024
_ANSWERS_MAX: Final = 64
"""Answers of which a part has come."""
_HEAD_BYTES: Final = 40
"""What a head has at most in addition to its topic."""

Sequence = Annotated[int, codec.Meta(ge=0, le=2**63 - 1)]
Id = Annotated[int, codec.Meta(ge=0)]  # msgpack has none above 64 bits
Topic = Annotated[str, codec.Meta(min_length=1, max_length=255)]
Name = Annotated[str, codec.Meta(max_length=255)]
Range = tuple[Sequence, Sequence]
Pattern = Annotated[str, codec.Meta(max_length=256)]
DENIED_MAX = 1024
"""Patterns that an echo says to be denied. Of more it says `*`: what it does not list may be."""


class Welcome(codec.Struct, array_like=True):
    """Publisher to each new connection: who is here, and where repairs are to be asked for."""

    name: Name
    recovery: Annotated[str, codec.Meta(max_length=1024)]
    stall_ms: float
    """How long a full subscriber may hold up the publisher; negative: it may not."""
    receivers: int = -1
    """In a multicast, how many there are; negative: this is none."""
    age_ms: Annotated[float, codec.Meta(ge=0, le=1e12)] = 0.0
    """In a multicast, how long ago the publisher started; a session may be older, by its log."""
    incarnation: Id = 0
    """Random, and new at each start of the publisher; 0: a relay's."""
    message_bytes_max: Annotated[int, codec.Meta(ge=0, le=2**62)] = 0
    """How large its messages may be, packed, in bytes; 0: a relay's, which others publish."""


class Probe(codec.Struct, array_like=True):
    """Subscriber to publisher: answer me over the data path, to this id."""

    probe: Id
    topics: list[Annotated[str, codec.Meta(max_length=256)]]
    """What it takes: a topic, or a prefix that ends in `*`."""
    start: str
    """`latest`, `earliest`, `sequence` or `time`."""
    position: int = 0
    """The sequence, or the time in ns."""
    newer: bool = False
    """Whether the answer must not be older than this: the heads are compared with what has come."""


class Head(codec.Struct, array_like=True):
    """One stream's place: what is kept begins at `earliest`, what comes next is `next`."""

    topic: Topic
    earliest: Sequence
    next: Sequence
    start: Sequence = 0
    began: Sequence | None = None
    """Where the stream stood when its publisher's process opened its log; None: a relay's."""


class Heads(codec.Struct, array_like=True):
    """Publisher to subscriber: ECHO over the data path, or HEADS over the recovery channel."""

    name: Name
    streams: list[Head]
    floor: Sequence = 0
    """Where any other stream of the session begins: what it had before was lost in a crash."""
    page: Annotated[int, codec.Meta(ge=0, le=PAGES_MAX)] = 0
    more: Annotated[int, codec.Meta(ge=0, le=PAGES_MAX)] = 0
    """How many pages follow: of many streams there are several, one right after the other."""
    incarnation: Id = 0
    """Of the publisher; see `Welcome`."""
    denied: Annotated[list[Pattern], codec.Meta(max_length=DENIED_MAX)] = []
    """In an echo, on its last page: of what was asked for, what is denied. So it is not taken for
    what the publisher does not have any more."""


def pages_of(heads: Heads) -> list[Heads]:
    """Cut heads into pages of 256 KiB at most: many streams would not fit in a frame."""
    pages: list[list[Head]] = [[]]
    size = 0
    for head in heads.streams:
        head_bytes = len(head.topic.encode()) + _HEAD_BYTES
        if size + head_bytes > _PAGE_BYTES:
            pages.append([])
            size = 0
        size += head_bytes
        pages[-1].append(head)
    last = len(pages) - 1
    made = [
        Heads(heads.name, streams, heads.floor, page, last - page, heads.incarnation)
        for page, streams in enumerate(pages)
    ]
    made[-1].denied = heads.denied
    return made


class HeadPages:
    """Puts the pages of heads together again; heads of more than `streams_max` are forgotten."""

    def __init__(self, streams_max: int) -> None:
        self._streams_max = streams_max
        self._pages: dict[int, list[Heads]] = {}

    def take(self, probe: int, page: Heads) -> Heads | None:
        """Take a page of the answer to `probe`; return the whole with its last one."""
        if page.page == 0:
            if not page.more:
                return page
            if len(self._pages) >= _ANSWERS_MAX:
                self._pages.clear()
            self._pages[probe] = []
        pages = self._pages.get(probe)
        if pages is None or page.page != len(pages):
            self._pages.pop(probe, None)  # one is missing: it will be probed again
            return None
        pages.append(page)
        if not page.more:
            del self._pages[probe]
            streams = [head for one in pages for head in one.streams]
            return Heads(
                page.name, streams, page.floor, incarnation=page.incarnation, denied=page.denied
            )
        if sum(len(one.streams) for one in pages) > self._streams_max:
            del self._pages[probe]
        return None


class Joined(codec.Struct, array_like=True):
    """Subscriber to publisher: the echo came, so the data path works; repeated as a keep-alive."""

    subscriber: Id
    name: Name
    complete: bool = False
    """Whether everything up to the last known head was received or reported lost."""
    wants_token: bool = False
    """Whether an `Admitted` is to answer; in a multicast only."""
    settles: bool = False
    """Whether `complete` says that the work is done, or that a relay keeps what it has received;
    otherwise only that it was received."""


class Admitted(codec.Struct, array_like=True):
    """Publisher to a subscriber of its multicast, over the recovery channel: you have joined.

    The frame's sequence is that of the JOINED that it answers.
    """

    token: Id
    """To be put into NACKs and marks by UDP; nobody else gets this one."""
    parity: Annotated[int, codec.Meta(ge=0, le=255)] = 0
    """How many parity datagrams follow a block; 0: there are none."""


class Nack(codec.Struct, array_like=True):
    """Subscriber to publisher: I miss these."""

    topic: Topic
    ranges: Annotated[list[Range], codec.Meta(max_length=RANGES_MAX)]
    attempt: Annotated[int, codec.Meta(ge=1)] = 1
    """How often they have been asked for; a multicast looks at it."""
    parts_of: Sequence | None = None
    """Where given, the ranges are parts of the frame with this sequence, cut into fragments."""
    token: Id = 0
    """By UDP: what `Admitted` brought."""
    frame_bytes_max: Annotated[int, codec.Meta(ge=0, le=2**62)] = 0
    """The largest frame that it takes, in bytes: a larger one would end the connection, so it is
    refused with `too_large`. 0: without limit."""
    received: Sequence | None = None
    """How many frames it has received over the recovery channel, former connections included; None:
    it does not count. Over TCP what was sent to it after these is on its way: it is not sent again.
    """


class Refused(codec.Struct, array_like=True):
    """Publisher to subscriber: these cannot be had (`evicted`), or not now (`budget`).

    `denied` and `too_old` say that there is no right to them, or not to so much history;
    `too_large` that they are larger than the `frame_bytes_max` of the NACK, or of a relay.

    Without ranges: the NACK was heard, and it is not known yet whether what it asks for can be had.
    """

    topic: Topic
    ranges: list[Range]
    reason: Annotated[str, codec.Meta(max_length=32)]


class Denied(codec.Struct, array_like=True):
    """To who asked: for these there is no right; of all else the answer comes, too."""

    verb: Annotated[str, codec.Meta(max_length=32)]
    """What would be needed, as `subscribe`."""
    patterns: list[Annotated[str, codec.Meta(max_length=256)]]
    """Topics, or prefixes that end in `*`, as they were asked for; or the name of a queue."""
    why: Annotated[str, codec.Meta(max_length=256)] = ""
    """Of the first one: which rule denies it."""


class Heartbeat(codec.Struct, array_like=True):
    """Publisher to subscribers of a stream: what is kept begins here; the header has the next."""

    earliest: Sequence
    endpoint_hash: Annotated[int, codec.Meta(ge=0, lt=2**32)] = 0
    """`endpoint_hash_of` the recovery endpoint: who knows another one has missed the last
    welcome."""
    incarnation: Id = 0
    """Of the publisher; see `Welcome`. A relay says none."""


PATH_MAX: Final = 64
"""How many relays may be chained."""
SESSIONS_PER_PAGE: Final = 256
CARRIES_MAX: Final = 64
"""How many topics and prefixes a relay says that it takes; one that takes more says nothing."""


class SessionEntry(codec.Struct, array_like=True):
    """One session that a relay serves."""

    session: Id
    name: Name
    hops: Annotated[int, codec.Meta(ge=1, le=PATH_MAX)]
    """How many relays are between the reader of this and the publisher: 1 next to it."""


class Sessions(codec.Struct, array_like=True):
    """Relay to subscriber: whose streams it serves, a page at a time."""

    path: Annotated[list[Id], codec.Meta(max_length=PATH_MAX)]
    """The relays from which it gets anything, and from which those do, itself included."""
    sessions: Annotated[list[SessionEntry], codec.Meta(max_length=SESSIONS_PER_PAGE)]
    following: Annotated[int, codec.Meta(ge=0, lt=2**32)] = 0
    """Where the next page begins; 0: this is the last one."""
    settled: bool = True
    """Whether it knows of all that its upstreams have: none of them is away, or has just begun."""
    carries: Annotated[list[Pattern], codec.Meta(max_length=CARRIES_MAX)] = []
    """The topics and prefixes that it takes, where it leaves some out; empty: all, or many."""


def endpoint_hash_of(recovery: str) -> int:
    """Return the CRC-32 of a recovery endpoint."""
    return crc32(recovery.encode())


class Marked(codec.Struct, array_like=True):
    """Subscriber to a multicast publisher: I have read up to the mark in the header's sequence."""

    subscriber: Id
    complete: Sequence
    """The last mark before which I miss nothing."""
    space_bytes: Annotated[int, codec.Meta(ge=1, le=2**40)]
    """How much may be sent beyond it before my buffer may overflow."""
    token: Id = 0
    """What `Admitted` brought."""


class Settled(codec.Struct, array_like=True):
    """Subscriber to publisher: the application is done with all of the stream below `next`.

    Beyond JOINED's `complete`: it says how far, at any time, and that the work is done.
    """

    topic: Topic
    next: Sequence
    lost: Annotated[list[Range], codec.Meta(max_length=RANGES_MAX)] = []
    """What it is done with although it has lost it, or some of that."""


T = TypeVar("T")
B = TypeVar("B", bound=codec.Struct)
_BODY_ERRORS: Final = (codec.CodecError, ValueError, RecursionError, OverflowError)
_decoder_of: Final = lru_cache(maxsize=None)(codec.make_decoder)


def read_body(frame: Frame, kind: type[B]) -> B:
    """Return the body of a control frame; `FrameError` where it does not fit."""
    try:
        body: B = _decoder_of(kind).decode(frame.data[frame.body_at :])
    except _BODY_ERRORS:
        raise FrameError("body") from None
    return body


def decoded(frame: Frame, decode: Callable[[memoryview], T]) -> T:
    """Return a frame's body as `decode` reads it; `FrameError` where it does not fit."""
    try:
        return decode(memoryview(frame.data)[frame.body_at :])
    except _BODY_ERRORS:
        raise FrameError("body") from None
