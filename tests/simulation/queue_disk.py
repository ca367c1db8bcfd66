"""The disk of a simulated pusher: a system crash takes what was written since the last sync."""

from p2pmsg.queue.journal.records import JournalState, closed_record, head_record, marks_record
from p2pmsg.queue.journal.reservations import Reservations

SESSION = 77
RESERVE = 7
"""Few, so that they are used up all the time."""


class Disk:
    """A journal in memory, and how much of it is on the disk; with `is_synced`, always all."""

    def __init__(self, rng, *, is_synced):
        self.records = []
        self.boots = 0
        self._rng = rng
        self._is_synced = is_synced
        self._synced = 0
        self._pushes = {}
        self._is_short = False
        self._next_sequence = self._next_delivery = 0

    def open(self):
        """Begin another run; return what the records say."""
        state = JournalState()
        for record in self.records:
            state.apply(record)
        self._reserved = Reservations(state, f"boot {self.boots}", RESERVE)
        if self._is_short:  # the file beside the segments says where the log ended
            state.is_short, self._is_short = True, False
            state.next_sequence = max(state.next_sequence, self._next_sequence)
            state.deliveries = max(state.deliveries, self._next_delivery)
        state.session = SESSION
        self._next_sequence, self._next_delivery = state.next_sequence, state.deliveries
        self._write(
            head_record(SESSION, state.next_sequence, f"boot {self.boots}", self._is_synced)
        )
        self._write(marks_record(self._reserved.sequence, self._reserved.delivery))
        self._renew()
        return state

    def append(self, record, pushed=None):
        """Write a record; `pushed`: the sequence, where it is a push."""
        self._allow()
        self._write(record)
        if pushed is not None:
            self._next_sequence = pushed + 1
            self._pushes[len(self.records)] = pushed

    def allow_deliveries(self, stop):
        self._next_delivery = stop
        self._allow()

    def sync(self):
        self._synced = len(self.records)

    def close(self):
        self._write(closed_record())

    def crash(self):
        """Lose what was not synced, or the end of it; return the sequences pushed in it."""
        self.boots += 1
        return self._cut(self._rng.randint(self._synced, len(self.records)))

    def shorten(self):
        """Lose the end although it was written; return the sequences pushed in it."""
        self._is_short = True
        return self._cut(self._rng.randint(max(0, len(self.records) - 20), len(self.records)))

    def _cut(self, kept):
        del self.records[kept:]
        lost = [sequence for at, sequence in self._pushes.items() if at > kept]
        self._pushes = {at: sequence for at, sequence in self._pushes.items() if at <= kept}
        self.sync()
        return lost

    def _allow(self):
        if not self._reserved.allow(self._next_sequence, self._next_delivery):
            self._renew()

    def _renew(self):
        marks = self._reserved.beyond(self._next_sequence, self._next_delivery)
        self._write(marks_record(*marks))
        self.sync()
        self._reserved.set(marks)

    def _write(self, record):
        self.records.append(record)
        if self._is_synced:
            self.sync()
