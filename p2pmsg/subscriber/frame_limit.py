"""Says which messages are too large for this subscriber: before they come, and when they did."""

from typing import Final

from p2pmsg.control import Welcome
from p2pmsg.subscriber.effects import Effects

_AGAIN_NS: Final = 60_000_000_000
"""How often the same warning is written."""
_HEADERS_BYTES: Final = 512
"""More than a frame has in addition to its only message: topic, header, ends of columns."""


class FrameLimit:
    """Warns of frames above `frame_bytes_max`, each kind of warning once a minute for a line.

    ZeroMQ ends a connection over which such a frame comes. Nothing else of it is lost: the
    connection is made again, and the publisher refuses to repair just what is too large.

    Args:
        frame_bytes_max: the largest frame that is taken, in bytes.
        effects: takes the warnings.

    """

    def __init__(self, frame_bytes_max: int, effects: Effects) -> None:
        self._limit = f"frame_bytes_max ({frame_bytes_max:,} bytes, SubscriberConfig)"
        self._frame_bytes_max = frame_bytes_max
        self._effects = effects
        self._due_ns: dict[tuple[str, int], int] = {}

    def met(self, line: int, session: int, welcome: Welcome) -> None:
        """Note what a publisher says of itself, before any message of it came."""
        most = welcome.message_bytes_max
        is_multicast = welcome.receivers >= 0  # there, messages come in parts
        if most and most + _HEADERS_BYTES > self._frame_bytes_max and not is_multicast:
            text = (
                f"publisher {welcome.name!r} may send messages of {most:,} bytes (its "
                f"message_bytes_max), and with its headers such a one is larger than {self._limit} "
                "of this subscriber: what is larger is lost here, as too_large"
            )
            self._effects.warn(line, session, text)

    def ended(self, line: int, now_ns: int) -> None:
        """Note that ZeroMQ ended a connection because of what came."""
        text = (
            f"the connection was ended here, since a frame above {self._limit} came, or something "
            "that is no frame; it is made again, and what is missing is asked for"
        )
        self._warn("ended", line, 0, text, now_ns)

    def lost(
        self, line: int, session: int, topic: str, start: int, relayed: bool, now_ns: int
    ) -> None:
        """Note that a message is lost, because it is too large: here, or for a relay in between."""
        text = f"message {start} of {topic!r} is lost, since it is larger than {self._limit}"
        if relayed:
            text += " of this subscriber, or than that of a relay which it came over (its `intake`)"
        self._warn("lost", line, session, text, now_ns)

    def _warn(self, kind: str, line: int, session: int, text: str, now_ns: int) -> None:
        if now_ns >= self._due_ns.get((kind, line), now_ns):
            self._due_ns[kind, line] = now_ns + _AGAIN_NS
            self._effects.warn(line, session, text)
