"""The receiver of a multicast: datagrams in, frames, NACKs and marks out. No I/O.

Its subscriber's core takes each frame before the next datagram is looked at: it may join the
session that the next one is of.

::

    datagrams ──▶ a run of one stream ──▶ one frame ─────┐
            └───▶ FRAGMENT ──▶ reassembly ──▶ frame ─────┼──▶ SubscriberCore
            └───▶ another frame ─────────────────────────┘
    a gap ──back-off──▶ NACK by UDP, attempts_max times ──▶ the recovery channel
       └─ history, or too long ─────────────────────────────────┘
"""

from collections import deque
from typing import Any, Protocol

from p2pmsg import control, wire
from p2pmsg.multicast import datagram
from p2pmsg.multicast.datagram import take_run
from p2pmsg.multicast.parity import WAIT_NS, ParityReader
from p2pmsg.multicast.run import Run
from p2pmsg.subscriber.announcement import Announcements
from p2pmsg.subscriber.group_keys import GroupKeyClient
from p2pmsg.subscriber.rejoin import Rejoin
from p2pmsg.subscriber.session_table import SessionTable
from p2pmsg.subscriber.sessions import VAIN_MAX, GroupState, Session, Stream
from p2pmsg.subscriber.states import State
from p2pmsg.topics import matches
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import RangeSet, Reassembler

_MS = 1_000_000
OUTGOING_MAX = 1024
"""Datagrams that wait to be sent back; what would pass it is asked for again."""
TOPICS_MAX = 65_536
"""Topics that are remembered as wanted or not."""
WARN_NS = 60_000 * _MS
"""The shortest time between two warnings about sealed publishers: anybody announces some."""
ATTEMPTS_MAX = 4
"""Times that a gap is asked for by UDP; then over the recovery channel. Four in a row are lost once
in 160,000 times at 5 % loss, and more often at 50 %."""
RANGES_PER_NACK = 48
"""So many ranges fit a datagram, with the longest topic."""

BY_UDP_NS = 60_000 * _MS
"""After how long one is asked for by UDP again, and the shortest time between two warnings."""
_Key = tuple[int, bytes, int, int]
"""Session, topic, sequence and kind of what was cut into parts."""


def is_from(peer: Session, line: int, address: Any) -> bool:
    """Whether a datagram comes from where a session's echo came from; True until there was one."""
    place = source_of_line(peer, line)
    return place is None or place == address


def source_of_line(peer: Session, line: int) -> Any:
    """Return where a session's echo came from over a line; None: there was none."""
    state = peer.group
    return None if state is None else state.sources.get(line)


class FrameTaker(Protocol):
    """Takes what datagrams bring; `SubscriberCore` does."""

    def receive_frame(self, line: int, data: bytes, *, now_ns: int, shed: bool = False) -> None:
        """Take a frame as one of a connection."""

    def receive_run(self, line: int, run: Run, now_ns: int) -> None:
        """Take a frame joined of many of the last stream's."""

    def receive_repair(
        self, stream: Stream, frame: Frame, now_ns: int, *, is_sent: bool = True
    ) -> None:
        """Take a frame that was missing, and was sent again, or worked out from parity."""


