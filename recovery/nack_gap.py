"""One gap of a stream, as the NACK scheduler keeps it."""

from recovery.loss import LossReason


class Gap:
    """Messages `[start, stop)` that are missing, and how often they were asked for."""

    __slots__ = ("attempts", "detected_ns", "reason", "start", "stop")

    def __init__(self, start: int, stop: int, detected_ns: int, reason: LossReason) -> None:
        self.start = start
        self.stop = stop
        self.detected_ns = detected_ns
        self.reason = reason
        self.attempts = 0
