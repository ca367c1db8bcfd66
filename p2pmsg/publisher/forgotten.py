"""Remembers who fell silent without a closing, and had not confirmed that it has everything."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from p2pmsg.trouble import Rarely
from transports.own_log import own_log as _log

FORGOTTEN_MAX: Final = 1024
"""Those who are remembered; of others, the oldest first, there is only a count."""


class Forgotten:
    """Subscribers that joined, and were not heard of for `subscriber_timeout`.

    Attributes:
        names: by their ids; "" where a subscriber has none.
        others: how many more there were.

    """

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.others = 0
        self._rarely = Rarely()

    def __len__(self) -> int:
        return len(self.names) + self.others

    def note(self, subscriber: int, name: str, timeout_s: float) -> None:
        """Note who was forgotten; say so, at most once a minute."""
        self.names[subscriber] = name
        if len(self.names) > FORGOTTEN_MAX:
            del self.names[next(iter(self.names))]
            self.others += 1
        if self._rarely.is_due():
            _log.warning(
                "subscriber %s was not heard of for %g s, and is waited for no more; it had not "
                "confirmed that it has everything. So forgotten, now: %d",
                repr(name) if name else f"{subscriber:016x}", timeout_s, len(self),
            )  # fmt: skip

    def returned(self, subscriber: int, name: str) -> None:
        """Note that it is there again, or another process of the same name, which goes on."""
        if not self.names:
            return
        self.names.pop(subscriber, None)
        if name:
            for one in [one for one, known in self.names.items() if known == name]:
                del self.names[one]

    def left(self, subscriber: int) -> None:
        """Note that it has said after all that it goes."""
        self.names.pop(subscriber, None)

    def by_name(self) -> dict[str, int]:
        """Return how many there are of each name; "": they have none, or are too many."""
        return count_names(self.names.values(), self.others)


def count_names(names: Iterable[str], others: int) -> dict[str, int]:
    """Return how many there are of each name, with `others` that have none."""
    found = Counter(names)
    if others:
        found[""] += others
    return dict(found)
