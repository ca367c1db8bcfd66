"""The receiver's side of the sink: each batch once, and only once it is whole.

It needs no Spark: any process that subscribes to what Spark's sink publishes may use it.
"""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

import p2pmsg
from spark_bridge.errors import BridgeError, ChangedBatchError, DataLossError
from spark_bridge.options import COMMIT_TOPIC

_QUERIES_MAX: Final = 1000
_BATCHES_MAX: Final = 16
"""Batches of a query whose partitions are known one by one; what is older has been delivered, since
Spark begins a batch when the one before it is whole."""
_LOSS_SECONDS: Final = 1.0


class _Record(msgspec.Struct):
    state: str
    query: str
    batch: int
    partition: int
    rows: int = 0


class Mark(NamedTuple):
    """By what a partition is recognised that comes again with other rows.

    Their values are not compared: a sum of floats may differ in its last digits when it is made
    again, and what is made of a clock does.
    """

    rows: int
    topics: int
    """A checksum of how many rows each topic has."""

    @classmethod
    def of(cls, batches: Sequence[p2pmsg.MessageBatch]) -> "Mark":
        """Return the mark of a partition's rows."""
        counts: Counter[str] = Counter()
        for batch in batches:
            counts[batch.topic] += len(batch)
        return cls(counts.total(), crc32(repr(sorted(counts.items())).encode()))


class _Session:
    """What one attempt of a task has published so far."""

    def __init__(self) -> None:
        self.batches: list[p2pmsg.MessageBatch] = []
        self.rows = 0
        self.begin: _Record | None = None
        self.commit: _Record | None = None
        self.committed_at = 0.0


State = Mapping[str, Mapping[str, Sequence[Sequence[int]]]]
"""What was delivered, as JSON has it: by query and batch, each partition with its `Mark`."""


class Delivered:
    """Which batches were delivered; pure.

    Args:
        state: what `state()` returned. Default: nothing was.

    """

    def __init__(self, state: State | None = None) -> None:
        self._queries: OrderedDict[str, OrderedDict[int, dict[int, Mark]]] = OrderedDict()
        for query, batches in (state or {}).items():
            self._queries[query] = OrderedDict(
                (number, {partition: Mark(*mark) for partition, *mark in found})
                for number, found in sorted((int(batch), each) for batch, each in batches.items())
            )

    def state(self) -> dict[str, dict[str, list[list[int]]]]:
        """Return it as JSON takes it."""
        return {
            query: {
                str(batch): [[partition, *mark] for partition, mark in sorted(found.items())]
                for batch, found in batches.items()
            }
            for query, batches in self._queries.items()
        }

    def add(self, query: str, batch: int, partition: int, mark: Mark) -> Mark | None:
        """Note that a partition of a batch is delivered; return its mark where it was before.

        Of a batch that is forgotten all was delivered, and is taken to be the same.
        """
        batches = self._queries.setdefault(query, OrderedDict())
        self._queries.move_to_end(query)
        if len(batches) == _BATCHES_MAX and batch < min(batches):
            return mark
        partitions = batches.setdefault(batch, {})
        if partition in partitions:
            return partitions[partition]
        partitions[partition] = mark
        while len(batches) > _BATCHES_MAX:
            del batches[min(batches)]
        while len(self._queries) > _QUERIES_MAX:
            self._queries.popitem(last=False)
        return None


