"""Who is at an endpoint that ranges are read from, and what is asked there. No I/O.

::

    WELCOME ──▶ take_welcome ──▶ publisher, relay or a group's member ──▶ recovery: where to connect
    SESSIONS ─▶ take_sessions ─▶ what a relay has
"""

from collections import deque
from typing import Final, Protocol
from weakref import WeakValueDictionary

import transports
from p2pmsg import control, wire
from p2pmsg.errors import translated
from p2pmsg.ranges.sessions import GroupMembers, Presence, RelayList, SessionEntry
from p2pmsg.wire import Frame
from transports.own_log import own_log as _log

MS: Final = 1_000_000
SILENCE_NS: Final = 200 * MS
"""After so long without an answer one looks whether another session is at the endpoint."""
FRAME_BYTES_MAX: Final = 16 * 2**20
"""The largest frame that a reader takes, in bytes, unless another is given."""


class Fetch(Protocol):
    """Takes what comes for one range."""

    def take_frame(self, frame: Frame, now_ns: int) -> None:
        """Take messages."""

    def take_refusal(self, body: control.Refused, now_ns: int) -> None:
        """Take what is not there any more."""

    def reset(self) -> None:
        """Ask again for what was not returned."""


class Place:
    """An endpoint, and what is known of it.

    Attributes:
        endpoint: of the publisher.
        frame_bytes_max: the largest frame that is taken, in bytes.
        publisher: who is there; None until it is known. At a relay, whose session is read.
        relay: what the relay serves that is there; None: it is none.
        group: who publishes to a group; None: it is no group, and one only is there.
        wanted: the session to be read at a relay or of a group; None: the only one, or the first.
        listens: whether welcomes are wanted.
        recovery: where to send requests; `meetings` counts how often that was decided, and for each
            a connection is made.
        outbox: requests to send; what has no space is dropped, and asked for again.
        received: how many replies came.
        invalid: frames that were dropped because they were malformed.
        has_answered: whether a welcome came.
        sealed: who is there that cannot be asked; or "".
        version: counts what came; who waits looks again.
        fetches: those under way, by session and topic.

    Args:
        endpoint: of the publisher.
        name: of a group's publisher, where only that one is to be met.
        known: who is there, if that is known.
        wanted: as the attribute.
        frame_bytes_max: as the attribute.

    """

    def __init__(
        self,
        endpoint: transports.Endpoint,
        name: str = "",
        *,
        known: Presence | None = None,
        wanted: int | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.endpoint = endpoint
        self.frame_bytes_max = frame_bytes_max
        self._name, self._known = name, known
        self.wanted = wanted
        self.meetings = self.version = self.received = self.invalid = 0
        self.sealed = ""
        self.fetches: WeakValueDictionary[tuple[int, str], Fetch] = WeakValueDictionary()
        self.outbox: deque[bytes] = deque()
        self.reset()

    def reset(self) -> None:
        """Know nothing but what it was made with; connections are to be made again."""
        self.group = GroupMembers(self._name) if self.endpoint.is_datagram else None
        self.listens = self.has_answered = False
        self._renewals = False, False
        self._announced_ns = -1
        self._asked_ns: int | None = None
        self._served: tuple[dict[int, SessionEntry], dict[int, Presence]] = {}, {}
        self.outbox.clear()
        self.lose()
        if self._known is not None:
            self._meet(self._known)
        self.version += 1

    def lose(self) -> None:
        """Know nobody there: a connection could not be made. The next welcome leads there again."""
        self.publisher: Presence | None = None
        self.relay: RelayList | None = None
        self.recovery: transports.Endpoint | None = None

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
            self.listens, self._asked_ns = True, now_ns
            if self.group is not None:
                self.group.begin(now_ns=now_ns)

    def check_again(self, since_ns: int, now_ns: int) -> bool:
        """Have a welcome sent again if the last one was asked for before `since_ns`.

        The publisher that is known may have ended, and the welcome of the next be on its way.

        Returns:
            Whether what is known of the endpoint is so new. Of a group, which is announced all the
            time, always.

        """
        self.listen(now_ns)
        if self.group is not None or self._announced_ns >= since_ns:
            return True
        if self._asked_ns is None:
            self._asked_ns = now_ns
            self._renewals = True, self._renewals[1]
        return False

    def renew(self) -> None:
        """Connect again to a publisher that is silent; ZeroMQ gives up some permanently."""
        self._renewals = True, True

    @property
    def is_to_renew(self) -> bool:
        """Whether a connection is to be made again."""
        return any(self._renewals)

    def take_renewals(self) -> tuple[bool, bool]:
        """Return whether the data path, and the recovery channel, are to be connected again."""
        renewals, self._renewals = self._renewals, (False, False)
        return renewals

    def on_change(self) -> None:
        """Note that something came, so that who waits looks again."""
        self.version += 1

    def on_reply(self) -> None:
        """Note that a reply came."""
        self.received += 1

    def refuse(self) -> None:
        """Note that a frame was malformed."""
        self.invalid += 1

    def choose(self, session: int, now_ns: int) -> None:
        """Read a session, at a relay or of a group; elsewhere see whether it is there by now."""
        if self.group is not None and self.wanted != session:
            self.group.begin(now_ns=now_ns)
        self.wanted = session
        self._settle()
        peer = self.publisher
        if self.group is not None and (peer is None or peer.session != session):
            self.publisher = None
            self.listen(now_ns)
            self.tick(now_ns)
        elif self.relay is None and peer is not None and peer.session != session:
            self.listen(now_ns)

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
        presence = Presence(frame.session, welcome.name, address)
        if frame.flags & wire.FLAG_SEALED:
            self._on_sealed(welcome.name)
        elif frame.flags & wire.FLAG_RELAY:
            if self.relay is None or (self.relay.relay, self.recovery) != (frame.session, address):
                self.publisher, self.relay = None, RelayList(frame.session)
                self._connect(address)
        elif self.group is None:
            self._meet_if_new(presence)
        else:
            self.group.note(presence, welcome.age_ms, now_ns=now_ns)

    def take_sessions(self, frame: Frame, now_ns: int) -> None:
        """Take a relay's list; raises `FrameError`."""
        if self.relay is not None:
            self.relay.take(frame, now_ns=now_ns)
            self._settle()

    def tick(self, now_ns: int) -> None:
        """Meet the publisher of a group that is wanted, and ask a relay for its sessions."""
        if self.group is not None:
            presence = self.group.current(self.wanted, now_ns=now_ns)
            if presence is not None:  # else the known one stays
                self._meet_if_new(presence)
        request = None if self.relay is None else self.relay.request(now_ns=now_ns)
        if request is not None:
            self.outbox.append(request)

    def presences(self) -> dict[int, Presence]:
        """Return who can be asked here, by session: all that a relay serves, or a publisher."""
        relay, at = self.relay, self.recovery
        if relay is None or at is None:
            return {} if self.publisher is None else {self.publisher.session: self.publisher}
        if self._served[0] is not relay.sessions:
            served = {
                entry.session: Presence(entry.session, entry.publisher, at)
                for entry in relay.sessions.values()
            }
            self._served = relay.sessions, served
        return self._served[1]

    def _meet_if_new(self, presence: Presence) -> None:
        # One that restarted on its log has the same session, and another recovery endpoint.
        known = self.publisher
        new = presence.session, presence.recovery
        if known is None or (known.session, known.recovery) != new:
            self._meet(presence)

    def _meet(self, presence: Presence) -> None:
        self.publisher, self.relay = presence, None
        self._connect(presence.recovery)

    def _connect(self, address: transports.Endpoint) -> None:
        self.recovery = address
        self.meetings += 1
        self.outbox.clear()  # it was for another one

    def _settle(self) -> None:
        """Take the session at the relay that is wanted, or the only one."""
        relay, wanted = self.relay, self.wanted
        if relay is None or self.recovery is None:
            return
        if wanted is None and relay.is_complete and len(relay.sessions) == 1:
            (wanted,) = relay.sessions
        entry = None if wanted is None else relay.sessions.get(wanted)
        if entry is not None:
            self.publisher = Presence(entry.session, entry.publisher, self.recovery)

    def _on_sealed(self, name: str) -> None:
        """Say, once, that who answers cannot be asked."""
        if not self.sealed:
            self.sealed = (
                f"publisher {name!r} sends sealed datagrams, and answers only who has keys: "
                "range readers have none for a group. Read it with Subscriber(security=…)"
            )
            _log.warning("%s: %s", self.endpoint, self.sealed)
