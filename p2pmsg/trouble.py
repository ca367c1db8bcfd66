"""What goes wrong, and is said: when it begins, once a minute, and when it is over."""

import time
from typing import Final

from transports.own_log import own_log as _log

_AGAIN_NS: Final = 60 * 1_000_000_000


class Trouble:
    """Something that is tried again until it works.

    Args:
        place: where, for people.
        consequence: what that means while it lasts.
        begins: how often it may begin, where failures and successes may alternate; one that begins
            too soon is not noted. Default: always.

    Attributes:
        what: what is wrong now, or None.

    """

    __slots__ = ("_begins", "_consequence", "_count", "_logged_ns", "_place", "_since_ns", "what")

    def __init__(self, place: str, consequence: str, begins: "Rarely | None" = None) -> None:
        self._begins = begins
        self._place = place
        self._consequence = consequence
        self._since_ns = self._logged_ns = self._count = 0
        self.what: str | None = None

    def note(self, what: str, *, now_ns: int) -> None:
        """Note that it failed; say so if that is new, or was last said a minute ago."""
        is_new = self.what is None
        if is_new and self._begins is not None and not self._begins.is_due():
            return
        self._count = 1 if is_new else self._count + 1
        self.what = what
        if is_new:
            self._since_ns = self._logged_ns = now_ns
            _log.warning("%s: %s. It is tried again; %s", self._place, what, self._consequence)
        elif now_ns - self._logged_ns >= _AGAIN_NS:
            self._logged_ns = now_ns
            _log.warning(
                "%s: failed %d times within %d s, and is tried again: %s",
                self._place, self._count, self.lasted_ns(now_ns=now_ns) // 1_000_000_000, what,
            )  # fmt: skip

    def over(self) -> None:
        """Note that it worked."""
        if self.what is not None:
            self.what = None
            _log.warning("%s: it works again, after %d failures", self._place, self._count)

    def lasted_ns(self, *, now_ns: int) -> int:
        """Return for how long it has been going wrong; 0 where it is not."""
        return 0 if self.what is None else now_ns - self._since_ns


class Refusals:
    """Warns that no more of `what` is taken on: at the first refusal, then once a minute."""

    __slots__ = ("_due_ns", "_logged", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._logged = self._due_ns = 0

    def check(self, place: str, count: int, *, now_ns: int) -> None:
        """Say how many were refused since it was said last, if any were and it is time to."""
        if count > self._logged and now_ns >= self._due_ns:
            refused = count - self._logged
            _log.warning("%r takes on no more %s: refused, %d", place, self._what, refused)
            self._logged, self._due_ns = count, now_ns + _AGAIN_NS


class Rarely:
    """Lets something be said at once, or after a while, and then once a minute.

    Args:
        after_ns: after how long it may be said for the first time. Default: at once.

    """

    __slots__ = ("_due_ns",)

    def __init__(self, after_ns: int = 0) -> None:
        self._due_ns = time.monotonic_ns() + after_ns if after_ns else 0

    def left_s(self) -> float:
        """Return how long until it may be said, in seconds."""
        return max(0.0, (self._due_ns - time.monotonic_ns()) / 1e9)

    def is_due(self, now_ns: int | None = None) -> bool:
        """Whether it may be said now, by the clock if not given; then not again for a minute."""
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _AGAIN_NS
        return True
