"""Where a publisher's streams stand: what is asked, and what is said. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from p2pmsg import control, wire
from p2pmsg.errors import AccessDeniedError, ConfigError, denied_by_peer
from p2pmsg.ranges.place import MS, SILENCE_NS, Place
from p2pmsg.ranges.sessions import Presence
from p2pmsg.topics import check_topic
from p2pmsg.wire import Frame, FrameError, Kind

_ASK_NS: Final = 50 * MS
_ASK_CEILING_NS: Final = 800 * MS


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


def denied_by(publisher: str, pattern: str, why: str = "") -> AccessDeniedError:
    """Return what is raised where a publisher gives no right to a topic, or to a prefix.

    `why` is what it says itself.
    """
    return denied_by_peer("subscribe", pattern, f"publisher {publisher!r}", why)


def all_denied_by(publisher: str, denied: control.Denied) -> dict[str, AccessDeniedError]:
    """Return the same by pattern, of all that a publisher denies; it says why of the first one."""
    return {
        each: denied_by(publisher, each, "" if at else denied.why)
        for at, each in enumerate(denied.patterns)
    }


class HeadsQuestion:
    """What is asked of the publisher at a place until it has answered.

    Args:
        place: who is there.
        number: of the question; answers repeat it.
        topics: of which streams; None: all.
        time_ns: what `StreamHead.first_at` is for; None: nothing.
        now_ns: when it began.

    Attributes:
        result: the answer, or None.
        denied: what the publisher gives no right to.
        asked: who was asked last.

    """

    def __init__(
        self, place: Place, number: int, topics: list[str] | None, time_ns: int | None, now_ns: int
    ) -> None:
        self._place = place
        self._number = number
        self._topics = topics
        self._with_time = time_ns is not None
        self._body: control.Probe | None = None
        if time_ns is not None:
            self._body = control.Probe(0, topics or ["*"], "time", time_ns)
        elif topics is not None:
            self._body = control.Probe(0, topics, "latest")
        self._begun_ns = self._ask_ns = now_ns
        self._wait_ns = _ASK_NS
        self._pages = control.HeadPages(control.STREAMS_MAX)
        self._denied: control.Denied | None = None
        self._error: AccessDeniedError | None = None
        self.result: Heads | None = None
        self.denied: dict[str, AccessDeniedError] = {}
        self.asked: Presence | None = None

    def ask(self, now_ns: int) -> int:
        """Ask if that is due; return when it is due again.

        Raises:
            ConfigError: a relay is there that serves several sessions, and none was named.
            AccessDeniedError: it gives us no right to anything.

        """
        if self._error is not None:
            raise self._error
        place = self._place
        self._check_choice(now_ns)
        peer = place.publisher
        if peer is None or now_ns - self._begun_ns > SILENCE_NS:
            place.listen(now_ns)
        if peer is None:
            return now_ns + SILENCE_NS
        if self.asked is not peer or now_ns >= self._ask_ns:
            place.outbox.append(
                wire.control_frame(
                    Kind.HEADS_REQUEST, peer.session, self._body, sequence=self._number
                )
            )
            self._ask_ns, self.asked = now_ns + self._wait_ns, peer
            self._wait_ns = min(2 * self._wait_ns, _ASK_CEILING_NS)
        return self._ask_ns

    def take(self, frame: Frame) -> None:
        """Take a HEADS or DENIED frame; raises `FrameError`."""
        peer, relay = self._place.publisher, self._place.relay
        if frame.kind == Kind.DENIED:
            try:
                denied = control.read_body(frame, control.Denied)
            except FrameError:
                denied = control.Denied("subscribe", ["*"])
            if relay is not None and frame.session == relay.relay:
                self._error = denied_by(f"the relay {relay.relay:016x}", "*", denied.why)
            self._denied = denied  # of an answer that follows
        elif frame.kind == Kind.HEADS and peer is not None and frame.sequence == self._number:
            if frame.session != peer.session:
                raise FrameError("session")
            page = control.read_body(frame, control.Heads)
            if (body := self._pages.take(frame.sequence, page)) is not None:
                self._on_answer(peer, body)

    def _on_answer(self, peer: Presence, body: control.Heads) -> None:
        if self._denied is not None:
            if self._topics is None and not body.streams:
                self._error = denied_by(body.name, "*", self._denied.why)
                return
            found = all_denied_by(body.name, self._denied)
            self.denied = {p: found[p] for p in found if p in (self._topics or ())}
        self.result = heads_of(peer, body, with_time=self._with_time)

    def unanswered(self) -> str:
        """Return who is there that has not answered, for people; "" where nobody is."""
        relay = self._place.relay
        if relay is not None and relay.is_known and self.asked is None:
            wanted = self._place.wanted
            what = "no session yet" if wanted is None else f"no session {wanted:016x}"
            return f"the relay there has {what}"
        return "" if self.asked is None else f"{self.asked.name!r} gives no answer"

    def _check_choice(self, now_ns: int) -> None:
        """Raise `ConfigError` where it must be said which of a relay's sessions is meant."""
        place = self._place
        relay = place.relay
        if relay is None or place.publisher is not None or place.wanted is not None:
            return
        if relay.is_complete and len(relay.sessions) > 1:
            several = [f"{each:016x}" for each in list(relay.sessions)[:4]]
            limit = f"given: the relay at {place.endpoint} serves {len(relay.sessions)} sessions"
            raise ConfigError("session", f"{limit}, such as {', '.join(several)}", None)
        if relay.is_complete and not relay.sessions:
            relay.begin(now_ns=now_ns)  # perhaps one comes
