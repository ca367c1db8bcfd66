"""Who is at an endpoint that ranges are read from, and what is asked there. No I/O.

::

    WELCOME ──▶ take_welcome ──▶ the publisher there, one of a group, or a relay
    SESSIONS ─▶ take_sessions ─▶ what a relay has
"""

from collections import Counter, deque
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import transports
from p2pmsg import control, wire
from p2pmsg.errors import translated
from p2pmsg.subscriber.relay_list import RelayList
from p2pmsg.wire import Frame
from transports.own_log import own_log as _log

MS: Final = 1_000_000
SILENCE_NS: Final = 200 * MS
"""After so long without an answer one looks whether another session is at the endpoint."""
GONE_NS: Final = 2000 * MS
"""After so long without an announcement, ten of which were due, a group's publisher counts as gone
where another one is there."""
FRAME_BYTES_MAX: Final = 16 * 2**20
"""The largest frame that a reader takes, in bytes, unless another is given."""
_MEETING_NS: Final = 1000 * MS
"""So long one listens for a group's publishers: five announcements of each are due."""
PUBLISHERS_MAX: Final = 4096
"""Publishers of a group that are remembered; the one heard of longest ago goes first."""


@dataclass(frozen=True, slots=True)
class Presence:
    """Whom to ask for a session, and where."""

    session: int
    name: str
    recovery: transports.Endpoint


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """A session that can be read from somewhere."""

    session: int
    """Its 64-bit id."""

    publisher: str
    """Its publisher's name."""

    hops: int
    """How many relays are in between; 0: the publisher itself was asked."""


