"""What subscribers ask a relay for that its topics leave out."""

from typing import Final

from p2pmsg import control
from p2pmsg.subscriber.missing_topics import several
from p2pmsg.topics import overlaps
from p2pmsg.wire import Frame, FrameError

NAMED_MAX: Final = 8
"""Topics that are kept to be named; the others are counted only."""


class Uncarried:
    """Counts requests to join that name topics of which the relay takes nothing.

    Args:
        topics: the topics and prefixes that it takes.

    Attributes:
        count: how many such requests came; one that is repeated counts again.

    """

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics
        self._named: dict[str, None] = {}
        self.count = 0

    def check(self, frame: Frame) -> None:
        """Look at a PROBE; one that is malformed is for others to count."""
        try:
            asked = control.read_body(frame, control.Probe).topics
        except FrameError:
            return
        missing = [one for one in asked if not overlaps(one, self._topics)]
        self.count += bool(missing)
        for one in missing[:NAMED_MAX]:
            if len(self._named) < NAMED_MAX:
                self._named[one] = None

    @property
    def waiting(self) -> bool:
        """Whether there is something to say."""
        return bool(self._named)

    def take(self) -> str:
        """Return what to say of what came since the last call."""
        named, self._named = self._named, {}
        return (
            f"was asked for what it does not carry: {', '.join(map(repr, named))}"
            f"{', and perhaps others' if len(named) == NAMED_MAX else ''}. It carries only "
            f"{several([*map(repr, self._topics)], NAMED_MAX)}"
        )
