"""The collector's side of exact metrics: subscribes to the clients and keeps their totals."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from p2pmsg import Subscriber
from p2pmsg.errors import (
    AuthenticationError,
    ConfigError,
    LogFormatError,
    LogInUseError,
    LossReport,
)
from p2pmsg.message import MessageBatch
from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.totals import DELTAS_TOPIC, HERE, NOT_JOINED, VANISHED, ExactTotals
from p2pmsg.store import open_store
from p2pmsg.toolkit import Rarely, Section, Session, Trouble
from p2pmsg.toolkit import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security import Security

_SLICE_S = 0.05
_LOOK_S = 0.1
"""How often it is looked which clients are there."""
_REPORT_S = 1.0
"""How often clients are sent how far their deltas are counted."""
_SAVE_AGAIN_S = 0.5
"""Pause before the state is written again after a failure."""
_BATCH = 256
_TABLES = "CREATE TABLE totals (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
_PUT = "INSERT OR REPLACE INTO totals VALUES (?, ?)"
_Marks = tuple[dict[int, int], frozenset[int]]
"""By session, the next sequence that is not counted yet; and the clients that have not closed."""


class StateFile:
    """Exact totals on disk: a file of SQLite with one table of JSON by name.

    Args:
        path: of the file; its folder must exist.

    Raises:
        ConfigError: the folder does not exist, another collector has the file, or it cannot be read
            or is none.

    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        with self._checked():
            self._store = open_store(path, _TABLES)

    def load(self, names_max: int) -> ExactTotals:
        """Return the totals, from zero where there is no file yet; raises `ConfigError`."""
        with self._checked():
            rows = self._store.rows("SELECT name, value FROM totals")
            return ExactTotals.decode(dict(rows), names_max) if rows else ExactTotals(names_max)

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """Say what is wrong with the file as with any other setting."""
        try:
            yield
        except LogInUseError as error:
            raise ConfigError("state", "a file that no other collector has", self._path) from error
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigError("state", "a file in a folder that is there", self._path) from error
        except (LogFormatError, ValueError, OSError) as error:
            raise ConfigError("state", f"a state file ({error})", self._path) from error

    def save(self, state: dict[str, str]) -> None:
        """Write what `ExactTotals.encode` returned; it is on the disk on return, or not at all."""
        self._store.write((_PUT, list(state.items())), durable=True)

    def close(self) -> None:
        """Let another collector have the file."""
        self._store.close()


Settle = Callable[[int, str, int, list[tuple[int, int]]], None]
"""Says to a session's publisher what is settled: session, topic, the next sequence, ranges lost."""


class DeltaSubscriber(Subscriber):
    """Receives deltas, and sees the sessions that they come from.

    Args:
        is_drained: whether a client that closes may go; called inside of the peer's section, with
            what says to it what is settled.
        endpoints: of the clients.
        options: as for `Subscriber`.

    """

    def __init__(
        self, is_drained: Callable[[Session, Settle], bool], endpoints: list[str], **options: Any
    ) -> None:
        self._is_drained = lambda session: is_drained(session, self._peer.settle)
        super().__init__(endpoints, **options)

    def sessions(self) -> list[Session]:
        """Return the sessions that it knows."""
        found: list[Session] = self._driver.section.run(self._peer.sessions)
        return found

    def contacted(self) -> list[bool]:
        """Return at which endpoints a client was met."""
        found: list[bool] = self._driver.section.run(self._peer.contacted)
        return found

    def settle(self, *settled: Any) -> None:
        """Say to a session's publisher what is settled; see `Settle`."""
        self._driver.section.run(self._peer.settle, *settled)
        self._driver.wake()


