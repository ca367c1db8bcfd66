"""The collector's end of exact metrics: subscribes to the clients, and keeps their totals."""

import logging
import threading
from collections.abc import Sequence

from p2pmsg.errors import LossReport
from p2pmsg.metrics.client import TOPIC
from p2pmsg.metrics.state_file import StateFile
from p2pmsg.metrics.totals import ExactTotals
from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.sync.subscriber import Subscriber

_log = logging.getLogger("p2pmsg")
_SLICE_S = 0.1
_BATCH = 256


class ExactInlet:
    """Receives deltas in a thread of its own and adds them up under the collector's lock.

    Args:
        endpoints: of the clients.
        aggregator: what the deltas are added to as well, for the flushes.
        lock: the collector's.
        state: where totals and marks are kept; None: in memory only.

    """

    def __init__(
        self,
        endpoints: Sequence[str],
        aggregator: Aggregator,
        lock: threading.Lock,
        state: StateFile | None,
    ) -> None:
        self._aggregator, self._lock, self._state = aggregator, lock, state
        names_max = aggregator.config.names_max
        self.totals = ExactTotals(names_max) if state is None else state.load(names_max)
        aggregator.exact_totals = self.totals.counters
        aggregator.take(self.totals.standing())
        self._unsaved: bytes | None = None
        self._changed = threading.Condition()
        self._stop = threading.Event()
        # From the earliest: what was counted before is skipped by its sequence, and what was sent
        # while no collector was there is still in the clients' replay buffers.
        self._subscriber = Subscriber(
            endpoints, topics=[TOPIC], start="earliest", on_gap=self._note_lost, name="statsd"
        )
        self._threads = [threading.Thread(target=self._run, name="statsd-exact", daemon=True)]
        if state is not None:
            self._threads.append(
                threading.Thread(
                    target=self._write, args=(state,), name="statsd-state", daemon=True
                )
            )
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                batch = self._subscriber.receive_many(_BATCH, timeout=_SLICE_S)
            except TimeoutError:
                continue
            with self._lock:
                for offset, value in enumerate(batch.values):
                    metrics = self.totals.apply(batch.session, batch.sequence + offset, value)
                    if metrics:
                        self._aggregator.take(metrics)

    def _note_lost(self, report: LossReport) -> None:
        _log.warning("statsd: exact totals lack deltas: %s", report)
        with self._lock:
            self.totals.note_lost(report.session, report.start, report.stop, report.reason.value)

    def keep(self) -> None:
        """Take the state as it is now, under the lock, to be written soon."""
        if self._state is not None:
            data = self.totals.encode()
            with self._changed:
                self._unsaved = data
                self._changed.notify()

    def _write(self, state: StateFile) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unsaved is not None or self._stop.is_set())
                data, self._unsaved = self._unsaved, None
            if data is None:
                return
            try:
                state.save(data)
            except OSError:
                _log.exception("statsd: the state could not be written")

    def stop(self) -> None:
        """Stop receiving; what was received is counted."""
        self._stop.set()
        self._threads[0].join()

    def close(self) -> None:
        """Write the state as `keep` took it last, and close."""
        self.stop()
        with self._changed:
            self._changed.notify()
        for thread in self._threads[1:]:
            thread.join()
        self._subscriber.close()