class CommittedRows:
    """Takes what a subscriber receives and gives the rows of whole partitions, each batch once.

    Rows of an attempt that failed are never given, and neither is a batch that comes again: it is
    recognised by query, batch and partition. One that comes again with other rows is an error.

    Args:
        subscriber: of the sink's endpoints; `spark.commits` must be among its topics, and `start`
            is best `"earliest"`.
        rows_max: how many rows may wait for their commit. Default 4,000,000: one task's.
        delivered: `state()` of an earlier run, so that what was delivered before it ended is known.

    """

    def __init__(
        self,
        subscriber: p2pmsg.Subscriber,
        *,
        rows_max: int = 4_000_000,
        delivered: State | None = None,
    ) -> None:
        self._subscriber = subscriber
        self._rows_max = rows_max
        self._delivered = Delivered(delivered)
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._ready: deque[p2pmsg.MessageBatch] = deque()
        self.duplicates = 0
        """Partitions that came again and were dropped."""
        self.changed = 0
        """Partitions that came again with other rows: `ChangedBatchError` was raised for each."""
        self.abandoned = 0
        """Attempts without a commit whose rows were dropped."""

    def receive_many(self, timeout: float | None = None) -> p2pmsg.MessageBatch:
        """Return the next rows of one topic.

        Args:
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: nothing was committed in time.
            DataLossError: rows of a commit were lost on the way.
            ChangedBatchError: a partition that was delivered came again with other rows, which the
                error has. A further call goes on.
            BridgeError: more than `rows_max` rows wait for their commit.
            ClosedError, MessagesLostError: as the subscriber's `receive_many`.

        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            left = _LOSS_SECONDS if deadline is None else deadline - time.monotonic()
            try:
                batch = self._subscriber.receive_many(timeout=max(0.0, min(left, _LOSS_SECONDS)))
            except TimeoutError:
                self._check_losses()
                if deadline is not None and time.monotonic() >= deadline:
                    raise
                continue
            self.take(batch)
        return self._ready.popleft()

    def take(self, batch: p2pmsg.MessageBatch) -> None:
        """Take what was received; what became whole by it is given by `receive_many`.

        Raises:
            BridgeError, ChangedBatchError: as `receive_many`.

        """
        session = self._sessions.setdefault(batch.session, _Session())
        if batch.topic != COMMIT_TOPIC:
            session.batches.append(batch)
            session.rows += len(batch)
            if sum(each.rows for each in self._sessions.values()) > self._rows_max:
                limit = f"rows_max = {self._rows_max}"
                raise BridgeError(f"more than {limit} rows wait for their commit")
        else:
            for value in batch.values:
                try:
                    self._note(session, msgspec.convert(value, _Record))
                except msgspec.ValidationError:
                    continue  # somebody else's message
        self._settle(batch.session, session)

    def state(self) -> dict[str, dict[str, list[list[int]]]]:
        """Return what was delivered, for JSON; keep it with what was made of the rows."""
        return self._delivered.state()

    def _note(self, session: _Session, record: _Record) -> None:
        if record.state == "begin":
            session.begin = record
        elif record.state == "commit":
            session.commit = record
            session.committed_at = time.monotonic()

    def _settle(self, number: int, session: _Session) -> None:
        commit = session.commit
        if commit is None or session.rows < commit.rows:
            return
        del self._sessions[number]
        self._forget_attempts(commit)
        which, mark = (commit.query, commit.batch, commit.partition), Mark.of(session.batches)
        before = self._delivered.add(*which, mark)
        if before is None:
            self._ready.extend(session.batches)
        elif before == mark:
            self.duplicates += 1
        else:
            self.changed += 1
            raise ChangedBatchError(which, before.rows, tuple(session.batches))

    def _forget_attempts(self, commit: _Record) -> None:
        """Drop what failed attempts at the same, or at an earlier batch, have left."""
        for number, session in list(self._sessions.items()):
            begin = session.begin
            if begin is None or session.commit is not None or begin.query != commit.query:
                continue
            same = (begin.batch, begin.partition) == (commit.batch, commit.partition)
            if same or begin.batch < commit.batch:
                del self._sessions[number]
                self.abandoned += 1

    def _check_losses(self) -> None:
        """Raise for a commit that waits for rows that were reported lost, hence for ever."""
        now = time.monotonic()
        waiting = {
            number
            for number, session in self._sessions.items()
            if session.commit is not None and now - session.committed_at > _LOSS_SECONDS
        }
        if not waiting:
            return
        for loss in self._subscriber.stats().losses:
            if loss.session in waiting:
                del self._sessions[loss.session]
                raise DataLossError(f"{loss}, of a batch that Spark has committed")