class ExactReceiver:
    """Receives deltas in a thread of its own and adds them up in the collector's section.

    A client that closes waits until its deltas are in the totals, and in the state file where there
    is one. So no client is gone before its deltas outlast a SIGKILL of the collector.

    Args:
        endpoints: of the clients.
        aggregator: gets the deltas too, for the flushes.
        section: the collector's.
        state: file where totals and marks are kept; None: in memory only.
        security: keys for the connections to the clients; None: open.

    """

    def __init__(
        self,
        endpoints: Sequence[str],
        aggregator: Aggregator,
        section: Section,
        state: str | os.PathLike[str] | None,
        security: "Security | None" = None,
    ) -> None:
        self._aggregator, self._section = aggregator, section
        self._state = None if state is None else StateFile(state)
        try:
            self._begin(list(endpoints), security)
        except BaseException:
            if self._state is not None:
                self._state.close()
            raise

    def _begin(self, endpoints: list[str], security: "Security | None") -> None:
        aggregator, names_max = self._aggregator, self._aggregator.config.names_max
        state = self._state
        self.totals = ExactTotals(names_max) if state is None else state.load(names_max)
        self.totals.expect(endpoints)
        self._endpoints = endpoints
        aggregator.exact_totals = self.totals.counters
        aggregator.take(self.totals.initial_metrics())
        self._saved = self._marks()
        self._must_save = False
        self._reported: dict[int, int] = {}
        self._check_due_s = self._report_due_s = self._save_due_s = 0.0
        self._trouble = Trouble(
            "statsd's state cannot be written", "a crash would take what is counted meanwhile"
        )
        self._may_say = Rarely()
        self._stop = threading.Event()
        # From the earliest: what was counted before is skipped by its sequence, and what was sent
        # while no collector ran is still in the clients' replay buffers.
        self._subscriber = DeltaSubscriber(
            self._is_drained, endpoints, topics=[DELTAS_TOPIC], start="earliest",
            on_gap=self._on_lost, name="statsd", security=security,
        )  # fmt: skip
        self._receiver = threading.Thread(target=self._run, name="statsd-exact", daemon=True)
        self._receiver.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._receive()
                now_s = time.monotonic()
                must_save = self._must_save and now_s >= self._save_due_s
                if must_save or now_s >= self._check_due_s:
                    self._check()  # so that what is written of the clients is as new as the counts
                if must_save:
                    self._save()
        except Exception as error:
            _log.exception("statsd: exact metrics are not collected any more")
            self.on_failed(error)

    def on_failed(self, error: BaseException) -> None:
        """Note what ended the collecting: the totals are not exact any more."""
        self.totals.failed = f"{type(error).__name__}: {error}"

    def _receive(self) -> None:
        try:
            batch = self._subscriber.receive_many(_BATCH, timeout=_SLICE_S)
        except (TimeoutError, AuthenticationError):  # that is logged, and tried again
            return
        self._section.run(self._count, batch)

    def _count(self, batch: MessageBatch[Any]) -> None:
        for offset, value in enumerate(batch.values):
            try:
                metrics = self.totals.apply(batch.session, batch.sequence + offset, value)
                if metrics:
                    self._aggregator.take(metrics)
            except Exception:  # one client's message is no reason to leave the others
                self.totals.malformed += 1
                if self._may_say.is_due():
                    _log.exception("statsd: deltas could not be counted")

    def _on_lost(self, report: LossReport) -> None:
        _log.warning("statsd: exact totals lack deltas: %s", report)
        lost = report.session, report.start, report.stop, report.reason.value
        self._section.run(self.totals.on_lost, *lost)

    def _check(self) -> None:
        """Note which clients are there, which have closed, and which vanished without closing."""
        self._check_due_s = time.monotonic() + _LOOK_S
        peers, reached = self._subscriber.sessions(), self._subscriber.contacted()
        if self._section.run(self._take_statuses, peers, reached):
            self.keep()
        if time.monotonic() >= self._report_due_s:
            self._report_due_s = time.monotonic() + _REPORT_S
            self._report(peers)

    def _take_statuses(self, peers: Sequence[Session], reached: Sequence[bool]) -> bool:
        """Note the status of all clients; True where one is new."""
        for endpoint, was_reachable in zip(self._endpoints, reached, strict=True):
            if was_reachable:
                self.totals.on_reachable(endpoint)
        known = self.totals.clients()
        changes = [self._note(peer, known) for peer in peers]
        for session in known.keys() - {peer.session for peer in peers}:
            name, status = known[session]
            if status == HERE:
                changes.append(self.totals.on_client(session, name, VANISHED))
        return any(changes)

    def _note(self, peer: Session, known: dict[int, tuple[str, str]]) -> bool:
        """Note a client's status; True where that is new."""
        session, totals = peer.session, self.totals
        stream = peer.streams.get(DELTAS_TOPIC)
        if stream is not None and stream.receiver.started:
            # What the client's buffer no longer held at the join never comes.
            start = totals.next_sequence(session)
            totals.on_lost(session, start, stream.receiver.start, "evicted")
        if self._has_all(peer):
            return totals.on_finished(session)
        before = known.get(session, ("", ""))[1]
        if not peer.joined:
            status = before or NOT_JOINED
        elif peer.gone or peer.is_silent or not (peer.direct or peer.relayed):
            status = VANISHED
        elif peer.probe is not None:  # its head is not known yet
            status = before or HERE
        else:
            status = HERE
        changed = totals.on_client(session, peer.name, status)
        if changed and status == VANISHED:
            what = "went without closing; what it sent last may be missing"
            _log.warning("statsd: the client %s %s", peer.name, what)
        return changed

    def _has_all(self, peer: Session) -> bool:
        """Whether a client has closed, and all that it has sent is counted or reported lost."""
        routes = (peer.own, *peer.relayed)
        closing = any(one.closing for one in routes)
        waits = peer.probe is not None or not peer.joined or peer.missing
        return any(one.is_complete for one in routes) or (
            closing and not waits and self.totals.next_sequence(peer.session) >= _head(peer)
        )

    def _is_drained(self, peer: Session, settle: Settle) -> bool:
        """Whether a client that closes may go; called by the subscriber's own thread.

        That is reported first, since it says what was lost.
        """
        head = _head(peer)
        if self._state is None:
            settled = self.totals.next_sequence(peer.session) >= head
        else:
            counted, unfinished = self._saved
            settled = counted.get(peer.session, 0) >= head and peer.session not in unfinished
            self._must_save = self._must_save or not settled
        if settled and peer.direct and head > self._reported.get(peer.session, 0):
            self._settle(settle, peer.session, head)
        return settled

    def _report(self, peers: Sequence[Session]) -> None:
        """Send clients how far their deltas are counted; with a state, how far they are on disk."""
        counted = (self._marks() if self._state is None else self._saved)[0]
        there = [one.session for one in peers if one.direct and not one.gone]
        reported = {session: counted[session] for session in there if counted.get(session)}
        for session, following in reported.items():
            if following > self._reported.get(session, 0):
                self._settle(self._subscriber.settle, session, following)
        self._reported = reported

    def _settle(self, settle: Settle, session: int, following: int) -> None:
        """Say to a client that what is below `following` is counted, or which of it is lost."""
        lost = [  # there are at most 1,000
            (one.start, one.stop)
            for one in self.totals.losses
            if one.session == session and one.stop <= following
        ]
        settle(session, DELTAS_TOPIC, following, lost)

    def _marks(self) -> _Marks:
        return self.totals.marks(), frozenset(self.totals.clients())

    def keep(self) -> None:
        """Have the state written soon, where there is one."""
        self._must_save = True

    def _save(self) -> None:
        """Write the state; where that fails it is logged, and tried again."""
        self._must_save = False
        if self._state is None:
            return
        data, marks = self._section.run(lambda: (self.totals.encode(), self._marks()))
        try:
            self._state.save(data)
        except OSError as error:
            self._trouble.note(error)
            self._must_save = True
            self._save_due_s = time.monotonic() + _SAVE_AGAIN_S
        else:
            self._trouble.over()
            self._saved = marks

    def stop(self) -> None:
        """Stop receiving; all that was received is counted."""
        if not self._stop.is_set():
            self._stop.set()
            self._receiver.join()
            self._check()

    def close(self) -> None:
        """Write the state once more, and close."""
        self.stop()
        self._save()
        self._report(self._subscriber.sessions())
        self._subscriber.close()
        if self._state is not None:
            self._state.close()


def _head(peer: Session) -> int:
    stream = peer.streams.get(DELTAS_TOPIC)
    return 0 if stream is None else stream.receiver.head
