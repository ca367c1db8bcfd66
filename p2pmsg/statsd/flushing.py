"""A flush on its way to the outputs, step by step."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from p2pmsg.statsd.outputs.base import Output
from p2pmsg.statsd.snapshot import Snapshot

_log = logging.getLogger("p2pmsg")
_THREAD_VALUES = 20_000
"""Values that a thread sorts; up to there the sorting takes less than a millisecond."""
_FAILURES_LOGGED = 3


class Flushing:
    """Hands snapshots to outputs, some rows a step."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        self._outputs = outputs
        self._steps: Iterator[None] | None = None
        self._asked: list[threading.Event] = []
        self._waiting: list[threading.Event] = []
        self._lock = threading.Lock()
        self._abandoned = False
        self.flushes = 0
        self.failures: Counter[str] = Counter()
        """Exceptions by output."""

    @property
    def is_busy(self) -> bool:
        """Whether a flush, or a text for Prometheus, is under way."""
        return self._steps is not None or self._is_output_busy

    @property
    def is_requested(self) -> bool:
        """Whether somebody asked for a flush out of turn."""
        return bool(self._asked)

    def request(self) -> threading.Event:
        """Ask for a flush; the event is set when every output has it."""
        event = threading.Event()
        with self._lock:
            if self._abandoned:
                event.set()
            else:
                self._asked.append(event)
        return event

    def begin(self, snapshot: Snapshot) -> None:
        """Begin a flush; the one before has ended."""
        assert self._steps is None
        with self._lock:
            self._waiting, self._asked = self._asked, []
        self._steps = self._make_steps(snapshot)

    _is_output_busy = False

    def step(self) -> None:
        """Do some of the work."""
        if self._steps is not None:
            try:
                next(self._steps)
            except StopIteration:
                self._end()
        busy = False
        for output in self._outputs:
            step: Callable[[], bool] | None = getattr(output, "step", None)
            if step is not None:
                busy = bool(self._call(output, step)) or busy
        self._is_output_busy = busy

    def finish(self) -> None:
        """Do the rest of a flush."""
        while self._steps is not None:
            self.step()

    def _end(self) -> None:
        self._steps = None
        self.flushes += 1
        for event in self._waiting:
            event.set()
        self._waiting = []

    def abandon(self) -> None:
        """Let go of all who wait: nothing more will be flushed."""
        with self._lock:
            self._abandoned = True
            for event in self._asked + self._waiting:
                event.set()
            self._asked, self._waiting = [], []

    def _make_steps(self, snapshot: Snapshot) -> Iterator[None]:
        if snapshot.value_count > _THREAD_VALUES:
            thread = threading.Thread(target=snapshot.prepare, name="statsd-sort", daemon=True)
            thread.start()
            while thread.is_alive():
                thread.join(0.0005)
                yield
        for output in self._outputs:
            self._call(output, output.begin, snapshot)
        for rows in snapshot.rows():
            for output in self._outputs:
                self._call(output, output.write, rows)
            yield
        for output in self._outputs:
            self._call(output, output.end, snapshot)

    def _call(self, output: Output, call: Callable[..., object], *arguments: object) -> object:
        try:
            return call(*arguments)
        except Exception:
            self.failures[output.name] += 1
            if self.failures[output.name] <= _FAILURES_LOGGED:
                _log.exception("statsd: the output %s failed", output.name)
            return None
