"""The connections of a subscriber's data path, and when one is made again."""

from dataclasses import dataclass
from typing import Final

_MS: Final = 1_000_000
_NEVER_NS: Final = 2**62
ONE_WAY_NS: Final = 2000 * _MS
"""How long NACKs may stay without an answer: a publisher may have restarted, its welcome lost."""
UNKNOWN_NS: Final = 1000 * _MS
"""How long frames of an unknown session may come: their welcome is late, or was lost."""


@dataclass(slots=True)
class Connection:
    """One connection of the data path."""

    shared: bool = False
    """Whether datagrams of several sessions may come, which are announced again and again."""
    session: int | None = None
    contacted: bool = False
    contacted_ns: int = -_NEVER_NS
    """When, in this incarnation."""
    last_heard_ns: int = 0
    """When a frame last came."""
    excused_ns: int = 0
    """Until when its silence does not count: it was not read, or a part of a frame came."""
    made_ns: int = -_NEVER_NS
    """When it was last made again."""
    unknown_ns: int | None = None
    """Since when frames come of sessions that its welcome did not announce."""
    endpoint_hash: int = 0
    """Stands for the recovery endpoint that its welcome announced."""
    distrusted: bool = False
    """Whether it was made again because of them, so that its next welcome is believed."""
    received: int = 0
    invalid: int = 0
    """Frames that were dropped, for any reason."""
    invalid_before: int = 0
    """How many of them had come when it was last heard, at `heard_before_ns`."""
    heard_before_ns: int = -1
    relay: int | None = None
    """The relay at its end, if there is one; then `session` is None."""
    refused_until_ns: int | None = None
    """Until when it is left alone, because who is there was refused."""
    refusal: str = ""
    """Why who is there was refused, for people; kept until somebody there is taken."""
    lost_ns: int = -1
    """What `last_heard_ns` was when it was found silent."""
    one_way: str = ""
    """Who is heard over it and not over the recovery channel, or the other way, for people."""

    @property
    def key(self) -> int | None:
        """The session, or relay, whose recovery channel belongs to it."""
        return self.session if self.relay is None else self.relay

    @property
    def is_heard(self) -> bool:
        """Whether anything came since it was found silent, if it was."""
        return self.last_heard_ns != self.lost_ns

    @property
    def is_answered(self) -> bool:
        """Whether somebody is met there, or was met and refused."""
        return self.key is not None or bool(self.refusal)

    @property
    def problem(self) -> str:
        """Why nothing is taken of who is there, for people; "" where it is, or nobody is."""
        return self.one_way if self.refused_until_ns is None else self.refusal

    @property
    def silent_from_ns(self) -> int:
        """When its silence began; in the past, or just now."""
        return max(self.last_heard_ns, self.excused_ns)

    @property
    def since_ns(self) -> int:
        """Since when nothing has come over the connection as it was last made."""
        return max(self.silent_from_ns, self.made_ns)

    def on_stopped(self, stopped_ns: int, now_ns: int) -> None:
        """Do not count a time in which this process was stopped."""
        self.excused_ns = min(now_ns, self.silent_from_ns + stopped_ns)
        self.made_ns = min(now_ns, self.made_ns + stopped_ns)

    def is_broken(self, timeout_ns: int, asked_ns: int | None, now_ns: int) -> bool:
        """Whether it is to be made again; its silence then counts from now on.

        It may be silent for `timeout_ns`; `asked_ns` is since when requests over its recovery
        channel are without an answer. ZeroMQ gives up some connections permanently, and does not
        say so. To make one again says nothing of whether anybody is there: it is found silent by
        when it was last heard.
        """
        if now_ns - self.silent_from_ns > timeout_ns:
            self.lost_ns = self.last_heard_ns
        silent = now_ns - self.since_ns > timeout_ns
        is_unknown = self.unknown_ns is not None and now_ns - self.unknown_ns > UNKNOWN_NS
        one_way = asked_ns is not None and now_ns - asked_ns > ONE_WAY_NS
        if not (silent or is_unknown or one_way) or self.refused_until_ns is not None:
            return False
        self.distrusted, self.unknown_ns, self.made_ns = is_unknown, None, now_ns
        return True
