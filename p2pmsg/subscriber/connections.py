"""What a subscriber knows of each connection of its data path."""

from dataclasses import dataclass
from typing import Final

_NEVER_NS: Final = 2**62


@dataclass(slots=True)
class Connection:
    """One connection of the data path."""

    shared: bool = False
    """Whether datagrams of several sessions may come, which are announced again and again."""
    session: int | None = None
    contacted: bool = False
    contacted_ns: int = -_NEVER_NS
    """When, in this life; before it, where a cursor says so."""
    heard_ns: int = 0
    strange_ns: int | None = None
    """Since when frames of sessions come that its welcome did not announce."""
    place: int = 0
    """Stands for the recovery endpoint that its welcome announced."""
    doubted: bool = False
    """Whether it was made anew because of them, so that its next welcome is believed."""
    received: int = 0
    invalid: int = 0
    """Frames that were dropped, for whatever reason."""
    relay: int | None = None
    """The relay at its end, where it is one; then `session` is None."""
    refused_until_ns: int | None = None
    """Until when it is left alone, because it leads back to the relay whose intake this is."""
    lost_ns: int = -1
    """What `heard_ns` was set to when it was found silent."""
    was_heard_ns: int = 0
    """When anything came last, about, whatever was thought of its silence."""

    @property
    def key(self) -> int | None:
        """Whose recovery channel belongs to it."""
        return self.session if self.relay is None else self.relay

    @property
    def is_heard(self) -> bool:
        """Whether anything came since it was found silent, if it was."""
        return self.heard_ns != self.lost_ns
