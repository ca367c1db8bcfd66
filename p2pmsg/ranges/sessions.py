"""Who publishes to a group, and what a relay serves, for those who read ranges from it. No I/O.

::

    WELCOME of each ──▶ note ──▶ current: the one that is wanted
                                        └─ silent, and a later one of its name is there ─▶ that one
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import transports
from p2pmsg import control, wire
from p2pmsg.wire import Frame, FrameError, Kind

_ASK_NS: Final = 100_000_000
MEMBERS_MAX: Final = 4096
"""Sessions that are remembered; the ones heard of longest ago go first."""
GONE_NS: Final = 2_000_000_000
"""After so long without an announcement, ten of which were due, a session counts as gone where
another one is there in its place."""


@dataclass(frozen=True, slots=True)
class Presence:
    """Who was heard of at the endpoint last."""

    session: int
    name: str
    recovery: transports.Endpoint


@dataclass(slots=True)
class _Member:
    presence: Presence
    began_ns: int
    last_heard_ns: int


class GroupMembers:
    """Remembers who announced a session, of the publisher `name`; empty: of any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._listening_ns = 0
        self._members: dict[int, _Member] = {}
        self._chosen: int | None = None

    def begin(self, *, now_ns: int) -> None:
        """Note that one begins to listen."""
        self._listening_ns = now_ns

    def note(self, presence: Presence, age_ms: float, *, now_ns: int) -> None:
        """Take note of an announcement, whose session began `age_ms` ago."""
        self._members.pop(presence.session, None)
        if len(self._members) >= MEMBERS_MAX:
            del self._members[next(iter(self._members))]
        began_ns = now_ns - int(age_ms * 1e6)
        self._members[presence.session] = _Member(presence, began_ns, now_ns)

    def current(self, wanted: int | None, *, now_ns: int) -> Presence | None:
        """Return who is to be asked: the session that is wanted, or its successor.

        None wanted: one of the name that is meant, and later its successor.
        """
        if wanted is None:
            wanted = self._chosen
        elif wanted in self._members:
            self._chosen = wanted
        member = None if wanted is None else self._members.get(wanted)
        if member is None:
            waited = wanted is None or now_ns - self._listening_ns > GONE_NS
            member = self._newest(self._name, now_ns) if waited else None
        elif now_ns - member.last_heard_ns > GONE_NS:
            later = self._newest(member.presence.name, now_ns)
            if later is not None and later.began_ns > member.began_ns:
                member = later
        if member is None:
            return None
        self._chosen = member.presence.session
        return member.presence

    def _newest(self, name: str, now_ns: int) -> _Member | None:
        """Return who began last of those that are there, and have that name."""
        there = [
            member
            for member in self._members.values()
            if now_ns - member.last_heard_ns <= GONE_NS and name in ("", member.presence.name)
        ]
        return max(there, key=lambda member: member.began_ns, default=None)

    def __iter__(self) -> Iterator[Presence]:
        return iter([member.presence for member in self._members.values()])


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """A session that can be read from somewhere."""

    session: int
    """Its 64-bit id."""

    publisher: str
    """Its publisher's name."""

    hops: int
    """How many relays are in between; 0: the publisher itself was asked."""


class RelayList:
    """The list of one relay's sessions, page by page.

    Attributes:
        relay: its id.
        sessions: what it serves, as its last whole list says.
        is_complete: whether there was a whole list since the last `begin`; `is_known` whether ever.

    """

    def __init__(self, relay: int) -> None:
        self.relay = relay
        self.sessions: dict[int, SessionEntry] = {}
        self.is_complete = self.is_known = False
        self._found: dict[int, SessionEntry] = {}
        self._page = 0
        self._due_ns = 0

    @property
    def due_ns(self) -> int:
        """When there is something to ask for."""
        return 2**63 if self.is_complete else self._due_ns

    def begin(self, *, now_ns: int) -> None:
        """Ask for it again, and soon."""
        self.is_complete, self._page = False, 0
        self._due_ns = min(self._due_ns, now_ns + _ASK_NS // 4)

    def request(self, *, now_ns: int) -> bytes | None:
        """Return what is to be sent now, or None."""
        if now_ns < self.due_ns:
            return None
        self._due_ns = now_ns + _ASK_NS
        return wire.control_frame(Kind.SESSIONS_REQUEST, self.relay, sequence=self._page)

    def take(self, frame: Frame, *, now_ns: int) -> None:
        """Take a SESSIONS frame; raises `FrameError`."""
        if frame.session != self.relay:
            raise FrameError("session")
        body = control.read_body(frame, control.Sessions)
        if self.is_complete or frame.sequence != self._page:
            return
        if not self._page:
            self._found = {}
        for each in body.sessions:
            self._found[each.session] = SessionEntry(each.session, each.name, each.hops)
        self._page, self._due_ns = body.following, 0
        if not self._page:
            self.sessions, self.is_complete, self.is_known = self._found, True, True
            self._due_ns = now_ns + _ASK_NS
