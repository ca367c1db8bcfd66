"""How long a receiver of a multicast waits before it asks: RFC 5401's randomised back-off.

Receivers on one lossy link miss the same datagram at the same time. Each waits for a random
time, most of them long and few of them short, so that a few ask, the repair comes by multicast, and
the others need not. The larger the group, the steeper the distribution (RFC 5401, section 5.2.2)::

    x = uniform(0, 1) * (λ / T) + λ / (T (e^λ - 1))
    t = T / λ * ln(x * (e^λ - 1) * T / λ)                       where λ = ln(group size) + 1

How long to wait for the answer follows from how long answers took (RFC 6298).
"""

from math import exp, log
from random import Random
from typing import Final

from recovery.checks import to_ns
from recovery.retry import RetryPolicy

GROUP_SIZE: Final = 10
"""How many receivers to reckon with until the publisher says, as in Aeron."""
_RETRY: Final = RetryPolicy(5_000_000, 1_000_000_000, jitter=0.2)
"""How long an answer is waited for, the first time before one was ever timed."""
_RETRY_MIN_NS: Final = 2_000_000
"""At least so long, which outlasts a scheduler's slice: else what is on its way would be asked for.
"""
FULL_GROUP: Final = 1000
"""From this size on T is waited in full; a smaller group waits shorter, since fewer would ask at
the same time, down to nothing for a lone receiver."""


class AnswerTime:
    """How long an answer is waited for, by how long answers took (RFC 6298, section 2).

    Args:
        initial_ns: before one was timed.
        floor_ns: at least.
        ceiling_ns: at most.

    Attributes:
        wait_ns: how long to wait for the answer to a first question.

    """

    __slots__ = ("_ceiling_ns", "_floor_ns", "_rtt", "wait_ns")

    def __init__(self, initial_ns: int, floor_ns: int, ceiling_ns: int) -> None:
        self._floor_ns, self._ceiling_ns = floor_ns, ceiling_ns
        self.wait_ns = max(floor_ns, initial_ns)
        self._rtt: tuple[float, float] | None = None  # smoothed, and its variation

    def answered(self, elapsed_ns: int) -> None:
        """Note how long an answer took."""
        if self._rtt is None:
            smoothed, variation = float(elapsed_ns), elapsed_ns / 2
        else:
            smoothed, variation = self._rtt
            variation += (abs(smoothed - elapsed_ns) - variation) / 4
            smoothed += (elapsed_ns - smoothed) / 8
        self._rtt = smoothed, variation
        self.wait_ns = max(self._floor_ns, min(self._ceiling_ns, round(smoothed + 4 * variation)))


class Feedback:
    """Draws the waits of one receiver, for all streams of one publisher.

    Args:
        rng: source of chance.
        backoff: T, the longest wait of a large group, in seconds. Default 0.01, as in Aeron: ten
            round trips of a local network, in which the first one's repair reaches the others.

    Attributes:
        group_size: how many receivers there are.
        answer: how long answers take.

    """

    __slots__ = ("_backoff_ns", "_rng", "answer", "group_size")

    def __init__(self, rng: Random, *, backoff: float = 0.01) -> None:
        self._rng = rng
        self._backoff_ns = to_ns(backoff)
        self.group_size = GROUP_SIZE
        self.answer = AnswerTime(_RETRY.first_ns, _RETRY_MIN_NS, _RETRY.most_ns)

    @property
    def backoff_ns(self) -> int:
        """Longest first wait of a group of this size, in ns."""
        if self.group_size <= 1:
            return 0
        part = min(1.0, log(self.group_size) / log(FULL_GROUP))
        return round(self._backoff_ns * part)

    def delay_ns(self) -> int:
        """Draw a wait before the first question, in ns: 0 to `backoff_ns`."""
        longest_ns = self.backoff_ns
        if not longest_ns:
            return 0
        rate = log(self.group_size) + 1
        # The formula above with T / λ cancelled: uniform in the exponential's image.
        return round(longest_ns / rate * log(self._rng.random() * (exp(rate) - 1) + 1))

    def retry_ns(self, attempt: int) -> int:
        """Draw how long to wait for the answer to question `attempt` (0-based), in ns."""
        return _RETRY.wait_ns(attempt, self._rng, self.answer.wait_ns)
