"""What an onlooker learns of a multicast: sessions, topics, rates and loss. No I/O.

`p2pmsg listen` is made of it: a `Listener` takes what a `p2pmsg.toolkit.UdpReceiver` receives. It
asks for nothing and joins nobody, so what it misses is what the network lost on the way to it.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from p2pmsg import control, wire
from p2pmsg.mold import codec
from p2pmsg.multicast import datagram
from p2pmsg.multicast.run import is_sealed
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import RangeSet

STREAMS_MAX: Final = 4096
"""Streams that are distinguished; datagrams of further ones are only counted."""
MISSING_MAX: Final = 4096
"""Ranges of a stream that are remembered as missing."""


@dataclass(slots=True)
class StreamView:
    """One stream, as it was heard.

    Attributes:
        session, topic, publisher: which.
        address: where it comes from.
        messages, datagrams, bytes: what came, repairs aside.
        repairs: datagrams that were sent again.
        duplicates: messages that came again, repairs aside.
        next: the sequence after the highest one known of.
        missing: ranges that have not come.

    """

    session: str
    topic: str
    publisher: str
    address: str
    messages: int = 0
    datagrams: int = 0
    bytes: int = 0
    repairs: int = 0
    duplicates: int = 0
    next: int = -1
    missing: RangeSet = field(default_factory=RangeSet)

    @property
    def missing_count(self) -> int:
        """How many messages have not come."""
        return sum(stop - start for start, stop in self.missing)

    def note(self, start: int, count: int, size: int, *, repair: bool) -> None:
        """Take a frame into account."""
        stop = start + count
        if repair:
            self.repairs += 1
        else:
            self.messages += count
            self.datagrams += 1
            self.bytes += size
        if self.next < 0:
            self.next = start
        if start >= self.next:
            self._miss(start)
            self.next = stop
            return
        before = self.missing_count
        self.missing.remove(start, min(stop, self.next))
        if not repair:
            self.duplicates += max(0, min(stop, self.next) - start - before + self.missing_count)
        self.next = max(self.next, stop)

    def on_head(self, following: int) -> None:
        """Take into account that everything before `following` was sent."""
        if self.next < 0:
            self.next = following
        if following > self.next:
            self._miss(following)
            self.next = following

    def _miss(self, stop: int) -> None:
        if stop > self.next and len(self.missing) < MISSING_MAX:
            self.missing.add(self.next, stop)


class Listener:
    """Takes datagrams, of p2pmsg or of MoldUDP64.

    Args:
        mold: whether they are MoldUDP64's. Default False.

    Attributes:
        streams: by (session, topic).
        invalid: datagrams that are none of ours, by reason.

    """

    def __init__(self, *, mold: bool = False) -> None:
        self._mold = mold
        self.streams: dict[tuple[str, str], StreamView] = {}
        self.invalid: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def receive(self, data: memoryview, segment: int, address: Any) -> None:
        """Take consecutive datagrams of `segment` bytes."""
        for at in range(0, len(data) or 1, segment):
            piece = data[at : at + segment]
            try:
                if is_sealed(piece):
                    raise FrameError("sealed")
                if self._mold:
                    self._take_packet(piece, address)
                else:
                    self._take_frame(Frame(datagram.open_datagram(piece)), len(piece), address)
            except FrameError as error:
                reason = str(error)
                self.invalid[reason] = self.invalid.get(reason, 0) + 1

    def _take_packet(self, data: memoryview, address: Any) -> None:
        packet = codec.read_packet(data)
        name = packet.session.decode("latin-1").rstrip()
        view = self._view(name, "mold", name, address)
        if view is None:
            return
        if packet.messages:
            view.note(packet.sequence, len(packet.messages), len(data), repair=False)
        else:
            view.on_head(packet.sequence)

    def _take_frame(self, frame: Frame, size: int, address: Any) -> None:
        if frame.kind == Kind.WELCOME:
            welcome = control.read_body(frame, control.Welcome)
            if frame.session in self._names or len(self._names) < STREAMS_MAX:
                self._names[frame.session] = welcome.name
            return
        if not frame.topic or frame.kind not in (Kind.DATA, Kind.HEARTBEAT, Kind.FRAGMENT):
            return
        session = f"{frame.session:016x}"
        view = self._view(session, frame.topic, self._names.get(frame.session, ""), address)
        if view is None:
            return
        view.publisher = self._names.get(frame.session, view.publisher)
        if frame.kind == Kind.HEARTBEAT:
            view.on_head(frame.sequence)
            return
        repair = bool(frame.flags & wire.FLAG_RETRANSMISSION)
        if frame.kind == Kind.FRAGMENT:
            index, parts, _, _ = datagram.read_part(frame)
            if index < parts - 1:  # its last part stands for the message
                view.datagrams += 1
                view.bytes += size
                return
        view.note(frame.sequence, frame.count, size, repair=repair)

    def _view(self, session: str, topic: str, publisher: str, address: Any) -> StreamView | None:
        key = session, topic
        view = self.streams.get(key)
        if view is None:
            if len(self.streams) >= STREAMS_MAX:
                return None
            where = f"{address[0]}:{address[1]}"
            view = self.streams[key] = StreamView(session, topic, publisher, where)
        return view
