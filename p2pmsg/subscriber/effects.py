"""What a subscriber's state machine wants done by its shell."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class Command:
    """Something that the shell is to do.

    `connect` and `disconnect` are for the recovery channel of a session, or of a relay;
    `subscribe`, `unsubscribe`, `reconnect` and `leave` (until `reconnect`) for a line;
    `warn` writes `text` to the program's log, after the endpoint of its line, if it has one.
    """

    what: str
    line: int = -1
    session: int = 0
    endpoint: str = ""
    prefix: bytes = b""
    text: str = ""


class Send(NamedTuple):
    """A frame for the recovery channel of a session, or of a relay; without one it is dropped."""

    session: int
    frame: bytes
