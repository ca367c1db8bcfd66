"""Reading exact ranges of a publisher's streams over the recovery channel, without subscribing.

::

    WELCOME (data path) ──▶ session, name, recovery endpoint ──▶ HEADS_REQUEST ──▶ HEADS
    fetch ──▶ NACK of a window ──▶ frames ──▶ StreamReceiver ──▶ batches and losses, in order
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from p2pmsg import control, wire
from p2pmsg.checks import at_least, checked, shown
from p2pmsg.driver.lifecycle import ClosesAtOnce, close_in_children
from p2pmsg.errors import AccessDeniedError, ConfigError, LossReport, MessageError
from p2pmsg.frames import typed_decode
from p2pmsg.message import MessageBatch
from p2pmsg.reader.channel import FRAME_BYTES_MAX, MS, SILENCE_NS, RangeChannel
from p2pmsg.reader.fetch import RangeFetch, denied_by
from p2pmsg.reader.sessions import Presence, SessionEntry
from p2pmsg.sync.settings import check_endpoints, check_name
from p2pmsg.topics import check_topic
from p2pmsg.wire import Frame, FrameError, Kind
from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

__all__ = ["Heads", "RangeReader", "SessionEntry", "StreamHead"]

_ASK_NS: Final = 50 * MS
_ASK_CEILING_NS: Final = 800 * MS
_ANNOUNCED_NS: Final = 600 * MS
"""How long to listen for who publishes to a group: three announcements of each."""
_CHANNELS_MAX: Final = 64
"""Sessions of one group that are read at the same time."""


@dataclass(frozen=True, slots=True)
class StreamHead:
    """One stream's place."""

    earliest: int
    """The earliest sequence that is kept."""

    next: int
    """The next sequence: messages from `earliest` up to this one can be fetched."""

    first_at: int | None = None
    """Where a time was asked for: the first kept message of that time or later, or `next`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """A publisher and the heads of its streams, at one moment."""

    publisher: str
    """Its name."""

    session: int
    """The 64-bit id of its sequence space."""

    recovery_endpoint: str
    """Where ranges are asked for, as seen from here."""

    streams: dict[str, StreamHead]
    """By topic."""


class RangeReader(ClosesAtOnce):
    """Reads exact ranges of the streams of the publisher at one endpoint.

    It belongs to one thread at a time, except `cancel`. Several `fetch` of different topics may be
    under way: each asks for its first messages at once, so that they wait for the publisher
    together.

    Args:
        endpoint: of the publisher.
        timeout: in seconds, default 5.0: how long `heads` waits, and how long `fetch` goes on
            without any progress before it gives up.
        recovery_endpoint: where ranges are asked for, if it is known; then `session` must be, too.
            Default: both are learned from the publisher.
        session: which session is expected there. At a relay that serves several, it must be given.
            Of a group that several publish to, it is found; without it the reader keeps to the one
            that it met first, and to its successors of that name.
        publisher: its name, where it is known. Of a group, only one of that name is met.
        security: this peer's key, and whom it knows: connections are encrypted, and both ends
            known to each other; over tcp and ipc. Default None: open.
        frame_bytes_max: the largest frame, in bytes, from 64 KiB on; what is larger is lost as
            `too_large`, so it has to be more than the publisher's `message_bytes_max`. Default
            16 MiB, 16 times the default of that.

    Raises:
        ConfigError: an argument is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.

    Attributes:
        denied: what `heads` was asked for by `topics` last, and the publisher gives no right to.

    """

    @checked(timeout=0.001, frame_bytes_max=(64 * 1024, 2**62), session=(0, 2**64 - 1))
    def __init__(
        self,
        endpoint: str,
        *,
        timeout: float = 5.0,
        recovery_endpoint: str | None = None,
        session: int | None = None,
        publisher: str = "",
        security: "Security | None" = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self._security = security
        (at,) = check_endpoints(str(endpoint))
        if recovery_endpoint is not None and session is None:
            raise ConfigError("session", "given where recovery_endpoint is", session)
        self._timeout_ns = to_ns(timeout)
        self._channel = RangeChannel(
            at, check_name(publisher), timeout_ns=self._timeout_ns, security=security,
            frame_bytes_max=frame_bytes_max,
        )  # fmt: skip
        self._others: dict[int, RangeChannel] = {}
        self._channel.wanted = session
        self._requests = 0
        self._noted: control.Denied | None = None
        self.denied: dict[str, AccessDeniedError] = {}
        self._pages = control.HeadPages(control.STREAMS_MAX)
        if recovery_endpoint is not None and session is not None:
            address = self._channel.address(recovery_endpoint)
            self._channel.meet(Presence(session, check_name(publisher), address))
        close_in_children(self)

    @property
    def endpoint(self) -> str:
        """The publisher's endpoint."""
        return str(self._channel.endpoint)

    def heads(
        self,
        timeout: float | None = None,
        *,
        time_ns: int | None = None,
        session: int | None = None,
        topics: Iterable[str] | None = None,
    ) -> Heads:
        """Return where the publisher's streams stand now.

        Args:
            timeout: in seconds. Default: the reader's.
            time_ns: fill in `StreamHead.first_at`, too, for this time in ns since the epoch.
            session: at a relay, whose. Default: the reader's.
            topics: of which streams: topics, or prefixes that end in `*`. Those of which not all
                may be had are in `denied` then. Default: all; without a right to one it is left
                out, which `denied` does not say.

        Raises:
            ConfigError: a relay is there that serves several sessions, and none was named.
            TimeoutError: the publisher did not answer.
            AuthenticationError: the publisher refused the connection, or does not hold the pinned
                key, once for each time that it is tried. A further call goes on.
            AccessDeniedError: without `topics`, it gives us no right to any; and a relay there
                gives us none. A further call asks again.
            ClosedError: the reader is closed.

        """
        channel = self._channel
        channel.check_open()
        if session is not None:
            channel.choose(session)
        asked_for = None if topics is None else check_patterns(topics)
        body = None
        if time_ns is not None:
            body = control.Probe(0, asked_for or ["*"], "time", int(time_ns))
        elif asked_for is not None:
            body = control.Probe(0, asked_for, "latest")
        self.denied, self._noted = {}, None
        begun_ns = time.monotonic_ns()
        deadline_ns = begun_ns + self._limit_ns(timeout)
        self._requests += 1
        wait_ns, ask_ns = _ASK_NS, begun_ns
        asked: Presence | None = None
        while (now_ns := time.monotonic_ns()) < deadline_ns:
            if channel.publisher is None or now_ns - begun_ns > SILENCE_NS:
                channel.listen()
            peer = channel.publisher
            if peer is not None and (asked is not peer or now_ns >= ask_ns):
                channel.send(
                    wire.control_frame(
                        Kind.HEADS_REQUEST, peer.session, body, sequence=self._requests
                    )
                )
                ask_ns, asked = now_ns + wait_ns, peer
                wait_ns = min(2 * wait_ns, _ASK_CEILING_NS)
            channel.poll(min(deadline_ns, now_ns + SILENCE_NS if peer is None else ask_ns))
            self._check_choice()
            heads = self._take_heads(asked_for, with_time=time_ns is not None)
            if heads is not None:
                return heads
        who = channel.found or "no welcome came: nobody is there, or no p2pmsg peer"
        if asked is not None:
            who = f"{asked.name!r} gives no answer"
        if channel.relay is not None and channel.relay.is_known and asked is None:
            wanted = self._channel.wanted
            what = "no session yet" if wanted is None else f"no session {wanted:016x}"
            who = f"the relay there has {what}"
        seconds = (deadline_ns - begun_ns) / 1e9
        raise TimeoutError(f"no heads from {channel.endpoint} within {seconds:.3g} s: {who}")

    @property
    def unanswered(self) -> str:
        """Who is at the endpoint that sends no welcome, or why it refuses us; "" where unknown."""
        return self._channel.found

    def sessions(self, timeout: float | None = None) -> list[SessionEntry]:
        """Return which sessions can be read: at a relay all that it serves, else the one there.

        Of a group all that are announced within 0.6 s.

        Args:
            timeout: in seconds. Default: the reader's.

        Raises:
            TimeoutError: nobody answered.
            AuthenticationError: the publisher refused the connection, or does not hold the pinned
                key, once for each time that it is tried. A further call goes on.
            ClosedError: the reader is closed.

        """
        channel = self._channel
        channel.check_open()
        limit_ns = self._limit_ns(timeout)
        begun_ns = time.monotonic_ns()
        deadline_ns = begun_ns + limit_ns
        if channel.relay is not None:
            channel.relay.begin()
        while (now_ns := time.monotonic_ns()) < deadline_ns:
            channel.listen()
            while channel.receive() is not None:
                pass  # what is left of former requests
            relay, peer = channel.relay, channel.publisher
            if relay is not None and relay.is_complete:
                return list(relay.sessions.values())
            if channel.group is not None and peer is not None:
                if now_ns - begun_ns > min(_ANNOUNCED_NS, limit_ns // 2):
                    return [SessionEntry(one.session, one.name, 0) for one in channel.group]
            elif relay is None and peer is not None and channel.check_again(begun_ns):
                if channel.publisher is peer:
                    return [SessionEntry(peer.session, peer.name, 0)]
                continue
            channel.poll(min(deadline_ns, now_ns + _ASK_NS))
        seconds = limit_ns / 1e9
        text = f"no sessions from {channel.endpoint} within {seconds:.3g} s"
        raise TimeoutError(f"{text}: {channel.found}" if channel.found else text)

    def _check_choice(self) -> None:
        """Raise `ConfigError` where it must be said which of a relay's sessions is meant."""
        channel = self._channel
        relay = channel.relay
        if relay is None or channel.publisher is not None or channel.wanted is not None:
            return
        if relay.is_complete and len(relay.sessions) > 1:
            several = [f"{each:016x}" for each in list(relay.sessions)[:4]]
            limit = f"given: the relay at {channel.endpoint} serves {len(relay.sessions)} sessions"
            raise ConfigError("session", f"{limit}, such as {', '.join(several)}", None)
        if relay.is_complete and not relay.sessions:
            relay.begin()  # perhaps one comes

    def fetch(
        self,
        topic: str,
        start: int,
        stop: int,
        *,
        session: int | None = None,
        timeout: float | None = None,
        value_type: Any = None,
        fixed: bool = False,
    ) -> Iterator[MessageBatch | LossReport]:
        """Read the messages `[start, stop)` of a stream, each once and in order.

        What cannot be had comes as a `LossReport` in its place: `evicted`, `malformed`,
        `too_large` (see `frame_bytes_max`), `publisher_gone` where another session is at the
        endpoint, and `timeout`.

        Args:
            topic: of the stream.
            start: first sequence.
            stop: the sequence after the last one.
            session: of the stream. Default: the one that is at the endpoint.
            timeout: how long to go on without any progress, in seconds. Default: the reader's.
            value_type: a type that msgspec knows, to make of each value; the values of a batch come
                as they are where one of them does not fit. Default: as they are.
            fixed: give a `FixedBatch` where values are bytes of one length. Default False.

        Raises:
            ConfigError: an argument is out of its limits, or a relay serves several sessions and
                none was named.
            TimeoutError: `session` was not given, and no publisher is there.
            AuthenticationError: the publisher refused the connection, or does not hold the pinned
                key, once for each time that it is tried. A further call goes on.
            AccessDeniedError: from the iterator, where the publisher gives us no right to the
                topic; its next call asks again.
            ClosedError: the reader is closed.

        """
        channel = self._channel
        channel.check_open()
        try:
            check_topic(topic)
        except MessageError as error:
            raise ConfigError("topic", f"a topic ({error})", topic) from error
        if not (type(start) is int and type(stop) is int and 0 <= start <= stop < 2**63):
            raise ConfigError("start and stop", "0 <= start <= stop < 2**63", (start, stop))
        if session is None:
            if self._channel.publisher is None:
                self.heads(timeout)
            assert self._channel.publisher is not None
            session = self._channel.publisher.session
        else:
            channel = self._channel_of(session)
        decode = None if value_type is None else typed_decode(value_type)
        limit_ns = self._limit_ns(timeout)
        return RangeFetch(channel, topic, start, stop, session, limit_ns, decode, fixed=fixed)

    def cancel(self) -> None:
        """Let what waits in another thread raise `ClosedError`, within a second; then close it."""
        for channel in (self._channel, *self._others.copy().values()):
            channel.cancel()

    def close(self) -> None:
        """Close the sockets; a second call does nothing."""
        for channel in (self._channel, *self._others.values()):
            channel.close()

    def __repr__(self) -> str:
        return shown(self, lambda: self.endpoint, lambda: self._channel.closed)

    def _forget(self) -> None:
        for channel in (self._channel, *self._others.values()):
            channel.forget()

    def _channel_of(self, session: int) -> RangeChannel:
        """Return the channel on which to ask for a session: of a group, each has its own."""
        first = self._channel
        if first.group is None or session == first.wanted:
            first.choose(session)
            return first
        if first.wanted is None and (first.publisher is None or not first.fetches):
            first.choose(session)
            return first
        channel = self._others.pop(session, None)
        if channel is None:
            idle = [other for other, one in self._others.items() if not one.fetches]
            if len(self._others) >= _CHANNELS_MAX:
                if not idle:
                    limit = f"one of {_CHANNELS_MAX} sessions of a group at a time"
                    raise ConfigError("session", limit, session)
                self._others.pop(idle[0]).close()
            channel = RangeChannel(
                first.endpoint, timeout_ns=self._timeout_ns, security=self._security,
                frame_bytes_max=first.frame_bytes_max,
            )  # fmt: skip
            channel.choose(session)
        self._others[session] = channel
        return channel

    def _limit_ns(self, timeout: float | None) -> int:
        if timeout is None:
            return self._timeout_ns
        at_least("timeout", timeout, 0.001)
        return to_ns(timeout)

    def _take_heads(self, asked_for: list[str] | None, *, with_time: bool) -> Heads | None:
        while (data := self._channel.receive()) is not None:
            peer, relay = self._channel.publisher, self._channel.relay
            if (denied := _denied_in(data)) is not None:
                session, noted = denied
                if relay is not None and session == relay.relay:
                    raise denied_by(f"the relay {relay.relay:016x}", "*", noted.why)
                self._noted = noted
                continue
            if peer is None:
                continue  # a relay's answer for a session that is not asked for any more
            try:
                frame = Frame(data)
                if frame.kind != Kind.HEADS or frame.sequence != self._requests:
                    continue  # what is left of an earlier request
                if frame.session != peer.session:
                    raise FrameError("session")
                page = control.read_body(frame, control.Heads)
            except FrameError:
                self._channel.invalid += 1
                continue
            if (body := self._pages.take(frame.sequence, page)) is not None:
                self._on_denied(body, asked_for)
                return heads_of(peer, body, with_time=with_time)
        return None

    def _on_denied(self, body: control.Heads, asked_for: list[str] | None) -> None:
        """Take what was denied before an answer that is whole now."""
        noted, self._noted = self._noted, None
        if noted is None:
            return
        if asked_for is None and not body.streams:
            raise denied_by(body.name, "*", noted.why)
        self.denied = {
            each: denied_by(body.name, each, "" if at else noted.why)  # it is of the first one
            for at, each in enumerate(noted.patterns)
            if each in (asked_for or ())
        }


def _denied_in(data: bytes) -> tuple[int, control.Denied] | None:
    """Return who says what is denied; None where a frame does not."""
    try:
        frame = Frame(data)
        if frame.kind != Kind.DENIED:
            return None
    except FrameError:
        return None
    try:
        return frame.session, control.read_body(frame, control.Denied)
    except FrameError:
        return frame.session, control.Denied("subscribe", ["*"])


def check_patterns(patterns: Iterable[str]) -> list[str]:
    """Return topics, and prefixes that end in `*`, once each; `MessageError` for others."""
    found = list(dict.fromkeys(patterns))
    for each in found:
        if each != "*":
            check_topic(each.removesuffix("*"))
    return found


def heads_of(peer: Presence, body: control.Heads, *, with_time: bool = False) -> Heads:
    """Return what a HEADS frame says."""
    streams = {
        head.topic: StreamHead(head.earliest, head.next, head.start if with_time else None)
        for head in body.streams
    }
    return Heads(
        publisher=body.name,
        session=peer.session,
        recovery_endpoint=str(peer.recovery),
        streams=streams,
    )
