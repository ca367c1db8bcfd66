"""A progress bar on standard error, and the pace of a replay."""

import math
import shutil
from collections.abc import Callable
from typing import TextIO

from p2pmsg.cli.log_text import rate_text, span_text

_EVERY_S = 0.1
_BAR_MAX = 40


class Bar:
    """A line that is drawn over itself; nothing where it is no terminal.

    Args:
        file: where to draw, or None.

    """

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._began_s: float | None = None
        self._drawn_s = -math.inf
        self._is_drawn = False

    def update(self, done: int, total: int, *, now_s: float) -> None:
        """Draw it, if the last time is a tenth of a second ago."""
        if self._began_s is None:
            self._began_s = now_s
        if self._file is None or now_s - self._drawn_s < _EVERY_S:
            return
        self._drawn_s = now_s
        self._is_drawn = True
        columns = shutil.get_terminal_size().columns
        text = bar_text(done, total, now_s - self._began_s, columns - 1)
        self._file.write(f"\r\x1b[K{text}")
        self._file.flush()

    def clear(self) -> None:
        """Remove it."""
        if self._file is not None and self._is_drawn:
            self._is_drawn = False
            self._file.write("\r\x1b[K")
            self._file.flush()

    def around(self, tell: Callable[[str], object]) -> Callable[[str], None]:
        """Return what tells a line without a bar in its way."""

        def tell_cleanly(text: str) -> None:
            self.clear()
            tell(text)

        return tell_cleanly


def bar_text(done: int, total: int, seconds: float, columns: int) -> str:
    """Return the bar: how much is done, how fast, and how long it will take yet."""
    share = done / total if total else 1.0
    rate = done / seconds if seconds > 0 else 0.0
    left = f", {span_text((total - done) / rate)} left" if rate and done < total else ""
    text = f"{share:4.0%} {done:,} of {total:,} messages, {rate_text(rate)}/s{left}"
    width = min(_BAR_MAX, columns - len(text) - 3)
    if width < 5:
        return text[: max(0, columns)]
    full = int(share * width)
    return f"[{'#' * full}{'.' * (width - full)}] {text}"


class Pace:
    """When each frame is due, by when it was appended.

    A clock that went backwards counts as no time at all.

    Args:
        speed: how many times the original pace; infinity: at once.
        pause_max_s: no pause is longer than this.

    """

    def __init__(self, speed: float, pause_max_s: float = math.inf) -> None:
        self._speed = speed
        self._pause_max_s = pause_max_s
        self._last_ns: int | None = None
        self._due_s: float | None = None

    def wait_s(self, appended_ns: int, *, now_s: float) -> float:
        """Return how long to wait before the frame that was appended then; 0 where it is late."""
        if self._due_s is None or self._last_ns is None:
            self._due_s = now_s
        else:
            pause_s = max(0, appended_ns - self._last_ns) / 1e9 / self._speed
            self._due_s += min(pause_s, self._pause_max_s)
        self._last_ns = appended_ns
        return max(0.0, self._due_s - now_s)