class MulticastReceiver:
    """Takes the datagrams of a subscriber, and asks by datagrams for what is missing.

    Args:
        table: owns the sessions.
        announcements: takes what publishers announce.
        rejoin: asks publishers for what contradicts what is known.
        taker: takes the frames.

    Attributes:
        outgoing: (line, address, datagram) to send, oldest first.
        last_stream: the stream of the last frame that was taken, or None where it may not go on.
            Its owner sets it.
        buffer_bytes: how much each line's receive buffer holds; missing: not known yet.
        reassembler: the parts of large frames.
        parity: works out what was lost, once a publisher has sent parity.
        keys: opens sealed datagrams; None: those without a seal are taken, and no others.

    """

    def __init__(
        self, table: SessionTable, announcements: Announcements, rejoin: Rejoin, taker: FrameTaker
    ) -> None:
        self.keys: GroupKeyClient | None = None
        self._settings = table.settings
        self._config = table.settings.config.multicast
        self._table = table
        self._announcements = announcements
        self._rejoin = rejoin
        self._taker = taker
        self._shed = False
        self._lines = table.lines
        self._peers = table.peers
        self._effects = table.effects
        self._invalid = table.invalid
        self.outgoing: deque[tuple[int, Any, bytes]] = deque()
        self.last_stream: Stream | None = None
        self.buffer_bytes: dict[int, int] = {}
        self.reassembler: Reassembler[_Key] = Reassembler()
        # Of what is no message, most of which nothing waits for.
        self.control_parts: Reassembler[_Key] = Reassembler(
            bytes_max=2**20, wholes_max=64, age_max=1.0
        )
        self._gapped: dict[int, Session] = {}  # with marks that have a gap before them
        self.parity: ParityReader | None = None
        self._wanted: dict[bytes, bool] = {}
        self._known: tuple[Stream, int, Any] | None = None  # which comes from its publisher
        self._warn_ns = -WARN_NS

    def use_seal(self) -> None:
        """Take no datagrams except sealed ones, and announcements, which are hints."""
        subscriber, invalid = self._settings.subscriber, self._invalid
        signed_only = self._config.source == "signed"
        self.keys = self._table.keys = GroupKeyClient(
            subscriber, self._peers, self._effects, invalid, signed_only=signed_only
        )

    def receive(
        self,
        line: int,
        data: memoryview,
        segment: int,
        address: Any,
        *,
        now_ns: int,
        shed: bool = False,
    ) -> None:
        """Take what is in consecutive datagrams of `segment` bytes, the last perhaps shorter.

        What is kept of `data` is copied. With `shed`, messages are only noted to exist.
        """
        self._shed = shed
        if self.keys is None:
            self._decode(line, data, segment, address, now_ns)
        else:
            self._decode_sealed(self.keys, line, data, segment, address, now_ns)
        if self._gapped:
            self._answer_completed()

    def _decode_sealed(
        self,
        keys: GroupKeyClient,
        line: int,
        data: memoryview,
        segment: int,
        address: Any,
        now_ns: int,
    ) -> None:
        """Do as `receive`; of what is not sealed only announcements are taken."""
        at, end = 0, len(data)
        while at < end or not end:
            try:
                opened = keys.open_train(line, data, at, segment, address, now_ns)
                if opened is not None:
                    at = opened.after
                    if opened.datagrams and opened.segment > 0:
                        frames, session = memoryview(opened.frames), opened.key.owner
                        self._decode(line, frames, opened.segment, address, now_ns, session)
                    continue
            except FrameError as error:
                try:
                    self._receive_readable(line, data[at : at + segment], address, now_ns)
                except FrameError:
                    self._invalid[str(error)] += 1
            at += segment
            if not end:
                break

    def _receive_readable(self, line: int, data: memoryview, address: Any, now_ns: int) -> None:
        """Take an announcement, or a part of one, in a group where all else is sealed."""
        frame = datagram.open_datagram(data)
        if frame[0] or frame[4] not in (Kind.WELCOME, Kind.FRAGMENT):
            raise FrameError("unsealed")
        self._receive_frame(line, frame, address, now_ns)

    def _decode(
        self,
        line: int,
        data: memoryview,
        segment: int,
        address: Any,
        now_ns: int,
        sealed_by: int | None = None,
    ) -> None:
        """Do as `receive`, for datagrams with checksums, or those that a session has sealed."""
        state = self._lines[line]
        trailer_bytes = datagram.TRAILER_BYTES if sealed_by is None else 0
        at, end = 0, len(data)
        seen: Stream | None = None
        fits = False
        while at < end or not end:
            stream = self.last_stream
            if stream is not seen:
                seen, known = stream, self._known
                if known is None or known[0] is not stream or known[1:] != (line, address):
                    fits = stream is not None and is_from(stream.peer, line, address)
                    self._known = (stream, line, address) if fits and stream else None
                else:
                    fits = True
            if fits and stream is not None and not self._shed and self.parity is None:
                session = stream.peer.session
                run = None
                if sealed_by is None or sealed_by == session:
                    run = take_run(
                        stream.plain_prefix, stream.topic, session, data, at, segment,
                        trailer_bytes,
                    )  # fmt: skip
                if run is not None:
                    self._taker.receive_run(line, run, now_ns)
                    state.received += run.datagrams
                    state.last_heard_ns = now_ns
                    at = run.after
                    continue
            try:
                if sealed_by is None:
                    frame = datagram.open_datagram(data[at : at + segment])
                else:
                    frame = datagram.without_zeros(bytes(data[at : at + segment]))
                    self._check_sealer(frame, sealed_by)
                if fits and stream and self.parity is None and frame.startswith(stream.prefix):
                    self._pass_on(line, frame, now_ns)
                else:
                    self._receive_frame(line, frame, address, now_ns)
            except FrameError as error:
                self._invalid[str(error)] += 1
            at += segment
            if not end:
                break

    def _pass_on(self, line: int, data: bytes, now_ns: int) -> None:
        self._taker.receive_frame(line, data, now_ns=now_ns, shed=self._shed)

    def _check_sealer(self, frame: bytes, session: int) -> None:
        """Raise `FrameError` where a session's key has sealed a frame that is not its own."""
        zero = frame.index(b"\0")
        said = int.from_bytes(frame[zero + 7 : zero + 15], "big")
        if said == session:
            return
        if zero or frame[4] not in (Kind.ECHO, Kind.FRAGMENT):
            raise FrameError("owner")
        for peer in self._peers.values():  # an echo has the id of a probe, often another receiver's
            if peer.group and said in (peer.probe, peer.group.proof) and peer.session != session:
                raise FrameError("owner")

    def observe_head(self, stream: Stream, head: int, earliest: int, now_ns: int) -> None:
        """Take the head that a datagram names; its publisher is asked for one that is far ahead."""
        receiver = stream.receiver
        if receiver.started and head - receiver.head > stream.jump_max:
            self._rejoin.ask(stream.peer, now_ns, [stream.topic])
        else:
            receiver.observe_head(head, now_ns=now_ns)
        if earliest > receiver.expected:  # what is older is history, asked for over TCP
            stream.repairs.history = max(stream.repairs.history, min(earliest, receiver.head))

    def refuse_jump(self, stream: Stream, frame: Frame, now_ns: int) -> None:
        """Drop a frame so far ahead that its publisher is asked first whether that can be."""
        self._invalid["ahead"] += 1
        self._rejoin.ask(stream.peer, now_ns, [stream.topic])

    def receive_reply(self, peer: Session, frame: Frame, now_ns: int) -> bool:
        """Take what a publisher said over the recovery channel; False: it is nothing of ours."""
        if frame.kind == Kind.ADMITTED and peer.group is not None:
            body = control.read_body(frame, control.Admitted)
            peer.group.token, peer.group.parity = body.token, body.parity
        elif frame.kind == Kind.KEYS and self.keys is not None:
            self.keys.receive_keys(peer, frame, now_ns)
            self._table.repeat_probe(peer, peer.own)
        else:
            return False
        return True

    def ask(self, stream: Stream, *, window: int, crowded: bool, now_ns: int) -> None:
        """Ask for what is due of a stream, by UDP or over the recovery channel.

        Nothing holds back what comes by UDP, so no more than fits is asked for there: what is in
        the `window`.
        """
        peer, receiver, state = stream.peer, stream.receiver, stream.peer.group
        by_attempt = receiver.nacks.due_by_attempt(now_ns=now_ns, window=window, crowded=crowded)
        if peer.gone or not by_attempt or state is None:
            return
        far: list[tuple[int, int]] = []
        fits = receiver.expected + window
        for attempt, ranges in by_attempt.items():
            near: list[tuple[int, int]] = []
            for start, stop in ranges:
                if self._is_near(stream, start, stop, attempt, now_ns):
                    near.append((start, min(stop, max(fits, start + 1))))
                else:
                    far.append((start, stop))
                    if (
                        attempt > ATTEMPTS_MAX
                        and start >= stream.repairs.history
                        and state.is_followed
                    ):
                        state.vain, state.is_followed = state.vain + 1, False
                        state.by_udp_ns = now_ns + BY_UDP_NS
            state.is_followed |= bool(near) and attempt == 1
            self._nack(stream, near, attempt, now_ns)
        if far:
            self._effects.nack(peer.session, peer.session, stream.topic, list(RangeSet(far)))

    def _is_near(self, stream: Stream, start: int, stop: int, attempt: int, now_ns: int) -> bool:
        state = stream.peer.group
        return bool(
            attempt <= ATTEMPTS_MAX
            and state is not None
            and (state.token or self.keys is not None)
            and (state.vain < VAIN_MAX or now_ns >= state.by_udp_ns)
            and stop - start <= stream.jump_max
            and start >= stream.repairs.history
            and stream.peer.state is not State.ONE_WAY
            and state.sources
        )

    def _nack(
        self, stream: Stream, ranges: list[tuple[int, int]], attempt: int, now_ns: int
    ) -> None:
        peer, topic = stream.peer, stream.topic
        whole: list[tuple[int, int]] = []
        for start, stop in ranges:
            key = (peer.session, topic.encode(), start, int(Kind.DATA))
            missing = self.reassembler.missing(key)
            if missing:
                self._send(peer, control.Nack(topic, missing[:RANGES_PER_NACK], attempt, start))
                start += 1
            if start < stop:
                whole.append((start, stop))
        for index in range(0, len(whole), RANGES_PER_NACK):
            self._send(peer, control.Nack(topic, whole[index : index + RANGES_PER_NACK], attempt))

    def _send(self, peer: Session, nack: control.Nack) -> None:
        if peer.group is None or not peer.group.sources:
            return
        line, address = peer.group.place(self._lines)
        nack.token = peer.group.token
        frame = wire.control_frame(Kind.NACK, peer.session, nack)
        self._put(peer, line, address, frame)

    def _put(self, peer: Session, line: int, address: Any, frame: bytes) -> None:
        if len(self.outgoing) >= OUTGOING_MAX:
            return
        keys = self.keys
        made = datagram.with_checksum(frame) if keys is None else keys.seal(peer, frame)
        if made is not None:
            self.outgoing.append((line, address, made))

    def _receive_frame(self, line: int, data: bytes, address: Any, now_ns: int) -> None:
        zero = data.index(b"\0")
        kind, flags = data[zero + 4], data[zero + 5]
        if kind == Kind.WELCOME:
            self._receive_welcome(line, data, address, now_ns)
            return
        sender = self._peers.get(int.from_bytes(data[zero + 7 : zero + 15], "big"))
        proves_place = not zero and kind == Kind.FRAGMENT  # it is of a welcome, or of an echo
        if sender is not None and not proves_place and not is_from(sender, line, address):
            raise FrameError("source")
        if zero and not self._wants(data[:zero]):
            self._lines[line].last_heard_ns = now_ns
            if sender is not None:
                sender.last_heard_ns = now_ns
        elif kind == Kind.FRAGMENT:
            self._receive_part(line, Frame(data), address, now_ns)
        elif kind == Kind.PARITY:
            self._receive_parity(line, Frame(data), now_ns)
        elif kind == Kind.MARK:
            self._receive_mark(line, Frame(data), address, now_ns)
        elif kind == Kind.ECHO:
            self._receive_echo(line, data, address, now_ns)
        elif kind == Kind.DATA and flags & wire.FLAG_RETRANSMISSION:
            self._receive_repair(data, now_ns)
        else:
            if self.parity is not None and kind == Kind.DATA:
                frame = Frame(data)
                self.parity.note(frame.session, frame.topic, frame.sequence, data)
            self._pass_on(line, data, now_ns)

    def _receive_welcome(self, line: int, data: bytes, address: Any, now_ns: int) -> None:
        frame = Frame(data)
        state = self._lines[line]
        state.received += 1
        if bool(frame.flags & wire.FLAG_SEALED) != (self.keys is not None):
            self._refuse_welcome(line, frame, now_ns)
        self._announcements.receive_of_group(line, frame, address, now_ns)
        state.last_heard_ns = now_ns

    def _refuse_welcome(self, line: int, frame: Frame, now_ns: int) -> None:
        """Drop the announcement of a publisher that seals, or does not, unlike this subscriber."""
        name = control.read_body(frame, control.Welcome).name
        reason = "unsealed" if self.keys is not None else "sealed"
        if now_ns - self._warn_ns >= WARN_NS:
            self._warn_ns = now_ns
            kind, who, what = "sealed", "this subscriber has no keys", "it"
            if self.keys is not None:
                kind, who, what = "not sealed", "this subscriber has security=…", "the publisher"
            text = (
                f"publisher {name!r} (session {frame.session:016x}) sends datagrams that are "
                f"{kind}, and {who}: nothing of it is received. Give {what} security=…, too"
            )
            self._effects.warn(line, frame.session, text)
        raise FrameError(reason)

    def _receive_echo(self, line: int, data: bytes, address: Any, now_ns: int) -> None:
        """Take an echo, which shows where the datagrams of its publisher come from.

        Only it knows the probe, until it sends this. A sealed echo shows it only where the
        publisher has said so, too: who hears one may repeat it before it comes.
        """
        probe = Frame(data).session
        peers = [p for p in self._peers.values() if p.group and probe in (p.probe, p.group.proof)]
        for peer in peers:
            if peer.group is not None:
                peer.group.moved = self._has_moved(peer.group, line, address)
        self._pass_on(line, data, now_ns)
        for peer in peers:
            state = peer.group
            if state is None or not peer.joined:
                continue
            self._known = None
            if state.proof != probe:
                state.proof, state.sources = probe, {}
            if self.keys is not None and not self.keys.believes(peer, line, address, now_ns):
                continue
            state.sources.setdefault(line, address)  # copies come over each line

    def _has_moved(self, state: GroupState, line: int, address: Any) -> bool:
        """Whether a session's datagrams came from elsewhere until now, over whatever line."""
        lines = {at for at, one in enumerate(self._lines) if one.shared}
        return lines == state.sources.keys() and bool(state.sources[line] != address)

    def _receive_parity(self, line: int, frame: Frame, now_ns: int) -> None:
        peer = self._peers.get(frame.session)
        if peer is None or not peer.joined or peer.group is None:
            return
        if not peer.group.parity:
            raise FrameError("parity")
        peer.last_heard_ns = self._lines[line].last_heard_ns = now_ns
        if self.parity is None:
            self.parity = ParityReader()
        for stream in peer.streams.values():
            stream.receiver.nacks.delay(WAIT_NS)
        for data in self.parity.take(frame, self._wants):
            again = Frame(data)
            if again.session != frame.session or again.kind != Kind.DATA:
                raise FrameError("parity")
            found = peer.streams.get(again.topic)
            if found is None:
                self._pass_on(line, data, now_ns)
            elif not found.receiver.has(again.sequence, again.count):
                before = found.receiver.repaired
                self._taker.receive_repair(found, again, now_ns, is_sent=False)
                # What nobody knew to be missing yet has simply come.
                self.parity.recovered += found.receiver.repaired - before

    def _wants(self, topic: bytes) -> bool:
        wanted = self._wanted.get(topic)
        if wanted is None:
            try:
                wanted = matches(topic.decode(), self._settings.patterns)
            except UnicodeDecodeError:
                raise FrameError("topic") from None
            if len(self._wanted) >= TOPICS_MAX:
                self._wanted.clear()
            self._wanted[topic] = wanted
        return wanted

    def _receive_part(self, line: int, frame: Frame, address: Any, now_ns: int) -> None:
        index, parts, total, part = datagram.read_part(frame)
        peer = self._peers.get(frame.session)
        topic = frame.topic.encode()
        if topic and peer is None:
            raise FrameError("session")
        self._lines[line].last_heard_ns = now_ns
        kind = int(Kind.DATA) if topic else 0
        key = (frame.session, topic, frame.sequence, kind)
        reassembler = self.reassembler
        if not topic and all(one.probe != frame.session for one in self._peers.values()):
            reassembler = self.control_parts
        elif peer is not None and topic:
            stream = self._table.open_stream(peer, frame.topic, now_ns)
            if stream.receiver.has(frame.sequence, frame.count):
                reassembler.discard(key)
                return
            beyond = frame.sequence - stream.receiver.head
            if stream.receiver.started and beyond > stream.jump_max:
                self.refuse_jump(stream, frame, now_ns)
                return
        refused = reassembler.refused
        whole = reassembler.add(key, index, parts, total, part, now_ns=now_ns)
        if reassembler.refused > refused:
            raise FrameError("fragment")
        if whole is None:
            return
        if not whole.startswith(topic + b"\0"):
            raise FrameError("fragment")
        again = Frame(whole)
        if (again.session, again.sequence) != (frame.session, frame.sequence):
            raise FrameError("fragment")
        if again.kind == Kind.DATA and frame.flags & wire.FLAG_RETRANSMISSION:
            self._receive_repair(whole, now_ns)
        elif again.kind == Kind.ECHO:
            self._receive_echo(line, whole, address, now_ns)
        elif again.kind == Kind.WELCOME:
            self._receive_welcome(line, whole, address, now_ns)
        else:
            self._pass_on(line, whole, now_ns)

    def _receive_mark(self, line: int, frame: Frame, address: Any, now_ns: int) -> None:
        peer = self._peers.get(frame.session)
        if peer is None or not peer.joined:
            return
        self._lines[line].last_heard_ns = now_ns
        space = self.buffer_bytes.get(line, 0)
        if peer.group is None or peer.group.sources.get(line) != address:
            return  # nobody is answered whose address is not known to be the publisher's
        if space > 0:
            gaps = [one.receiver for one in peer.streams.values() if one.receiver.missing]
            peer.group.marks.note(frame.sequence, gaps if peer.gaps else ())
            if peer.gaps:
                self._gapped[peer.session] = peer
            self._answer_mark(peer, peer.group, line, address)

    def _answer_completed(self) -> None:
        """Report to publishers that nothing is missing any more before their marks."""
        for session, peer in list(self._gapped.items()):
            group = peer.group
            if group is not None and group.marks.has_completed() and group.sources:
                self._answer_mark(peer, group, *group.place(self._lines))
            if not peer.gaps or peer.gone:
                del self._gapped[session]

    def _answer_mark(self, peer: Session, group: GroupState, line: int, address: Any) -> None:
        marks, space = group.marks, max(1, self.buffer_bytes.get(line, 0))
        body = control.Marked(self._settings.subscriber, marks.complete, space, group.token)
        reply = wire.control_frame(Kind.MARKED, peer.session, body, sequence=marks.read)
        self._put(peer, line, address, reply)

    def _receive_repair(self, data: bytes, now_ns: int) -> None:
        frame = Frame(datagram.with_flags(data, remove=wire.FLAG_RETRANSMISSION))
        peer = self._peers.get(frame.session)
        if peer is None:
            raise FrameError("session")
        peer.last_heard_ns = now_ns
        stream = peer.streams.get(frame.topic)
        if stream is None or not stream.receiver.started:
            return  # a repair of what came before we joined
        if peer.group is not None and not stream.receiver.has(frame.sequence, frame.count):
            peer.group.vain = 0  # else it may be for another receiver
        self._taker.receive_repair(stream, frame, now_ns)
