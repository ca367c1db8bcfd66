"""A clock that stands still until it is advanced."""

from p2pmsg.errors import ConfigError
from p2pmsg.toolkit import checked, to_ns


class ManualClock:
    """A clock that is moved by hand, for tests and for the simulator.

    Args:
        now_ns: where it begins, in ns. Default 1 s, so that a little may be subtracted.

    Attributes:
        now_ns: the time.

    """

    __slots__ = ("now_ns",)

    @checked()
    def __init__(self, now_ns: int = 10**9) -> None:
        self.now_ns = now_ns

    def advance(self, seconds: float = 0.0, *, ns: int = 0) -> int:
        """Move on by `seconds` and `ns` nanoseconds; returns the new time in ns.

        Raises:
            ConfigError: it would go back.

        """
        step_ns = to_ns(seconds) + ns
        if step_ns < 0:
            raise ConfigError("step", "at least 0 ns", step_ns)
        self.now_ns += step_ns
        return self.now_ns
