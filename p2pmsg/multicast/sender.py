"""A multicast publisher's part of the protocol: NACKs, repairs, flow control. No I/O.

::

    datagram from a receiver ──▶ receive ──NACK──▶ GroupRepair ──▶ next_repair ──▶ to all, or to one
                                         └─MARKED─▶ FlowWindow

A datagram counts only with a token that its sender got over the recovery channel when it joined; so
nobody else is answered, waited for, or makes the publisher send anything.

What a NACK asks for and the replay buffer does not have is not answered: its receiver asks over
the recovery channel, which has the log, and a definite answer. What has not gone out because it
is not on the disk yet is not answered either.
"""

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from p2pmsg import control, wire
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import MessageError
from p2pmsg.multicast import datagram
from p2pmsg.multicast.parity import ParityMaker, overhead_bytes, require_codec
from p2pmsg.publisher.packing import PACKING_ERRORS, fill_body, packing_error, start_frame
from p2pmsg.publisher.served import Packed, PublisherStream, ServedSession
from p2pmsg.wire import ARRAY4, NO_COLUMNS, REST, Frame, FrameError, Kind, encoder
from recovery import FlowWindow, GroupRepair, ReplayBuffer

if TYPE_CHECKING:
    from p2pmsg.multicast.group_keys import GroupKeys

_LAG_PART = 4
"""How far the slowest receiver may lag: a quarter of what the replay buffer holds."""
FRAMES_PER_CALL: Final = 45
"""So many datagrams of 1,400 bytes fit the 64 KiB that one call sends."""
_encode_into: Final = encoder.encode_into
_PARTS_OF = "\0"
"""Between a topic, which has no zero byte, and the sequence of a frame whose parts are repaired."""


@dataclass(slots=True)
class Repair:
    """What answers a NACK: one frame, or several parts of one."""

    requester: bytes
    frames: list[bytes]
    stream: str
    start: int
    stop: int