class Place:
    """An endpoint, and what is known of it.

    Attributes:
        endpoint: of the publisher.
        frame_bytes_max: the largest frame that is taken, in bytes.
        publishers: whom to ask, by session: the one publisher that is there, those of a group (the
            one last heard of at the end), or a relay for all that it serves.
        relay: what the relay serves that is there; None: it is none.
        listens: whether welcomes are wanted.
        outbox: requests to send, with the recovery endpoint of each; what has no space is dropped,
            and asked for again.
        received: how many replies came, by recovery endpoint.
        invalid: frames that were dropped because they were malformed.
        has_answered: whether a welcome came.
        sealed: who is there that cannot be asked; or "".
        version: counts what came; who waits looks again.

    Args:
        endpoint: of the publisher.
        name: of a group's publisher, where only that one is to be met.
        known: who is there, if that is known.
        frame_bytes_max: as the attribute.

    """

    def __init__(
        self,
        endpoint: transports.Endpoint,
        name: str = "",
        *,
        known: Presence | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.endpoint = endpoint
        self.frame_bytes_max = frame_bytes_max
        self._name, self._known = name, known
        self.version = self.invalid = 0
        self.sealed = ""
        self.outbox: deque[tuple[transports.Endpoint, bytes]] = deque()
        self.received: Counter[transports.Endpoint] = Counter()
        self.reset()

    def reset(self) -> None:
        """Know nothing but what it was made with; connections are to be made again."""
        known = self._known
        self.publishers: dict[int, Presence] = {} if known is None else {known.session: known}
        self.relay: RelayList | None = None
        self._relay_at: transports.Endpoint | None = None
        self._met: Presence | None = None
        self._heard: dict[int, int] = {}
        self.listens = self.has_answered = False
        self._renewals: set[transports.Endpoint] = set()
        self._listening_ns = 0
        self._announced_ns = -1
        self._asked_ns: int | None = None
        self.outbox.clear()
        self.version += 1

    def publisher(self, session: int | None, now_ns: int) -> Presence | None:
        """Return whom to ask: where several are here, for that session, or for the only one.

        Of a group without a session: who was met first, and its successors of that name.
        """
        if session is not None and (self.endpoint.is_datagram or self.relay is not None):
            return self.publishers.get(session)
        if self.endpoint.is_datagram:
            return self._first_met(now_ns)
        return next(iter(self.publishers.values())) if len(self.publishers) == 1 else None

    def is_meeting(self, now_ns: int) -> bool:
        """Whether more publishers of a group may be there than were heard of yet."""
        return self.endpoint.is_datagram and now_ns - self._listening_ns < _MEETING_NS

    def _first_met(self, now_ns: int) -> Presence | None:
        met, lately_ns = self._met, now_ns - GONE_NS
        if met is None or self._heard.get(met.session, 0) < lately_ns:
            name = self._name if met is None else met.name
            for session, one in self.publishers.items():
                if name in ("", one.name) and self._heard.get(session, 0) >= lately_ns:
                    met = one
        self._met = None if met is None else self.publishers.get(met.session, met)
        return self._met

    def is_here(self, address: transports.Endpoint) -> bool:
        """Whether somebody is asked at a recovery endpoint; those of a group stay."""
        if self.endpoint.is_datagram or address == self._relay_at:
            return True
        return self.relay is None and any(p.recovery == address for p in self.publishers.values())

    def is_gone(self, session: int, since_ns: int, now_ns: int) -> bool:
        """Whether a session has ended, as far as is known of who is here since a time.

        What was known before says nothing: the session may have begun since then.
        """
        relay = self.relay
        if self.endpoint.is_datagram:
            heard_ns = max(since_ns, self._listening_ns, self._heard.get(session, 0))
            return now_ns - heard_ns > GONE_NS and max(self._heard.values(), default=0) > heard_ns
        if session in self.publishers:
            return False
        if relay is None:
            return bool(self.publishers) and self.check_again(since_ns, now_ns)
        if relay.listed_ns <= since_ns:
            relay.ask_soon(now_ns)
            return False
        return relay.settled

    def address(self, text: str, host: str | None = None) -> transports.Endpoint:
        """Return where to ask for ranges, by what the publisher at `host` announced."""
        with translated():
            address = transports.parse_endpoint(text)
            if self.endpoint.has_port:
                address = address.reached_by(host or self.endpoint.host)
            if address.scheme not in ("tcp", "ipc", "inproc"):
                raise transports.EndpointError(text, "scheme", "it is not one of ZeroMQ's")
            return address.require_connectable()

    def listen(self, now_ns: int) -> None:
        """Want welcomes from now on; each new connection to the endpoint gets one."""
        if not self.listens:
            self.listens, self._asked_ns, self._listening_ns = True, now_ns, now_ns

    def check_again(self, since_ns: int, now_ns: int) -> bool:
        """Have a welcome sent again if the last one was asked for before `since_ns`.

        The publisher that is known may have ended, and the welcome of the next be on its way.

        Returns:
            Whether what is known of the endpoint is so new.

        """
        self.listen(now_ns)
        if self._announced_ns >= since_ns:
            return True
        if self._asked_ns is None:
            self._asked_ns = now_ns
            self._renewals.add(self.endpoint)
        return False

    def renew(self, *silent: Presence) -> None:
        """Connect again here, and to who is silent; ZeroMQ gives up some permanently."""
        self._renewals.update([self.endpoint], (one.recovery for one in silent))

    @property
    def is_to_renew(self) -> bool:
        """Whether a connection is to be made again."""
        return bool(self._renewals)

    def take_renewals(self) -> set[transports.Endpoint]:
        """Return to which endpoints, of the data path or recovery, to connect again."""
        renewals, self._renewals = self._renewals, set()
        return renewals

    def on_change(self) -> None:
        """Note that something came, so that who waits looks again."""
        self.version += 1

    def on_connection(self, address: transports.Endpoint) -> None:
        """Note a new connection to a recovery endpoint: nothing has come over it."""
        self.received.pop(address, None)

    def on_replies(self, address: transports.Endpoint, count: int) -> None:
        """Note how many replies came from a recovery endpoint."""
        self.received[address] += count

    def refuse(self) -> None:
        """Note that a frame was malformed."""
        self.invalid += 1

    def ask(self, whom: Presence, request: bytes) -> None:
        """Send a request."""
        self.outbox.append((whom.recovery, request))

    def take_welcome(self, frame: Frame, host: str, now_ns: int) -> None:
        """Take who is there.

        `FrameError`, `ConfigError` or `EndpointError` where a welcome says nothing of use.
        """
        if frame.flags & wire.FLAG_CLOSING:
            return
        welcome = control.read_body(frame, control.Welcome)
        address = self.address(welcome.recovery, host).without_key()
        if self._asked_ns is not None:
            self._announced_ns, self._asked_ns = self._asked_ns, None
        self.has_answered = True
        session, publishers = frame.session, self.publishers
        if frame.flags & wire.FLAG_SEALED:
            self._on_sealed(welcome.name)
        elif frame.flags & wire.FLAG_RELAY:
            if self.relay is None or (self.relay.id, self._relay_at) != (session, address):
                self.relay, self._relay_at, self.publishers = RelayList(session), address, {}
        elif self.endpoint.is_datagram:
            publishers.pop(session, None)
            for other in self._silent(now_ns):
                if publishers[other].name == welcome.name:
                    self._forget(other)
            if len(publishers) >= PUBLISHERS_MAX:
                self._forget(next(iter(publishers)))
            publishers[session] = Presence(session, welcome.name, address)
            self._heard[session] = now_ns
        else:
            # One that restarted on its log has the same session, and another recovery endpoint.
            self.relay = self._relay_at = None
            self.publishers = {session: Presence(session, welcome.name, address)}

    def _silent(self, now_ns: int) -> list[int]:
        """Return the sessions of a group that were not heard of lately; they come first."""
        lately_ns = now_ns - GONE_NS
        return list(takewhile(lambda s: self._heard.get(s, 0) < lately_ns, self.publishers))

    def _forget(self, session: int) -> None:
        del self.publishers[session]
        self._heard.pop(session, None)

    def take_sessions(self, frame: Frame, now_ns: int) -> None:
        """Take a relay's list; raises `FrameError`."""
        relay, at = self.relay, self._relay_at
        if relay is None or at is None:
            return
        relay.take(frame, now_ns)
        if not relay.page:
            self.publishers = {
                session: Presence(session, entry.name, at)
                for session, entry in relay.sessions.items()
            }

    def tick(self, now_ns: int) -> None:
        """Ask a relay for its sessions, when that is due."""
        relay, at = self.relay, self._relay_at
        if relay is not None and at is not None and now_ns >= relay.due_ns:
            self.outbox.append((at, relay.ask(now_ns)))

    def sessions(self) -> list[SessionEntry]:
        """Return what can be read here."""
        if self.relay is None:
            return [SessionEntry(one.session, one.name, 0) for one in self.publishers.values()]
        entries = self.relay.sessions.values()
        return [SessionEntry(each.session, each.name, each.hops) for each in entries]

    def _on_sealed(self, name: str) -> None:
        """Say, once, that who answers cannot be asked."""
        if not self.sealed:
            self.sealed = (
                f"publisher {name!r} sends sealed datagrams, and answers only who has keys: "
                "range readers have none for a group. Read it with Subscriber(security=…)"
            )
            _log.warning("%s: %s", self.endpoint, self.sealed)
