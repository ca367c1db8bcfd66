"""What a subscriber's state machine wants done by its shell."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any, Final

from p2pmsg import control, wire
from p2pmsg.wire import Kind

_MORE_THAN_SENT: Final = 2**40
"""Frames: no publisher sends so many."""


class Action(StrEnum):
    """What a shell can be asked to do.

    `CONNECT` and `DISCONNECT` are for the recovery channel of a session, or of a relay;
    `SUBSCRIBE`, `UNSUBSCRIBE`, `RECONNECT` and `LEAVE` (until `RECONNECT`) for a line;
    `WARN` writes a text to the program's log, after the endpoint of its line, if it has one.
    """

    CONNECT = auto()
    DISCONNECT = auto()
    SUBSCRIBE = auto()
    UNSUBSCRIBE = auto()
    RECONNECT = auto()
    LEAVE = auto()
    WARN = auto()


@dataclass(slots=True)
class Command:
    """Something that the shell is to do, with what it needs for that."""

    what: Action
    line: int = -1
    session: int = 0
    endpoint: str = ""
    prefix: bytes = b""
    text: str = ""


class Effects:
    """Collects what the shell is to do and to send.

    Args:
        frame_bytes_max: the largest frame that is taken.

    Attributes:
        commands: what to do, oldest first.
        requests: (session or relay, frame) for its recovery channel, oldest first.
        counts_replies: whether NACKs say how many frames came; see `SubscriberCore`.

    """

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self.commands: deque[Command] = deque()
        self.requests: deque[tuple[int, bytes]] = deque()
        self._received: dict[int, int] = {}
        self._received_more = 0
        self.counts_replies = False

    def connect(self, line: int, key: int, endpoint: str = "") -> None:
        """Open the recovery channel of a session, or of a relay."""
        self.commands.append(Command(Action.CONNECT, line, key, endpoint))

    def disconnect(self, key: int) -> None:
        """Close the recovery channel of a session, or of a relay."""
        self.commands.append(Command(Action.DISCONNECT, session=key))
        self._received.pop(key, None)

    def on_received(self, key: int) -> None:
        """Note that a frame came over the recovery channel of a session, or of a relay."""
        self._received[key] = self._received.get(key, 0) + 1

    def nack(self, key: int, session: int, topic: str, ranges: list[tuple[int, int]]) -> None:
        """Ask over a recovery channel for messages of a stream."""
        received = self._received_more + self._received.get(key, 0) if self.counts_replies else None
        limit = self._frame_bytes_max
        body = control.Nack(topic, ranges, frame_bytes_max=limit, received=received)
        self.send(key, Kind.NACK, session, body)

    def forget_received(self) -> None:
        """Let publishers send all again that is asked for: a frame may have been lost in here."""
        self._received_more += _MORE_THAN_SENT

    def subscribe(self, line: int, kind: Kind, number: int) -> None:
        """Subscribe to the control frames of a kind with a number."""
        prefix = wire.control_prefix(kind, number)
        self.commands.append(Command(Action.SUBSCRIBE, line, prefix=prefix))

    def unsubscribe(self, line: int, kind: Kind, number: int) -> None:
        """Unsubscribe from the control frames of a kind with a number."""
        prefix = wire.control_prefix(kind, number)
        self.commands.append(Command(Action.UNSUBSCRIBE, line, prefix=prefix))

    def reconnect(self, line: int) -> None:
        """Make the connection of a line again."""
        self.commands.append(Command(Action.RECONNECT, line))

    def warn(self, line: int, session: int, text: str) -> None:
        """Write a warning about a session to the program's log."""
        self.commands.append(Command(Action.WARN, line, session, text=text))

    def send(
        self, key: int, kind: Kind, session: int, body: Any = None, *, sequence: int = 0
    ) -> None:
        """Send a control frame about a session over the recovery channel of `key`."""
        frame = wire.control_frame(kind, session, body, sequence=sequence)
        self.requests.append((key, frame))