class MulticastSender:
    """Answers the receivers of a multicast; give it to `PublisherCore.use_multicast`.

    Args:
        served: the session that is published.
        replay: its replay buffer.
        config: of the publisher.
        datagram_bytes: the size of a datagram.
        rng: draws the tokens by which joined subscribers are known: nobody may guess them.
        keys: seal all datagrams but announcements. Default None: they are readable.

    Attributes:
        repair: what the group still waits for.
        window: how far the receivers have come.
        invalid: datagrams from receivers that were dropped, by reason.
        nacks: NACKs that came by UDP.
        messages_repaired, bytes_repaired: what was sent again.
        datagram_bytes: the size of a datagram, if it had a checksum and was not sealed.
        frame_bytes: how much of a datagram a frame may be.
        parity: makes parity, where that is configured.

    """

    def __init__(
        self,
        served: ServedSession,
        replay: ReplayBuffer,
        config: PublisherConfig,
        datagram_bytes: int,
        rng: Random,
        keys: "GroupKeys | None" = None,
    ) -> None:
        self.keys = keys
        self.welcome_flags = 0
        if keys is not None:
            self.welcome_flags = wire.FLAG_SEALED
            datagram_bytes -= keys.group.overhead_max - datagram.TRAILER_BYTES
        self._served = served
        self._replay = replay
        self._rng = rng
        self._owners: dict[int, int] = {}
        self._tokens: dict[int, int] = {}
        self.config = multicast = config.multicast
        self.datagram_bytes = datagram_bytes
        self.frame_bytes = datagram_bytes - datagram.TRAILER_BYTES
        self.parity: ParityMaker | None = None
        if multicast.fec_data:
            require_codec(multicast.fec_parity)
            self.parity = ParityMaker(served.session, multicast.fec_data, multicast.fec_parity)
            self.frame_bytes = max(256, self.frame_bytes - overhead_bytes(multicast.fec_data))
        self.repair = GroupRepair(multicast.repair_rate_bytes_s)
        self.window = FlowWindow(config.replay_bytes // _LAG_PART or 1)
        self.invalid: Counter[str] = Counter()
        self.nacks = 0
        self.messages_repaired = self.bytes_repaired = 0

    def receive(self, data: bytes, address: Any, *, now_ns: int) -> None:
        """Take a datagram that came from a receiver; what is malformed is counted."""
        try:
            sealed_by: int | None = None
            if self.keys is None:
                frame = Frame(datagram.open_datagram(data))
            else:
                sealed_by, content = self.keys.open(data)
                frame = Frame(datagram.without_zeros(content))
            if frame.session != self._served.session:
                raise FrameError("session")
            if frame.kind == Kind.NACK:
                self._receive_nack(frame, sealed_by, now_ns)
            elif frame.kind == Kind.MARKED:
                body = control.read_body(frame, control.Marked)
                owner = self._owner(body.token) if sealed_by is None else sealed_by
                if owner != body.subscriber:
                    raise FrameError("token")
                self.window.acknowledge(
                    body.subscriber, frame.sequence, body.complete, body.space_bytes
                )
            else:
                raise FrameError("kind")
        except FrameError as error:
            self.invalid[str(error)] += 1

    def datagram_of(self, frame: bytes) -> bytes:
        """Return the datagram of a frame."""
        if self.keys is None or self.is_open(frame):
            return datagram.with_checksum(frame)
        return self.keys.group.seal(frame)

    def datagrams_of(self, frames: list[bytes]) -> list[bytes]:
        """Return the datagrams of frames that are no announcements."""
        if self.keys is None:
            return [*map(datagram.with_checksum, frames)]
        pieces = self.keys.group.seal_train(frames)
        return [pieces[at] + pieces[at + 1] for at in range(0, len(pieces), 2)]

    def is_open(self, frame: bytes) -> bool:
        """Whether a frame is never sealed: it is an announcement, or a part of one."""
        if frame[0]:
            return False
        kind = frame[4]
        of_session = int.from_bytes(frame[7:15], "big") == self._served.session
        return kind == Kind.WELCOME or (kind == Kind.FRAGMENT and of_session)

    def receive_held(
        self, requester: bytes, frame: Frame, *, now_ns: int, user: str
    ) -> bytes | None:
        """Answer a subscriber that says which keys it has; None: it misses none."""
        if self.keys is None:
            raise FrameError("kind")
        return self.keys.receive_held(requester, frame, now_ns=now_ns, user=user)

    def handle_timer(self, *, now_ns: int) -> list[tuple[bytes, bytes]]:
        """Do what is due; returns (requester, frame) that are to be sent."""
        return [] if self.keys is None else self.keys.handle_timer(now_ns=now_ns)

    def next_deadline_ns(self) -> int | None:
        """Return when `handle_timer` has something to do, or None."""
        return None if self.keys is None else self.keys.next_deadline_ns()

    def admit(self, subscriber: int, requester: bytes, user: str = "") -> bytes:
        """Listen to a subscriber that has joined; returns the frame that says so."""
        if self.keys is not None:
            self.keys.admit(subscriber, requester, user)
        token = self._tokens.get(subscriber)
        if token is None:
            token = self._rng.getrandbits(64) or 1  # 0 stands for none
            self._tokens[subscriber] = token
            self._owners[token] = subscriber
            self.window.admit(subscriber)
        parity = self.config.fec_parity if self.parity is not None else 0
        body = control.Admitted(token, parity)
        return wire.control_frame(Kind.ADMITTED, self._served.session, body)

    def requester_gone(self, requester: bytes) -> None:
        """Note that a requester is no longer connected."""
        if self.keys is not None:
            self.keys.requester_gone(requester)

    def dismiss(self, subscriber: int) -> None:
        """Listen no more to a subscriber that has left."""
        self._owners.pop(self._tokens.pop(subscriber, 0), None)
        self.window.forget(subscriber)
        if self.keys is not None:
            self.keys.dismiss(subscriber)

    def pack(
        self,
        stream: PublisherStream,
        sequence: int,
        values: list[Any],
        keys: list[str | None] | None,
        times: list[int] | None,
        *,
        wall_ns: int,
        buffer: bytearray,
    ) -> list[Packed]:
        """Return frames of the first values, each of which fits a datagram if that can be."""
        prefix = stream.plain_prefix if keys is None and times is None else stream.prefix
        made = pack_datagrams(
            prefix, sequence, wall_ns, values, keys, times, stream.guess, self.frame_bytes, buffer
        )
        stream.guess = max(made[0][1], made[-1][1])
        return made

    @staticmethod
    def values_max(stream: PublisherStream) -> int:
        """Return how many values the next `pack` may take, about."""
        return FRAMES_PER_CALL * (stream.guess + 1)

    def _owner(self, token: int) -> int:
        owner = self._owners.get(token)
        if owner is None:
            raise FrameError("token")
        return owner

    def next_repair(self, *, now_ns: int) -> Repair | None:
        """Return what to send again next, or None; say `repair_sent` when it is on its way."""
        while (job := self.repair.next_job(now_ns=now_ns)) is not None:
            requester, stream, start, stop = job
            made = self._make(requester, stream, start, stop)
            if made is not None:
                return made
            self.repair.drop_range(requester, stream, start, stop)
        return None

    def repair_sent(self, repair: Repair, *, now_ns: int) -> None:
        """Note that `repair` is on its way."""
        size = sum(map(len, repair.frames))
        if _PARTS_OF not in repair.stream:
            self.messages_repaired += repair.stop - repair.start
        self.bytes_repaired += size
        self.repair.sent(
            repair.requester, repair.stream, repair.start, repair.stop, size, now_ns=now_ns
        )

    def next_repair_ns(self, *, now_ns: int) -> int | None:
        """Return when `next_repair` may have something, or None while nothing waits."""
        return self.repair.next_deadline_ns(now_ns=now_ns)

    def with_parity(self, frame: bytes) -> list[bytes]:
        """Return what goes into datagrams, and the parity that follows it."""
        made = self.parts(frame)
        if self.parity is not None and len(made) == 1:
            for parity in self.parity.follow(frame):
                made += self.parts(parity)
        return made

    def parts(self, frame: bytes, flags: int = 0) -> list[bytes]:
        """Return what goes into datagrams: the frame itself, or its fragments."""
        if len(frame) <= self.datagram_bytes - datagram.TRAILER_BYTES:
            return [datagram.with_flags(frame, add=flags) if flags else frame]
        return datagram.fragments(frame, self.datagram_bytes, flags)

    def _receive_nack(self, frame: Frame, sealed_by: int | None, now_ns: int) -> None:
        nack = control.read_body(frame, control.Nack)
        requester = b"%x" % (self._owner(nack.token) if sealed_by is None else sealed_by)
        self.nacks += 1
        if any(start >= stop for start, stop in nack.ranges):
            raise FrameError("range")
        stream, ranges = nack.topic, nack.ranges
        high = self._served.head(nack.topic)[1]
        earliest = self._replay.earliest(nack.topic)
        if nack.parts_of is not None:
            if nack.parts_of >= high:
                return
            kept = self._replay.first(nack.topic, nack.parts_of, nack.parts_of + 1)
            if kept is None or kept.start != nack.parts_of:
                return
            stream = f"{nack.topic}{_PARTS_OF}{nack.parts_of}"
            size = datagram.part_bytes(bytes(kept.frame), self.datagram_bytes)
            low, high = 0, -(-len(kept.frame) // size)
        else:
            low = high if earliest is None else earliest
        clipped = [(max(start, low), min(stop, high)) for start, stop in ranges]
        wanted = [(start, stop) for start, stop in clipped if start < stop]
        self.repair.request(requester, stream, wanted, attempt=nack.attempt, now_ns=now_ns)

    def _make(self, requester: bytes, stream: str, start: int, stop: int) -> Repair | None:
        topic, _, sequence = stream.partition(_PARTS_OF)
        first = int(sequence) if sequence else start
        kept = self._replay.first(topic, first, first + 1)
        if kept is None or kept.start > first:
            return None
        flags = wire.FLAG_RETRANSMISSION
        if sequence:
            stop = min(stop, start + 32)
            frame = bytes(kept.frame)
            frames = datagram.fragments(frame, self.datagram_bytes, flags)[start:stop]
        else:
            frames = self.parts(bytes(kept.frame), flags)
            stop = min(stop, kept.stop)
        if not frames:
            return None
        return Repair(requester, frames, stream, start, stop)


def pack_datagrams(
    prefix: bytes,
    sequence: int,
    timestamp_ns: int,
    values: list[Any],
    keys: list[str | None] | None,
    times: list[int] | None,
    guess: int,
    frame_bytes: int,
    buffer: bytearray,
) -> list[Packed]:
    """Return frames of the first values, of at most `frame_bytes` each.

    A frame of one value may be larger: it is sent in parts. `guess` is how many values a frame may
    take; `prefix` is the stream's, with FLAG_PLAIN where there are values only.
    """
    made: list[Packed] = []
    part = values
    at, end, count = 0, len(values), max(1, guess)
    rest_at = len(prefix)
    body_at = rest_at + REST.size
    start_frame(buffer, prefix)
    buffer[body_at] = ARRAY4
    try:
        while at < end and len(made) < FRAMES_PER_CALL:
            stop = at + count
            part = values[at:stop]
            base_ns = latest_ns = timestamp_ns
            if keys is None and times is None:  # `fill_body`, written out
                _encode_into(part, buffer, body_at + 1)
                buffer += NO_COLUMNS
            else:
                some_keys, some_times = keys and keys[at:stop], times and times[at:stop]
                base_ns, latest_ns = fill_body(
                    buffer, body_at, part, some_keys, some_times, timestamp_ns
                )
            size, number = len(buffer), len(part)
            if size > frame_bytes and number > 1:
                count = max(1, min(number - 1, number * (frame_bytes - body_at) // size))
                continue
            REST.pack_into(buffer, rest_at, sequence, number, size - body_at, base_ns)
            made.append((sequence, number, bytes(buffer), latest_ns))
            at, sequence = at + number, sequence + number
            if number == count and size + (size - body_at) // number < frame_bytes:
                count += 1
    except PACKING_ERRORS as error:
        if made:
            return made
        if isinstance(error, MessageError):
            raise
        raise packing_error("values", part, error) from error
    return made
