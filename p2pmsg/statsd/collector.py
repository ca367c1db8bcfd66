"""The collector: one thread that reads sockets, adds up, and flushes to outputs.

The thread takes turns: it reads its sockets in bulk, and while a flush is under way it passes some
rows to the outputs between two reads. So a flush of 100,000 names stops the reading for a
millisecond at a time, and threads do not compete for a lock.
"""

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from p2pmsg import Publisher
from p2pmsg.errors import ClosedError, ReentrantCallError
from p2pmsg.stats import Stats
from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.exact import ExactReceiver
from p2pmsg.statsd.listen import ListenEndpoint, parse_listen
from p2pmsg.statsd.management import Management, handler
from p2pmsg.statsd.metric import BadLine
from p2pmsg.statsd.outputs.base import Output
from p2pmsg.statsd.outputs.stream import StreamOutput
from p2pmsg.statsd.serving import Server
from p2pmsg.statsd.snapshot import AggregateConfig, Snapshot
from p2pmsg.statsd.sockets import Sockets
from p2pmsg.statsd.totals import ExactTotals
from p2pmsg.toolkit import (
    INHERITED,
    ClosesItself,
    Section,
    check,
    checked,
    close_at_exit,
    close_in_children,
    shown,
    time_to_wait,
    was_closed,
)
from p2pmsg.toolkit import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security import Security

_LAST_S = 0.5
"""How long what the kernel still holds is read at the end."""
_DRAIN_S = 0.1
"""How often what has been read is added up, if it is little; the counters are as old at most."""
_THREAD_VALUES = 20_000
"""Above so many values a thread sorts them; up to there it takes less than a millisecond."""


class Flushing:
    """Passes snapshots to outputs, some rows a step, each by a call of its own."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        self._outputs = outputs
        self._steps: Iterator[None] | None = None
        self._asked: deque[threading.Event] = deque()
        self._served = 0
        """How many of those who have asked the flush that is under way is for."""
        self._is_over = False
        self.flushes = 0
        self.failures: Counter[str] = Counter()
        """Exceptions by output."""

    @property
    def is_busy(self) -> bool:
        """Whether a flush is under way."""
        return self._steps is not None

    @property
    def is_requested(self) -> bool:
        """Whether a flush was requested before the interval ends."""
        return len(self._asked) > self._served

    def request(self) -> threading.Event:
        """Request a flush; the event is set when every output has received it."""
        event = threading.Event()
        self._asked.append(event)  # no lock: a signal handler may come here, and ask, too
        if self._is_over:
            event.set()
        return event

    def begin(self, take: Callable[[], Snapshot]) -> None:
        """Take a snapshot, for those who have asked so far, and begin to flush it."""
        assert self._steps is None
        self._served = len(self._asked)
        self._steps = self._make_steps(take())

    def step(self) -> None:
        """Do some of the work."""
        if self._steps is not None and next(self._steps, self) is self:
            self._steps = None
            self.flushes += 1
            while self._served:
                self._served -= 1
                self._asked.popleft().set()

    def finish(self) -> None:
        """Do the rest of a flush."""
        while self._steps is not None:
            self.step()

    def count_failures(self) -> dict[str, int]:
        """Return the exceptions by output, with the failures that outputs count themselves."""
        own = {output.name: getattr(output, "failures", 0) for output in self._outputs}
        return dict(self.failures + Counter(own))

    def abandon(self) -> None:
        """Release all callers of `request`: there are no more flushes."""
        self._is_over = True
        for event in [*self._asked]:
            event.set()

    def _make_steps(self, snapshot: Snapshot) -> Iterator[None]:
        if len(snapshot.values) > _THREAD_VALUES:
            thread = threading.Thread(target=snapshot.prepare, name="statsd-sort", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends
                snapshot.prepare()
            while thread.is_alive():
                thread.join(0.0005)
                yield
        for output in self._outputs:
            self._call(output, output.begin, snapshot)
            for event in snapshot.events:
                self._call(output, output.write_event, event)
        for rows in snapshot.rows():
            for output in self._outputs:
                for row in rows:
                    self._call(output, output.write, row)
            yield
        for output in self._outputs:
            self._call(output, output.end, snapshot)

    def _call(self, output: Output, call: Callable[..., object], *arguments: object) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self.failures[output.name] += 1
            if self.failures[output.name] == 1:
                is_closed = isinstance(error, ClosedError)  # as a publisher that is its caller's
                what = "statsd: the output %s failed, which is counted from now on: %s"
                _log.warning(what, output.name, error, exc_info=not is_closed)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorStats(Stats):
    """Counters since the start."""

    packets: int = 0
    """Datagrams, and pieces of streams."""
    metrics: int = 0
    """Lines that were not empty."""
    bad_lines: int = 0
    """Lines, or parts of them, that are no metric."""
    bad_reasons: dict[str, int]
    """The same by reason."""
    bad_sample: list[BadLine]
    """The last 20."""
    names: int
    """Metrics kept now."""
    names_cut: int
    """Metrics that were dropped because there were too many names."""
    names_cut_sample: list[str]
    """The first ten of their names."""
    set_values_dropped: int = 0
    """Values of sets beyond 1,000,000 a flush."""
    values_dropped: int = 0
    """Values of timers beyond 4,000,000 a flush: they are in `count`, and in no other field."""
    events_dropped: int = 0
    """Events and service checks beyond 10,000 a flush."""
    timed_dropped: int = 0
    """Metrics with a timestamp beyond 100,000 a flush."""
    lines_overlong: int = 0
    """Lines over TCP beyond 64 KiB, and frames beyond it, which end their connection."""
    lines_unfinished: int = 0
    """Incomplete last lines and frames that were dropped: the connection was cut off, or the
    dialect is statsd's, which drops them."""
    kernel_drops: int = 0
    """Datagrams that the kernel dropped because a receive buffer was full."""
    connections: int = 0
    """Connections open now."""
    connections_refused: int = 0
    """Connections beyond 1,000."""
    flushes: int
    """Flushes that every output has received."""
    output_failures: dict[str, int]
    """By output: exceptions, and failures that it counts itself, as of sending to Graphite."""
    read_failures: int = 0
    """Exceptions while reading; each is a defect of the collector."""
    error: BaseException | None
    """What ended the collector, if something did."""


