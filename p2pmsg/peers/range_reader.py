"""Reading exact ranges of a publisher's streams over the recovery channel, without subscribing.

::

    WELCOME (data path) ──▶ session, name, recovery endpoint ──▶ HEADS_REQUEST ──▶ HEADS
    fetch ──▶ NACK of a window ──▶ frames ──▶ RangeFetch ──▶ batches and losses, in order
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet, WeakValueDictionary

import transports
from p2pmsg import control
from p2pmsg.checks import at_least, checked
from p2pmsg.driver.lifecycle import check_process
from p2pmsg.driver.peer import CLOSED, Peer
from p2pmsg.driver.verbs import LateError, Verb, Wait
from p2pmsg.errors import AccessDeniedError, ConfigError, LossReport, MessageError
from p2pmsg.frames import typed_decode
from p2pmsg.message import MessageBatch
from p2pmsg.peers.base import FaceBase
from p2pmsg.peers.network import Network
from p2pmsg.peers.range_channel import RangeChannel
from p2pmsg.peers.settings import check_endpoints, check_name
from p2pmsg.ranges.fetch import RangeFetch, take_reply
from p2pmsg.ranges.heads import Heads, check_patterns
from p2pmsg.ranges.place import (
    FRAME_BYTES_MAX,
    MS,
    SILENCE_NS,
    Place,
    Presence,
    SessionEntry,
)
from p2pmsg.ranges.place_heads import PlaceHeads
from p2pmsg.security.use import curve_client
from p2pmsg.topics import check_topic
from p2pmsg.wire import FrameError, Kind
from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_LOOK_NS: Final = 50 * MS
_ASK_NS: Final = 50 * MS
_ASK_CEILING_NS: Final = 800 * MS
_ANNOUNCED_NS: Final = 600 * MS
"""How long to listen for who publishes to a group: three announcements of each."""
_NOBODY: Final = "no welcome came: nobody is there, or no p2pmsg peer"


class RangeReaderPeer(Peer):
    """A channel to one endpoint, and what is asked over it.

    Attributes:
        denied: what `heads` was asked for by `topics` last, and the publisher gives no right to.

    """

    thread_name = ""  # nothing goes on between two calls
    kind = "range reader"
    name = "the range reader"

    def __init__(
        self, endpoint: transports.Endpoint, publisher: str, timeout_ns: int,
        recovery_endpoint: str | None, session: int | None, security: "Security | None",
        frame_bytes_max: int, network: Network,
    ) -> None:  # fmt: skip
        check_process()
        self.now_ns = network.now_ns
        self._network = network
        self._timeout_ns = timeout_ns
        self.places = str(endpoint)
        known = None
        if recovery_endpoint is not None and session is not None:
            address = Place(endpoint).address(recovery_endpoint)
            if address.key:
                curve_client(security, address)  # refused here, and not in a turn
            known = Presence(session, publisher, address)
        self._session = session
        self._place = Place(endpoint, publisher, known=known, frame_bytes_max=frame_bytes_max)
        # A caller learns in time who is there that is silent.
        self._channel = RangeChannel(
            self._place, network, security=security, first_ns=timeout_ns // 4, follows=True
        )
        self._fetches: WeakValueDictionary[tuple[int, str], RangeFetch] = WeakValueDictionary()
        self._questions: WeakSet[PlaceHeads] = WeakSet()
        self._asked = 0
        self.denied: dict[str, AccessDeniedError] = {}

    # ------------------------------------------------------------------ for the driver

    def turn(self, now_ns: int) -> None:
        """Take what has come, and pass it on."""
        for frame in self._channel.turn(now_ns):
            try:
                if frame.kind not in (Kind.HEADS, Kind.DENIED):
                    take_reply(self._fetches, frame, now_ns)
                    continue
                for question in list(self._questions):
                    question.take([frame], now_ns, _ASK_NS)
            except FrameError:
                self._place.refuse()

    def fds(self) -> tuple[int, ...]:
        """Return those of the channel."""
        return self._channel.fds

    def next_deadline_ns(self) -> int:
        """Return when the channel is due."""
        return self._channel.next_deadline_ns(self.now_ns())

    def resync(self) -> None:
        """Connect again, and ask again for what was not returned."""
        self._channel.reset()
        self._place.reset()
        for fetch in list(self._fetches.values()):
            fetch.reset()

    def shut(self) -> None:
        """Close the sockets; calls that wait raise `ClosedError`."""
        self.closed_why = self.closed_why or CLOSED
        self._place.on_change()
        self._channel.close()

    # --------------------------------------------------------------------------- verbs

    def heads(
        self,
        timeout: float | None,
        session: int | None,
        topics: Iterable[str] | None,
    ) -> Verb[Heads]:
        """Ask where the publisher's streams stand."""
        self.check_open()
        place = self._place
        asked_for = None if topics is None else check_patterns(topics)
        begun_ns, limit_ns = self.now_ns(), self._limit_ns(timeout)
        session = self._session if session is None else session
        self.denied = {}
        self._asked += 1
        probe = None if asked_for is None else control.Probe(0, asked_for, "latest")
        question = PlaceHeads(place, probe, session, number=self._asked, now_ns=begun_ns)
        self._questions.add(question)
        while (now_ns := self.now_ns()) < begun_ns + limit_ns:
            self.check_open()
            peer = place.publisher(session, now_ns)
            if session is None and peer is None:
                self._check_choice()
            if peer is None or now_ns - begun_ns > SILENCE_NS:
                place.listen(now_ns)
            question.ask(now_ns, _ASK_NS, _ASK_CEILING_NS)
            if (found := self._answer(question, peer, asked_for)) is not None:
                return found
            self._channel.raise_refused()
            yield self._wait(min(begun_ns + limit_ns, question.due_ns))
        who = self._unanswered(session) or self.found() or _NOBODY
        raise LateError(f"no heads from {place.endpoint} within {limit_ns / 1e9:.3g} s: {who}")

    def _answer(
        self, question: PlaceHeads, peer: Presence | None, topics: list[str] | None
    ) -> Heads | None:
        """Return what was answered, if it was; `AccessDeniedError` where that is nothing."""
        relay = self._place.relay
        if relay is not None and (of_relay := question.denied.get(relay.id)):
            raise next(iter(of_relay.values()))
        found = None if peer is None else question.heads.get(peer.session)
        if found is not None:
            denied = question.denied.get(found.session, {})
            if denied and topics is None and not found.streams:
                raise next(iter(denied.values()))
            self.denied = {each: denied[each] for each in denied if each in (topics or ())}
        return found

    def _unanswered(self, session: int | None) -> str:
        """Return who is there that has not answered, for people; "" where nobody is."""
        place = self._place
        if (peer := place.publisher(session, self.now_ns())) is not None:
            return f"{peer.name!r} gives no answer"
        if place.relay is None or not place.relay.complete:
            return ""
        what = "no session yet" if session is None else f"no session {session:016x}"
        return f"the relay there has {what}"

    def _check_choice(self) -> None:
        """Raise `ConfigError` where it must be said which of a relay's sessions is meant."""
        place = self._place
        if place.relay is not None and (several := [*place.relay.sessions]):
            some = ", ".join(f"{each:016x}" for each in several[:4])
            limit = f"given: the relay at {place.endpoint} serves {len(several)} sessions"
            raise ConfigError("session", f"{limit}, such as {some}", None)

    def sessions(self, timeout: float | None) -> Verb[list[SessionEntry]]:
        """Return which sessions can be read."""
        self.check_open()
        place, limit_ns = self._place, self._limit_ns(timeout)
        begun_ns = self.now_ns()
        if place.relay is not None:
            place.relay.ask_soon(begun_ns)
        while (now_ns := self.now_ns()) < begun_ns + limit_ns:
            self.check_open()
            place.listen(now_ns)
            if place.relay is not None:
                is_known = place.relay.listed_ns >= begun_ns
            elif place.endpoint.is_datagram:
                is_known = now_ns - begun_ns > min(_ANNOUNCED_NS, limit_ns // 2)
            else:
                is_known = place.check_again(begun_ns, now_ns)
            if is_known and (place.relay is not None or place.publishers):
                return place.sessions()
            self._channel.raise_refused()
            yield self._wait(min(begun_ns + limit_ns, now_ns + _LOOK_NS))
        text = f"no sessions from {place.endpoint} within {limit_ns / 1e9:.3g} s"
        raise LateError(f"{text}: {self.found()}" if self.found() else text)

    def fetch(
        self,
        topic: str,
        start: int,
        stop: int,
        *,
        session: int | None,
        timeout: float | None,
        value_type: Any,
        fixed: bool,
    ) -> Verb[RangeFetch]:
        """Begin to read a range; it waits only where the session is not known."""
        self.check_open()
        try:
            check_topic(topic)
        except MessageError as error:
            raise ConfigError("topic", f"a topic ({error})", topic) from error
        if not (type(start) is int and type(stop) is int and 0 <= start <= stop < 2**63):
            raise ConfigError("start and stop", "0 <= start <= stop < 2**63", (start, stop))
        limit_ns = self._limit_ns(timeout)
        if session is None:
            if (peer := self._place.publisher(self._session, self.now_ns())) is None:
                session = (yield from self.heads(timeout, None, None)).session
            else:
                session = peer.session
        made = RangeFetch(
            self._place, topic, start, stop, session, limit_ns,
            None if value_type is None else typed_decode(value_type), fixed=fixed,
            rng=self._network.random, now_ns=self.now_ns(),
        )  # fmt: skip
        self._fetches[session, topic] = made
        self._channel.flush()
        return made

    def take_item(self, fetch: RangeFetch, position: int) -> MessageBatch | LossReport | None:
        """Return what comes at `position` of a range, if it is there."""
        self.check_open()
        now_ns = self.now_ns()
        fetch.begin(position, now_ns)
        item = fetch.next_item(now_ns)
        self._channel.flush()
        return item

    def next_item(self, fetch: RangeFetch, position: int) -> Verb[MessageBatch | LossReport]:
        """Return what comes at `position` of a range, before its end."""
        channel = self._channel
        fetch.begin(position, self.now_ns())
        while True:
            self.check_open()
            now_ns = self.now_ns()
            item = fetch.next_item(now_ns)
            if item is not None:
                channel.flush()
                return item
            if fetch.is_silent(now_ns) and (whom := fetch.whom) is not None:
                fetch.on_partial(channel.last_byte_ns(whom.recovery, now_ns))
            due_ns = fetch.ask(now_ns)
            channel.flush()
            channel.raise_refused()
            yield Wait(fetch.has_changed, due_ns)

    def found(self) -> str:
        """Return who is at the endpoint that sends no welcome, or why it refuses us."""
        return self._channel.found

    def denied_last(self) -> dict[str, AccessDeniedError]:
        """Return what `heads` was asked for last, and may not be had."""
        return self.denied

    def _wait(self, due_ns: int) -> Wait:
        place, seen = self._place, self._place.version
        return Wait(lambda: place.version != seen, due_ns)

    def _limit_ns(self, timeout: float | None) -> int:
        if timeout is None:
            return self._timeout_ns
        at_least("timeout", timeout, 0.001)
        return to_ns(timeout)


class RangeReaderBase(FaceBase):
    """What never waits; see the faces."""

    _closes_at_once = True
    _peer: RangeReaderPeer

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
        (at,) = check_endpoints(str(endpoint))
        if recovery_endpoint is not None and session is None:
            raise ConfigError("session", "given where recovery_endpoint is", session)
        self._begin(
            RangeReaderPeer, at, check_name(publisher), to_ns(timeout), recovery_endpoint, session,
            security, frame_bytes_max,
        )  # fmt: skip

    @property
    def endpoint(self) -> str:
        """The publisher's endpoint."""
        return self._peer.places

    @property
    def unanswered(self) -> str:
        """Who is at the endpoint that sends no welcome, or why it refuses us; "" where unknown."""
        return self._read(self._peer.found)

    @property
    def denied(self) -> dict[str, AccessDeniedError]:
        """What `heads` was asked for by `topics` last, and the publisher gives no right to."""
        return self._read(self._peer.denied_last)

    def _take_item(self, fetch: RangeFetch, position: int) -> MessageBatch | LossReport | None:
        """Return what comes next of a range, if it is there."""
        item: MessageBatch | LossReport | None = self._driver.section.run(
            self._peer.take_item, fetch, position
        )
        return item
