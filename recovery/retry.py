"""When to ask again where no answer came, and when to give it up: one policy for all who ask."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait for an answer, each time longer, and how long in all.

    It has no state: who asks keeps how often it has asked, and since when.

    Attributes:
        first_ns: how long the answer to the first question is waited for, in ns.
        most_ns: the longest wait, in ns.
        factor: what a wait is longer than the one before. Default 2, the usual doubling: a tenth
            question comes after a thousand times the first wait.
        deadline_ns: after so long without an answer it is given up, in ns. Default None: never.
        jitter: the largest part, 0 to 1, that is randomly taken off a wait, so that those who lost
            the same thing do not ask in step. Default 0.

    """

    first_ns: int
    most_ns: int
    factor: float = 2.0
    deadline_ns: int | None = None
    jitter: float = 0.0

    def wait_ns(self, attempt: int, rng: Random | None = None, first_ns: int | None = None) -> int:
        """Return how long to wait after question `attempt`, counted from 0, in ns.

        Args:
            attempt: how often it was asked before.
            rng: draws the jitter. Default: there is none.
            first_ns: instead of the policy's own, where it was measured.

        """
        first_ns = self.first_ns if first_ns is None else first_ns
        # 2**62 ns are a century: beyond it a float would overflow.
        wait_ns = min(self.most_ns, int(first_ns * min(self.factor ** min(attempt, 512), 2.0**62)))
        return wait_ns if rng is None else wait_ns - round(wait_ns * self.jitter * rng.random())

    def is_over(self, since_ns: int, now_ns: int) -> bool:
        """Whether what was first asked at `since_ns` is given up at `now_ns`."""
        return self.deadline_ns is not None and now_ns - since_ns >= self.deadline_ns