class Collector(ClosesItself):
    """Receives StatsD and DogStatsD, adds it up, and flushes it to outputs every interval.

    ::

        with Collector("udp://127.0.0.1:8125", publish="tcp://127.0.0.1:5556"):
            ...

    Args:
        listen: one or several of `udp://HOST:PORT`, `tcp://HOST:PORT`, `unixgram:///PATH`,
            `unix:///PATH` (lines, or the frames of Datadog's clients: each connection's first bytes
            show which), `unixstream:///PATH` (frames only). Port 0 picks a free one, see
            `endpoints`. Default `udp://127.0.0.1:8125`.
        publish: endpoint at which to publish the flushes, or a `Publisher`. Default: none.
        topic: under which they are published. Default `metrics`.
        outputs: further outputs.
        management: endpoint of the management port, `tcp://HOST:PORT`. Default: none.
        interval: time between flushes, in seconds. Default 10, as with statsd and DataDog.
        exact: endpoints of `p2pmsg.metrics.Client`s, whose deltas are added up exactly, see
            `totals`. Default: none.
        state: a file that keeps those totals over a crash of the collector; one collector has it at
            a time. It needs `exact`. Default: none, and a restart begins with what the clients'
            replay buffers hold.
        reuse_port: whether several collectors may listen at one UDP port; the kernel spreads the
            senders over them. Default False.
        config: settings of the aggregation: dialect, percentiles, names.
        security: keys for the connections to the clients of `exact`, of which one that refuses
            them is tried again, and for the endpoint `publish`. Default None: open.

    Raises:
        ConfigError: an argument is out of its limits.
        BindError: a socket could not be bound.

    """

    _hurried_s = 0.5

    @checked(interval=0.01)
    def __init__(
        self,
        listen: str | Sequence[str] = "udp://127.0.0.1:8125",
        *,
        publish: str | Publisher | None = None,
        topic: str = "metrics",
        outputs: Iterable[Output] = (),
        management: str | None = None,
        interval: float = 10.0,
        exact: str | Sequence[str] = (),
        state: str | os.PathLike[str] | None = None,
        reuse_port: bool = False,
        config: AggregateConfig | None = None,
        security: "Security | None" = None,
    ) -> None:
        places = [parse_listen(text) for text in _several(listen)]
        check("listen", listen, bool(places), "at least one endpoint")
        port = None if management is None else _management_at(management)
        endpoints = _several(exact)
        fits = state is None or bool(endpoints)
        check("state", state, fits, "None without exact, whose totals it keeps")
        self._outputs = _outputs_of(outputs)
        self._interval_s = interval
        self._aggregator = Aggregator(config, interval=interval)
        self.config = self._aggregator.config
        self._section, self._closing = Section(bool), Section(bool)
        self._closed, self._is_over, self._why = False, False, "it is closed"
        self._stop, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._sockets = Sockets(self._aggregator)
        self._management: Server | None = None
        self._publisher: Publisher | None = None
        self._exact: ExactReceiver | None = None
        self._opened = ExitStack()  # what the thread closes when it ends
        with ExitStack() as undo:
            undo.callback(self._opened.close)
            self._opened.callback(self._sockets.close)
            if port is not None:
                handles = handler(self._make_management(places), self._section)
                self._management = Server(port.host, port.port, handles)
                self._opened.callback(self._management.close)
            if isinstance(publish, str):
                publish = self._publisher = Publisher(publish, name=topic, security=security)
                undo.callback(publish.close, 0.0)
            if isinstance(publish, Publisher):
                self._outputs.insert(0, StreamOutput(publish, topic))
            if endpoints:
                given = self._aggregator, self._section, state
                self._exact = ExactReceiver(endpoints, *given, security)
                self._opened.callback(self._exact.close)
            for place in places:  # last: wrong arguments are refused before a port in use
                self._sockets.listen(place, reuse_port=reuse_port)
            undo.pop_all()
        self._unclosed: list[Any] = [*self._outputs, *filter(None, [self._publisher])]
        self._flushing = Flushing(self._outputs)
        self._thread = threading.Thread(target=self._run, name="statsd-collector", daemon=True)
        close_in_children(self)
        self._thread.start()
        close_at_exit(self, Collector.close)  # before its subscriber and publisher

    @property
    def endpoints(self) -> list[str]:
        """Where it listens, with the ports that were picked for 0."""
        return [str(place) for place in self._sockets.endpoints]

    @property
    def management_endpoint(self) -> str | None:
        """Where the management port listens, or None."""
        if self._management is None:
            return None
        return str(ListenEndpoint("tcp", self._management.host, self._management.port))

    @property
    def publish_endpoint(self) -> str | None:
        """Where the collector publishes its flushes; None if it has no publisher of its own."""
        return None if self._publisher is None else self._publisher.endpoint

    def stats(self) -> CollectorStats:
        """Return the counters, 0.1 s old at most; also after `close`, and in a signal handler."""
        return self._section.read(self._count)

    def _drain(self) -> None:
        self._aggregator.drain()
        self._sockets.count_drops()

    def _count(self) -> CollectorStats:
        aggregator, series = self._aggregator, self._aggregator.series
        return CollectorStats(
            **dict[str, Any](aggregator.counts),
            bad_reasons=dict(aggregator.bad_reasons),
            bad_sample=list(aggregator.bad_sample),
            names=len(series),
            names_cut=series.cut_count,
            names_cut_sample=list(series.cut_names),
            flushes=self._flushing.flushes,
            output_failures=self._flushing.count_failures(),
            error=self._error,
        )

    def totals(self) -> ExactTotals:
        """Return a copy of the totals of the exact metrics; also in a signal handler.

        Raises:
            ClosedError: the collector belongs to the parent process.

        """
        if self._why == INHERITED:  # the parent's thread may have been adding to them
            raise ClosedError("the collector", self._why)
        if self._exact is None:
            return ExactTotals()
        return self._section.read(self._exact.totals.copy)

    def flush(self, timeout: float = 10.0) -> None:
        """Flush now, and wait until every output has the flush.

        Raises:
            TimeoutError: it took longer than `timeout` seconds.
            ReentrantCallError: a signal handler called it that came within the collector.
            ClosedError: the collector is closed.

        """
        timeout = time_to_wait("timeout", timeout)
        if self._closed:
            raise ClosedError("the collector", self._why)
        self._section.run(bool)  # refused in a handler that came inside
        asked = self._flushing.request()
        self._sockets.wake()
        if not asked.wait(timeout):
            raise TimeoutError(f"no flush within {timeout} s")

    def close(self, timeout: float = 5.0) -> None:
        """Read what has arrived, flush it, and close.

        If Ctrl-C ends the call, the next one goes on, or the end of the program.

        Args:
            timeout: how long outputs and subscribers may take, in seconds. Default 5.0.

        Raises:
            ReentrantCallError: a signal handler called it that came within the collector; it is
                still open.

        """
        timeout = time_to_wait("timeout", timeout)
        if self._is_over:
            return
        self._section.run(bool)  # refused in a handler that came inside
        with suppress(ReentrantCallError):  # in a handler, while it is being closed
            self._closing.run(self._close, timeout)

    def _close(self, timeout: float) -> None:
        if self._is_over:
            return
        self._closed = True
        self._stop.set()
        self._sockets.wake()
        # Not by `join`: one that Ctrl-C ends takes the thread for ended the next time (bpo-45274).
        self._ended.wait()
        deadline = time.monotonic() + timeout
        while self._unclosed:
            output = self._unclosed[0]
            try:
                output.close(max(0.0, deadline - time.monotonic()))
            except Exception:
                _log.exception("statsd: %s could not be closed", output.name)
            self._unclosed.pop(0)
        self._is_over = True
        was_closed(self)

    def _forget(self) -> None:
        """In a forked child: sockets and threads are the parent's, perhaps the locks too."""
        self._closed = self._is_over = True
        self._why = INHERITED
        self._section.renew()
        self._closing.renew()
        self._sockets.forget()

    def __repr__(self) -> str:
        return shown(self, lambda: ", ".join(self.endpoints))

    # ------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            with self._opened:
                self._serve()
                self._finish()
        except BaseException as error:
            self._error = error
            if self._exact is not None:
                self._exact.on_failed(error)
            _log.exception("statsd: the collector has ended")
        finally:
            self._flushing.abandon()
            self._ended.set()

    def _serve(self) -> None:
        interval_s, drain_s = self._interval_s, 0.0
        next_s = time.monotonic() + interval_s
        while not self._stop.is_set():
            left_s = 0.0 if self._flushing.is_busy else next_s - time.monotonic()
            wait_s = max(0.0, min(left_s, _DRAIN_S))
            self._sockets.turn(wait_s, self._section)
            now_s = time.monotonic()
            if now_s >= drain_s:
                drain_s = now_s + _DRAIN_S
                self._section.run(self._drain)
            due = now_s >= next_s
            if due or self._flushing.is_requested:
                if self._flushing.is_busy:
                    self._flushing.finish()  # the outputs are slower than the interval
                if due:
                    # As statsd, keep to multiples of the interval; skip those that were missed.
                    next_s += interval_s * (int((now_s - next_s) / interval_s) + 1)
                self._section.run(self._begin_flush)
            self._flushing.step()

    def _begin_flush(self) -> None:
        self._sockets.count_drops()
        if self._exact is not None:
            self._exact.keep()
        self._flushing.begin(lambda: self._aggregator.flush(time.time()))

    def _finish(self) -> None:
        """Read what the kernel still holds, and flush everything."""
        if self._exact is not None:
            self._exact.stop()
        deadline = time.monotonic() + _LAST_S
        while self._sockets.turn(0.0, self._section) and time.monotonic() < deadline:
            pass
        self._flushing.finish()
        self._section.run(self._begin_flush)
        self._flushing.finish()

    def _make_management(self, places: Iterable[ListenEndpoint]) -> Management:
        shown: list[tuple[str, object]] = [
            ("listen", ", ".join(map(str, places))), ("interval", self._interval_s)
        ]  # fmt: skip
        for field in self.config.__slots__:
            value = getattr(self.config, field)
            shown.append((field, value.name if field == "dialect" else value))
        return Management(self._aggregator, time.time(), self._statuses, shown)

    def _statuses(self) -> list[tuple[str, str, float]]:
        found: list[tuple[str, str, float]] = [
            ("messages", "last_msg_seen", self._sockets.last_message_s),
            ("messages", "bad_lines_seen", self._aggregator.counts["bad_lines"]),
        ]
        for output in self._outputs:
            found += [(output.name, name, value) for name, value in output.status()]
        return found


def _outputs_of(outputs: Iterable[Output]) -> list[Output]:
    found = list(outputs)
    fits = all(hasattr(one, "name") and hasattr(one, "write") for one in found)
    check("outputs", outputs, fits, "objects with a name and the methods of an Output")
    return found


def _management_at(management: str) -> ListenEndpoint:
    place = parse_listen(management, "management")
    check("management", management, place.scheme == "tcp", "tcp://HOST:PORT")
    return place


def _several(endpoints: str | Sequence[str]) -> list[str]:
    return [endpoints] if isinstance(endpoints, str) else list(endpoints)
