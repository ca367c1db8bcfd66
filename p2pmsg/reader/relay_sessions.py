"""Which sessions a relay serves, for those who read ranges from it."""

import time
from dataclasses import dataclass
from typing import Final

from p2pmsg import control, wire
from p2pmsg.wire import Frame, FrameError, Kind

_ASK_NS: Final = 100_000_000


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
    """The list of one relay's sessions, page by page. No I/O.

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

    def begin(self) -> None:
        """Ask for it anew, and soon."""
        self.is_complete, self._page = False, 0
        self._due_ns = min(self._due_ns, time.monotonic_ns() + _ASK_NS // 4)

    def request(self) -> bytes | None:
        """Return what is to be sent now, or None."""
        now_ns = time.monotonic_ns()
        if self.is_complete or now_ns < self._due_ns:
            return None
        self._due_ns = now_ns + _ASK_NS
        return wire.control_frame(Kind.SESSIONS_REQUEST, self.relay, sequence=self._page)

    def take(self, frame: Frame) -> None:
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
            self._due_ns = time.monotonic_ns() + _ASK_NS
