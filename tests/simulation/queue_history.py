"""What happened in a run, and whether it may: the checker knows nothing of how it is done."""

import itertools
from collections import defaultdict


class History:
    """Pushes, and for each job each time that a worker had it in flight."""

    def __init__(self):
        self.keys = {}
        self.holds = []  # [sequence, worker, begin, end or None, how, delivery]
        self._open = {}
        self.acked = set()
        self._lost = set()
        self._rewound = []
        self.hostile_count = 0

    def pushed(self, sequence, key):
        assert sequence not in self.keys
        self.keys[sequence] = key

    def lost(self, sequence):
        """Note that a system crash took a push along; its worker may do it all the same."""
        self._lost.add(sequence)

    def rewound(self, delivery):
        """Note that what was delivered before this number may be done again, in order."""
        self._rewound.append(delivery)

    def hostile(self, job):
        """Note that a worker has a job that means not to do it."""
        assert job.value == job.sequence
        self.hostile_count += 1

    def began(self, worker, job, now):
        assert job.value == job.sequence
        assert job.key == self.keys[job.sequence]
        hold = [job.sequence, worker, now, None, None, job.delivery]
        assert (worker, job.delivery) not in self._open
        self._open[worker, job.delivery] = hold
        self.holds.append(hold)

    def ended(self, worker, job, how, done, now):
        hold = self._open.pop((worker, job.delivery), None)
        if hold is not None:
            hold[3], hold[4] = now, how
            if how == "ack" and done:
                self.acked.add(job.sequence)

    def gone(self, worker, job, now):
        self.ended(worker, job, "gone", False, now)

    def died(self, worker, job, now):
        self.ended(worker, job, "died", False, now)

    def check(self, dead):
        """Raise where a job is forgotten, or where jobs of one key overlap or overtake."""
        forgotten = self.keys.keys() - self.acked - dead - self._lost
        assert not forgotten, f"forgotten: {sorted(forgotten)}"
        by_key = defaultdict(list)
        for hold in self.holds:
            if self.keys[hold[0]] is not None:
                by_key[self.keys[hold[0]]].append(hold)
        for key, holds in by_key.items():
            holds.sort(key=lambda hold: (hold[2], hold[0]))
            for start, stop in itertools.pairwise((0, *self._rewound, float("inf"))):
                sequences = [hold[0] for hold in holds if start <= hold[5] < stop]
                assert sequences == sorted(sequences), f"{key} out of order: {holds}"
            for before, after in itertools.pairwise(holds):
                end = before[3]
                assert end is not None, f"{key}: {before} was never ended"
                assert end <= after[2], f"{key} in two hands: {before} and {after}"
