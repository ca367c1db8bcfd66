"""What a command waits for, said on standard error once it has waited for a second."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from p2pmsg.cli.command import note

FIRST_S: Final = 1.0
"""How long something is waited for until it is said."""
LOOK_S: Final = 0.2
"""How often is looked, by default."""
_NAMES_MAX: Final = 3
_SLICE_S: Final = 0.25


def wait_for(event: threading.Event, timeout: float = math.inf) -> None:
    """Wait for an event in the main thread, a quarter of a second at a time.

    Python looks for signals before it waits: Ctrl-C or SIGTERM that comes between the two would be
    noticed at the end of the wait only.

    Args:
        event: what to wait for; a new one for nothing but a signal.
        timeout: how long at most, in seconds. Default: without end.

    """
    end_s = time.monotonic() + timeout
    while not event.wait(min(_SLICE_S, max(0.0, end_s - time.monotonic()))):
        if time.monotonic() >= end_s:
            return


class Waiting:
    """Says what a command waits for: each state once, and again where it comes back.

    Args:
        command: whose notes these are.
        describe: returns what is waited for now; "": nothing.
        quiet: whether nothing is to be said.
        every_s: how often to ask `describe` at most.

    """

    def __init__(
        self,
        command: str,
        describe: Callable[[], str],
        *,
        quiet: bool,
        every_s: float = LOOK_S,
    ) -> None:
        self._describe = describe
        self._every_s = every_s
        self._command = command
        self._text: str | None = None
        self._logged = ""
        self._since_s = time.monotonic()
        self._next_s = float("inf") if quiet else 0.0

    def check(self) -> None:
        """Say what is waited for, if that is due and new; called again and again."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        text = self._describe()
        if text != self._text:
            if self._text is not None:
                self._since_s = now_s
            self._text = text
        if text != self._logged and (not text or now_s - self._since_s >= FIRST_S):
            self._logged = text
            if text:
                note(self._command, text)

    def until(
        self, ended: Callable[[float], bool], every_s: float, report: Callable[[], object]
    ) -> None:
        """Look, and report every so many seconds (0: never), until `ended` has waited for it."""
        reported_s = time.monotonic()
        while not ended(LOOK_S):
            self.check()
            if every_s and time.monotonic() - reported_s >= every_s:
                reported_s = time.monotonic()
                report()


@contextmanager
def checking(waiting: Waiting) -> Iterator[None]:
    """Look a few times a second, in a thread of its own, while the block runs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(LOOK_S):
            waiting.check()

    thread = threading.Thread(target=repeat, name="p2pmsg-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(1.0)


class Answers:
    """Describes which endpoints answer, and what has not come yet.

    Args:
        missing: what is waited for once all answer, such as `no message on 'trades'`.

    Attributes:
        came: set by the caller when something came; unset here when an endpoint falls silent.

    """

    def __init__(self, missing: str) -> None:
        self.came = False
        self._missing = missing
        self._came_once = False
        self._answered: set[str] = set()

    def describe(
        self,
        endpoints: Mapping[str, bool],
        names: Sequence[str],
        found: Mapping[str, str] | None = None,
    ) -> str:
        """Return what is waited for.

        Args:
            endpoints: whether somebody answers, by endpoint.
            names: who does, for people.
            found: why nothing is taken from who is there, by endpoint. Default None: unknown.

        """
        self._came_once |= self.came
        self._answered.update(endpoint for endpoint, answers in endpoints.items() if answers)
        away = [endpoint for endpoint, answers in endpoints.items() if not answers]
        refused = {} if found is None else {one: found[one] for one in away if found.get(one)}
        silent = [one for one in away if one not in refused]
        parts = [f"connected to {several(names)}"] if any(endpoints.values()) else []
        for group, since in (
            ([one for one in silent if one not in self._answered], "yet"),
            ([one for one in silent if one in self._answered], "any more"),
        ):
            if group:
                parts.append(f"waiting for {several(group)}: nobody answers there {since}")
        parts += [f"nothing is taken from {place}: {why}" for place, why in refused.items()]
        if away:
            self.came &= any(endpoints.values())
        elif self.came:
            return ""
        else:
            parts.append(f"{self._missing} {'since' if self._came_once else 'yet'}")
        return "; ".join(parts)


def unanswered(endpoints: Sequence[str], connected: int) -> str:
    """Describe that endpoints are waited for; "" where all answer.

    Args:
        endpoints: all of them.
        connected: how many answer.

    """
    if connected >= len(endpoints):
        return ""
    if not connected:
        return f"waiting for {several(endpoints)}: nobody answers there"
    return f"{connected} of these answer: {several(endpoints)}"


def several(names: Sequence[str], noun: str = "") -> str:
    """Return a few names, and how many others there are."""
    text = ", ".join(names[:_NAMES_MAX])
    rest = len(names) - _NAMES_MAX
    return f"{text} and {rest:,} other{noun and ' ' + noun}s" if rest > 0 else text
