"""What one relay says that it serves, asked for page by page. No I/O.

It is asked for again every second, and at once where the relay says that it has other sessions.
"""

from dataclasses import dataclass, field
from typing import Final

from p2pmsg import control, wire
from p2pmsg.wire import Frame, FrameError, Kind

_MS: Final = 1_000_000
ASK_NS: Final = 1000 * _MS
"""How often a relay is asked for its list."""
RETRY_NS: Final = 100 * _MS
"""How long an answer is waited for, and how soon a reason to ask leads to another question."""


@dataclass(slots=True, eq=False)
class RelayList:
    """The list of one relay's sessions; `ask` is due at `due_ns`, and `take` gets the answers."""

    id: int
    """The relay's."""
    sessions: dict[int, control.SessionEntry] = field(default_factory=dict)
    """What it serves, by its last whole list."""
    path: list[int] = field(default_factory=list)
    """The relays that its messages come through, itself included."""
    settled: bool = True
    """Whether it says that it knows of all that its upstreams have."""
    carries: list[str] = field(default_factory=list)
    """The topics and prefixes that it says it takes, where it leaves others out."""
    due_ns: int = 0
    asked_ns: int | None = None
    """Since when a question is without an answer."""
    answered_ns: int = 0
    listed_ns: int = -1
    """When its list last had come whole; negative: never."""
    page: int = 0
    """The one to be asked for next; 0: a new list begins."""
    _version: int = -1
    _found: dict[int, control.SessionEntry] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether a list has come whole at all."""
        return self.listed_ns >= 0

    def on_pulse(self, version: int, now_ns: int) -> None:
        """Take how often its sessions have changed, as its heartbeat says."""
        if self._version != version:
            self._version = version
            self.ask_soon(now_ns)

    def ask_soon(self, now_ns: int) -> None:
        """Have it asked at once, but not all the time."""
        last_ns = self.answered_ns if self.asked_ns is None else self.asked_ns
        self.due_ns = min(self.due_ns, max(now_ns, last_ns + RETRY_NS))

    def ask(self, now_ns: int) -> bytes:
        """Return the question that is due; it is repeated where no answer comes."""
        self.asked_ns, self.due_ns = now_ns, now_ns + RETRY_NS
        return wire.control_frame(Kind.SESSIONS_REQUEST, self.id, sequence=self.page)

    def on_answered(self, now_ns: int) -> None:
        """Note an answer; the next question is due in a second."""
        self.asked_ns, self.answered_ns, self.due_ns = None, now_ns, now_ns + ASK_NS

    def take(self, frame: Frame, now_ns: int) -> list[control.SessionEntry]:
        """Take a page, and return what it has; nothing where it was asked for twice.

        Raises:
            FrameError: it is malformed, or another relay's.

        """
        body = control.read_body(frame, control.Sessions)
        if frame.session != self.id:
            raise FrameError("session")
        if self.asked_ns is None or frame.sequence != self.page:
            return []
        self.on_answered(now_ns)
        self.path, self.settled, self.carries = list(body.path), body.settled, body.carries
        if not self.page:
            self._found = {}
        self._found.update((entry.session, entry) for entry in body.sessions)
        self.page = body.following
        if self.page:
            self.due_ns = now_ns
        else:
            self.sessions, self.listed_ns = self._found, now_ns
        return body.sessions
