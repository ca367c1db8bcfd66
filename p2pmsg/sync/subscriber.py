"""The threaded subscriber."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any

from p2pmsg.config import OnEnd, OnGap, SubscriberConfig
from p2pmsg.errors import (
    ClosedError,
    ConfigError,
    LossReport,
    MessagesLostError,
    RewoundReport,
    SessionEnd,
    SessionEndedError,
    SessionRewoundError,
)
from p2pmsg.message import Message, MessageBatch
from p2pmsg.start import parse_start
from p2pmsg.subscriber.conflation import ConflatedBatch, batch_of
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.sync.commits import Commit, Commits, EachCommitted, check_commit, open_cursor
from p2pmsg.sync.lifecycle import ClosesAtOnce, close_at_exit, close_in_children, was_closed
from p2pmsg.sync.lines import open_lines
from p2pmsg.sync.receiving import ConflatedIterator, iterate, receive_frame, waiter
from p2pmsg.sync.settings import (
    check_endpoints,
    check_name,
    check_on_end,
    check_topics,
    cursor_config,
    deadline,
    subscriber_config,
)
from recovery import CursorConfig, Loss, Rewound

if TYPE_CHECKING:
    from p2pmsg.stats import SubscriberStats

_MS = 1_000_000
_WAIT_MS = 1000
_COUNT_MAX = 2**32
_NOTHING: Iterator[Message] = iter(())
_NO_VALUES: Iterator[Any] = iter([])
_log = logging.getLogger("p2pmsg")
_random = SystemRandom()  # a forked child would repeat what another one draws


class Subscriber(ClosesAtOnce):
    """Receives messages: each once and in order, or reported lost.

    It connects; a publisher that is away is waited for. The thread that waits in `receive` (or
    iterates) does the I/O; a background thread keeps gaps repaired while nobody does.

    Args:
        endpoints: of one publisher, or several.
        topics: what to take: topics, and prefixes that end in `*`. Default: all.
        start: `latest` (default), `earliest`, a sequence, or a time (an aware datetime), as far as
            the replay buffer reaches. Where a publisher is gone before it has answered where that
            is, `earliest` and a time mean the earliest that it is known to have kept, or else 0:
            what is missing from there on is reported lost.
        on_gap: what to do about messages that are missing. `wait` (default): until they are
            repaired, or until `repair_timeout`, when their loss is logged and receiving goes on.
            `raise`: the same, but the loss is raised as `MessagesLostError`. A callable gets a
            `LossReport` instead. `skip`: do not wait, go on at once, and deliver what comes late
            with `message.late` set; with `start="latest"` and no cursor only. `latest`: only the
            newest value of each key matters, so a slow reader gets that one in place of the older
            ones, which `stats()` counts as conflated. Known limit: over many topics what a slow
            reader gets can grow older without end, unreported; watch `message.timestamp_ns`. A
            dict: policies by topic or prefix (`a*`).
            A publisher that uses sequences again is reported in the same way, as `RewoundReport`
            or `SessionRewoundError`, and logged with `skip`, too.
        on_end: what to do when a session of a `mold://` feed is over and all of it was delivered or
            reported lost. `wait` (default): for the feed's next session. `stop`: end the iteration,
            and raise `SessionEndedError` from `receive` and `receive_many`; the next call gets the
            feed's next session. A callable gets a `SessionEnd`, in the thread that receives,
            before the first message of the next session. Other publishers' sessions do not end.
        name: who subscribes, for people; at most 255 bytes.
        receive_bytes: bound on what waits for `receive`, in bytes. Default 16 MiB.
        repair_timeout: how long to wait for a repair without progress, in seconds. Default 10.
        cursor: the file that keeps this subscriber's position, or a `CursorConfig`. With it every
            stream resumes after its last committed message, whatever `start` says; `start` is for
            what the cursor does not know. A stream opened while the subscriber was away is taken
            from its beginning, and so is a publisher's new session. Default: no cursor.
        commit: when a message counts as processed, so that it does not come again after a restart.
            `explicit` (default): when `commit` is called; what was returned since then comes again.
            `message`: when the next one is asked for; at most the one in hand comes again, or the
            batch of `receive_many`. It also commits on closing, and needs one thread that does all
            the receiving; so does `commit_interval`.
        commit_interval: instead of `commit`: every so many seconds what is processed by then
            counts; what was returned in the last so many seconds (and 0.05 more) comes again, and
            what is in hand. At least 0.001. Default: none.
        config: all settings; the arguments above go before it.

    Raises:
        ConfigError: a setting is out of its limits; `EndpointError` for the endpoints.
        CursorError: the cursor's file cannot be used; `CursorInUseError` where another has it.

    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        topics: str | Sequence[str] | None = None,
        start: str | int | datetime = "latest",
        on_gap: OnGap = "wait",
        on_end: OnEnd = "wait",
        name: str = "",
        receive_bytes: int | None = None,
        repair_timeout: float | None = None,
        cursor: str | Path | CursorConfig | None = None,
        commit: Commit = "explicit",
        commit_interval: float | None = None,
        config: SubscriberConfig | None = None,
    ) -> None:
        self._policy, self._on_end = GapPolicy(on_gap), check_on_end(on_end)
        how, first = check_commit(commit, commit_interval), parse_start(start)
        if self._policy.any_skips and (first.kind != "latest" or cursor is not None):
            # What came before is a gap, and skipping is not to wait for gaps.
            raise ConfigError("start", '"latest", without a cursor, where on_gap is "skip"', start)
        settings = subscriber_config(config, receive_bytes, repair_timeout)
        keeping = cursor_config(cursor, *how)
        places = check_endpoints(endpoints)
        names, name = check_topics(topics), check_name(name)
        points = None if keeping is None else open_cursor(keeping, [*map(str, places)], names)
        self._core = SubscriberCore(
            topics=names,
            lines=len(places),
            start=first,
            subscriber=_random.getrandbits(64),
            name=name,
            config=settings,
            wait_for_repair=True,
            policy=self._policy,
            rng=Random(_random.getrandbits(64)),
            now_ns=time.monotonic_ns(),
            cursor=points,
            datagram_lines=[at for at, place in enumerate(places) if place.is_datagram],
        )
        self._active: Iterator[Message] = _NOTHING
        self._values: Any = _NO_VALUES
        self._batch: MessageBatch | None = None
        self._stream: Stream | None = None
        self._commits: Commits | None = None
        self._on_ask: Callable[[], None] | None = None
        self._closed, self._waiter, self._open = False, waiter(self), True
        try:
            self._driver = open_lines(self._core, places, names, settings)
            if points is not None and keeping is not None:
                commits = Commits(self, self._core, self._driver.lock, points, keeping, *how)
                self._commits = self._driver.commits = commits
                self._on_ask = commits.asked_each if commits.each else None
            close_in_children(self)
            self._driver.start()
            close_at_exit(self, lambda one, left: one.close())
        except BaseException:
            if points is not None:
                points.file.close()
            raise

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages without end; it ends when the subscriber is closed.

        With `on_end="stop"` it also ends with a feed's session; then iterate again for the next.
        After an exception (a loss, Ctrl-C) the same iterator goes on where it was.
        """
        self._open = not self._closed
        return iterate(self) if self._on_ask is None else EachCommitted(self)

    def receive(self, timeout: float | None = None) -> Message:
        """Return the next message.

        Args:
            timeout: in seconds; 0 does not wait. Default None: without end.

        Raises:
            TimeoutError: none came in time.
            MessagesLostError: `on_gap="raise"`, and messages were lost.
            SessionEndedError: `on_end="stop"`, and a feed's session is over.
            CursorError: a commit that is automatic could not be written; it is tried again.
            ClosedError: the subscriber is closed.

        """
        if self._on_ask is not None:
            self._on_ask()
        for message in self._active:  # unlike a call of `next`, Ctrl-C cannot come after it
            return message
        deadline_ns = deadline(timeout)
        if self._commits is not None:
            self._commits.asked()
        single: Message | None = receive_frame(self, deadline_ns, 1, False)
        if single:
            return single
        while True:  # another thread may be quicker
            self._advance(timeout, deadline_ns)
            for message in self._active:
                return message

    def receive_many(self, count_max: int = 65_536, timeout: float | None = None) -> MessageBatch:
        """Return the next messages of one stream, as many as are there.

        Args:
            count_max: how many at most. Default 65,536; a frame of small messages has some 500.
            timeout: in seconds, for the first of them. Default None: without end.

        Raises:
            ConfigError: `count_max` is not an int of at least 1.
            Others as `receive`.

        """
        if count_max < 1:
            raise ConfigError("count_max", "at least 1", count_max)
        deadline_ns = deadline(timeout)
        if self._on_ask is not None:
            self._on_ask()
        if self._commits is not None:
            self._commits.asked()
        while True:
            taken = None if self._values is _NO_VALUES else self._take_batch(count_max)
            if not taken and self._driver.takes_batches:
                taken = receive_frame(self, deadline_ns, count_max, True)
            if taken:
                return taken
            self._advance(timeout, deadline_ns, count_max)

    def _take_batch(self, count_max: int) -> MessageBatch | None:
        """Return what is left of the active batch, or put it back if that is above `count_max`."""
        rest: list[Any] = []
        stream, batch = self._stream, self._batch
        try:
            with self._driver.lock:
                if isinstance(self._active, ConflatedIterator):
                    self._active.renew()
                stream, batch = self._stream, self._batch
                if not self._closed:
                    # All of it, so that a loop or a thread that iterates over it gets none.
                    rest.extend(self._values)
                if stream is None or not rest:
                    self._clear_active()
                    return None
                whole = batch if batch is not None else batch_of(rest[0])
                if len(rest) > count_max:
                    self._put_back(stream, whole, len(rest))
                    return None
                self._clear_active()
                taken = whole.part(len(whole) - len(rest), len(whole))
                if self._commits is not None:
                    self._commits.hand_out(stream, taken.sequence)
            return taken
        except BaseException:
            if stream is not None and rest:  # Ctrl-C: what was not returned comes again
                with self._driver.lock:
                    whole = batch if batch is not None else batch_of(rest[0])
                    self._put_back(stream, whole, len(rest))
            raise

    def _put_back(self, stream: Stream, batch: MessageBatch, left: int) -> None:
        """Put back the last `left` messages of the active batch; the core's lock is held."""
        self._core.ready.put_back(stream, batch, left)
        self._clear_active()

    def commit(self, message: Message | MessageBatch | None = None) -> None:
        """Note durably that messages are processed, so that they do not come after a restart.

        A commit is there whole or not at all, whenever this process dies; with the default `fsync`
        it is on the disk on return.

        Args:
            message: commit its stream up to and including it, and no other stream. Default None:
                everything that was returned so far, the last one included, by whichever method.

        Raises:
            ConfigError: there is no cursor, or `message` is none that this subscriber returned.
            CursorError: it could not be written. The former commit holds; it may be tried again.
            ClosedError: the subscriber is closed.

        """
        if self._commits is None:
            raise ConfigError("cursor", "given where commit() is called", None)
        self._commits.commit(message)

    @property
    def connected(self) -> int:
        """How many of its endpoints have a publisher, or relay, that was joined and answers.

        0 is false: `if not subscriber.connected`. One that vanishes without closing counts until it
        was silent for `SubscriberConfig.publisher_timeout_ms`. `stats().lines` says which they are.
        """
        return sum(self._driver.connected())

    def stats(self) -> "SubscriberStats":
        """Return the ledger and the counters as they are now; also after `close`."""
        with self._driver.lock:
            if self._driver.interrupted:
                self._driver.heal()
            left = 0 if self._stream is None else self._values.__length_hint__()
            commits = None if self._commits is None else self._commits.stats()
            lines = self._driver.line_stats()
            return self._core.stats(self._stream, left, lines, commits)

    def close(self) -> None:
        """Close; what was not delivered yet stays outstanding in `stats()`.

        With automatic commits it commits what is known to be processed: not what is in hand, for
        an exception may be the cause. Leaving a `with` block without one commits that, too.

        Raises:
            CursorError: that could not be written; the subscriber is closed all the same.

        """
        self._close(in_hand=False)

    def _close(self, *, in_hand: bool) -> None:
        if self._closed:
            return
        self._closed = True
        was_closed(self)
        try:
            if self._commits is not None:
                self._commits.close(in_hand=in_hand)
        finally:
            self._active = _NOTHING
            self._driver.stop()

    def _leave(self, error: BaseException | None) -> None:
        self._close(in_hand=error is None)

    def _advance(
        self, timeout: float | None, deadline_ns: int | None = None, count_max: int = _COUNT_MAX
    ) -> None:
        """Make a batch with messages the active one, doing I/O until there is one."""
        driver, commits, ready = self._driver, self._commits, self._core.ready
        if commits is not None:
            commits.asked()
        while True:
            if self._closed:
                raise ClosedError("the subscriber")
            if commits is not None and commits.newcomers:
                commits.record()
            if driver.takes_batches and receive_frame(self, deadline_ns, count_max, False, True):
                return
            if self._activate(count_max):
                return
            wait_ms = _WAIT_MS
            if deadline_ns is not None:
                left_ns = deadline_ns - time.monotonic_ns()
                wait_ms = min(wait_ms, max(0, -(-left_ns // _MS)))
            with driver.io_lock:
                if self._closed:
                    continue
                if not ready.entries or (commits is not None and commits.joining):
                    driver.read(wait_ms)
            has_next = ready.entries and not (commits is not None and commits.joining)
            if deadline_ns is not None and wait_ms == 0 and not has_next:
                raise TimeoutError(f"no message within {timeout} s")

    def _activate(self, count_max: int) -> bool:
        """Take from the core what is ready: True when there are messages."""
        core, commits, ready = self._core, self._commits, self._core.ready
        if core.endings:
            self._report_endings()
        if not ready.entries:
            return bool(self._values.__length_hint__())
        while not self._closed:
            with self._driver.lock:
                if self._values.__length_hint__():
                    return True
                if not ready.entries or (commits is not None and commits.newcomers):
                    return False
                if commits is not None:
                    commits.touched.add(ready.entries[0][0])
                else:
                    self._batch = None  # two would not fit in the processor's cache
                now_ns = time.monotonic_ns() if self._policy.any_conflates else 0
                taken = ready.take(count_max, now_ns=now_ns)
                if taken is None:
                    return False
                stream, loss, batch, values, messages = taken
                if loss is None:
                    # No call since `take`, so that Ctrl-C comes before it all or after it all.
                    self._stream, self._batch, self._values, self._active = (
                        stream, batch, values, messages,
                    )  # fmt: skip
                    if isinstance(batch, ConflatedBatch):
                        self._active = ConflatedIterator(self, stream, messages, values)
                    return True
                if commits is not None:
                    commits.hand_out(stream, loss.start)
            self._report(stream, loss)
            if core.endings:
                self._report_endings()
        return False

    def _clear_active(self) -> None:
        self._stream = self._batch = None
        self._values, self._active = _NO_VALUES, _NOTHING

    def _report(self, stream: Stream, loss: Loss) -> None:
        rewound = isinstance(loss, Rewound)
        kind = RewoundReport if rewound else LossReport
        report = kind(stream.topic, stream.peer.session, stream.peer.name, loss)
        on_gap = self._policy.of(stream.topic)
        if on_gap == "raise":
            raise SessionRewoundError(report) if rewound else MessagesLostError(report)
        if callable(on_gap):
            on_gap(report)
        elif rewound or on_gap != "skip":
            _log.warning("%s", report)

    def _report_endings(self) -> None:
        """Report sessions that are over and all of which was delivered."""
        while True:
            with self._driver.lock:
                left = self._values.__length_hint__()  # another thread has them
                ending = None if left else self._core.pop_ending()
            if ending is None:
                return
            stream = ending.stream
            peer = stream.peer
            end = SessionEnd(stream.topic, peer.session, peer.name, ending.stop, ending.announced)
            if callable(self._on_end):
                self._on_end(end)
            elif self._on_end == "stop":
                raise SessionEndedError(end)
            else:
                _log.info("%s", end)

    def _forget(self) -> None:
        """In a forked child: the sockets and the thread are the parent's, perhaps the lock too."""
        self._closed = self._driver.stopping = True
        self._driver.lock = threading.RLock()
        if self._commits is not None:
            self._commits.forget()
        self._active, self._values = _NOTHING, _NO_VALUES
