"""Sequences and delivery numbers that are reserved on the disk before any of them is used.

A crash of the operating system loses the log's tail, and workers on other machines know numbers
that were in it. If the next run gave them to other jobs, a worker could claim, and acknowledge, a
job that it never had. So the next run begins beyond the marks.
"""

from typing import Final

from p2pmsg.queue.journal.records import JournalState

RESERVE: Final = 1_000_000
"""How many numbers are reserved at a time: at 50,000 jobs a second, one more fsync in 10 s."""


class Reservations:
    """How far numbers may be used.

    Args:
        state: what the log says; after a crash its `next_sequence` is moved to the mark.
        boot: tells one start of the operating system from another; empty where it is not known.
        reserve: how many numbers are reserved at a time.

    Attributes:
        sequence, delivery: the marks, which no used number reaches.
        skipped: the sequences `[start, stop)` that a crash may have lost; else None.

    """

    def __init__(self, state: JournalState, boot: str, reserve: int = RESERVE) -> None:
        self._reserve = reserve
        self.sequence, self.delivery = state.mark, state.deliveries
        self.skipped: tuple[int, int] | None = None
        is_same_boot = boot != "" and boot == state.boot
        if state.session is None or state.is_closed or state.is_synced or is_same_boot:
            return
        state.has_crashed = True
        if state.next_sequence < state.mark:
            self.skipped = (state.next_sequence, state.mark)
            state.next_sequence = state.mark

    def allow(self, sequence: int, delivery: int) -> bool:
        """Whether both numbers may be used."""
        return sequence < self.sequence and delivery < self.delivery

    def is_low(self, sequence: int, delivery: int) -> bool:
        """Whether it is time to reserve more, before an append has to wait for it."""
        left = min(self.sequence - sequence, self.delivery - delivery)
        return left < self._reserve // 2

    def beyond(self, sequence: int, delivery: int) -> tuple[int, int]:
        """Return the marks to set next, when these numbers are the next to be used."""
        return (
            max(self.sequence, sequence + self._reserve),
            max(self.delivery, delivery + self._reserve),
        )

    def set(self, marks: tuple[int, int]) -> None:
        """Note that these are on the disk."""
        self.sequence, self.delivery = marks
