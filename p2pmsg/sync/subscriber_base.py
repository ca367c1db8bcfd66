"""What the subscribers of threads and of event loops have in common."""

import builtins
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Final, Generic

from p2pmsg.checks import checked, shown
from p2pmsg.config import OnEnd, OnGap, SubscriberConfig
from p2pmsg.driver.lifecycle import INHERITED, NotCopied, close_in_children
from p2pmsg.errors import SessionEnd, SessionEndedError
from p2pmsg.message import Message, MessageBatch, T_co
from p2pmsg.subscriber.conflation import ConflatedBatch, batch_of
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.subscriber.typed import InvalidValue, OnInvalid, ValueTypes
from p2pmsg.sync.callbacks import call_back, check_callbacks, report_loss
from p2pmsg.sync.receiving import ConflatedIterator
from p2pmsg.sync.settings import (
    Commit,
    check_commit,
    check_endpoints,
    check_name,
    check_on_end,
    check_topics,
    cursor_config,
    subscriber_config,
)
from p2pmsg.sync.subscriber_io import SubscriberIO
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from pathlib import Path

    import transports
    from p2pmsg.security.settings import Security
    from p2pmsg.stats import SubscriberStats
    from p2pmsg.subscriber.resume import ResumePoints
    from p2pmsg.sync.commits import Commits
    from recovery import CursorConfig

NOTHING: Final[Iterator[Message]] = iter(())
NO_VALUES: Final[Iterator[Any]] = iter([])
_random = SystemRandom()  # a forked child would repeat what another one draws


class SubscriberBase(NotCopied, ABC, Generic[T_co]):
    """A core with its sockets and cursor, and the messages that are being read.

    The arguments are those of `p2pmsg.Subscriber`. Nothing here waits.
    """

    _driver: SubscriberIO
    _unusable = "it is closed"
    _pending: Any
    """What a callable that is a coroutine function returned; nothing is taken before it is done."""

    @checked(commit_interval=0.001, repair_timeout=0.001)
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
        cursor: "str | Path | CursorConfig | None" = None,
        commit: Commit = "explicit",
        commit_interval: float | None = None,
        type: builtins.type[T_co] | None = None,  # noqa: A002  # as msgspec's decoders call it
        types: Mapping[str, Any] | None = None,
        on_invalid: OnInvalid = "raise",
        config: SubscriberConfig | None = None,
        security: "Security | None" = None,
    ) -> None:
        self._security = security
        self._policy, self._on_end = GapPolicy(on_gap), check_on_end(on_end)
        self._types = ValueTypes(type, types, on_invalid)
        self._check_callbacks()
        how = check_commit(commit, commit_interval)
        first = self._policy.check_start(start, has_cursor=cursor is not None)
        settings = subscriber_config(config, receive_bytes, repair_timeout)
        keeping = cursor_config(cursor, *how)
        places = check_endpoints(endpoints)
        names, name = check_topics(topics), check_name(name)
        points = None if keeping is None else _open_cursor(keeping, _texts(places), names)
        self._core = SubscriberCore(
            topics=names, lines=len(places), start=first, subscriber=_random.getrandbits(64),
            name=name, config=settings, policy=self._policy,
            types=self._types, rng=Random(_random.getrandbits(64)), now_ns=time.monotonic_ns(),
            cursor=points,
            datagram_lines=[at for at, place in enumerate(places) if place.is_datagram],
        )  # fmt: skip
        self._core.counts_replies = True
        self._active: Iterator[Message] = NOTHING
        self._values: Any = NO_VALUES
        self._batch: MessageBatch | None = None
        self._stream: Stream | None = None
        self._commits: Commits | None = None
        self._on_ask: Callable[[], None] | None = None
        self._closed = False
        self._pending: Any = None
        try:
            self._driver = self._open_io(places, names, settings)
            if points is not None and keeping is not None:
                self._commit_to(points, keeping, *how)
            close_in_children(self)
            self._begin()
        except BaseException:
            if points is not None:
                points.file.close()
            raise

    def _commit_to(
        self, points: "ResumePoints", config: "CursorConfig", commit: Commit, interval: float | None
    ) -> None:
        from p2pmsg.sync.commits import Commits

        lock = self._driver.lock
        commits = Commits(self, self._core, lock, points, config, commit, interval)
        self._commits = self._driver.commits = commits
        self._on_ask = commits.asked_each if commits.each else None

    @abstractmethod
    def _open_io(
        self, places: "list[transports.Endpoint]", topics: list[str], config: SubscriberConfig
    ) -> SubscriberIO:
        """Return the I/O, with its lines connected."""

    @abstractmethod
    def _begin(self) -> None:
        """Begin to read, now that all is there."""

    def _check_callbacks(self, *, may_be_async: bool = False) -> None:
        """Refuse an `on_gap`, `on_end` or `on_invalid` that would do nothing when it is called."""
        given = self._on_end, self._types.on_invalid, *self._policy.callables
        check_callbacks(given, may_be_async=may_be_async)

    @property
    def connected(self) -> int:
        """How many of its endpoints have a publisher, or relay, that was joined and answers.

        0 is false: `if not subscriber.connected`. One that vanishes without closing counts until it
        was silent for `SubscriberConfig.publisher_timeout`. `stats().lines` says which they are.
        """
        return sum(self._driver.connected())

    def __repr__(self) -> str:
        return shown(self, lambda: ", ".join(f"{at.endpoint}" for at in self._driver.line_stats()))

    def stats(self) -> "SubscriberStats":
        """Return the ledger and the counters as they are now; also after `close`."""
        with self._driver.lock:
            if self._driver.interrupted:
                self._driver.resync()
            left = 0 if self._stream is None else self._values.__length_hint__()
            commits = None if self._commits is None else self._commits.stats()
            lines = self._driver.line_stats()
            return self._core.stats(self._stream, left, lines, commits)

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

    def _activate(self, count_max: int) -> bool:
        """Take from the core what is ready: True when there are messages."""
        core, commits, ready = self._core, self._commits, self._core.ready
        if core.denials.waiting:
            self._report_denial()
        if core.endings:
            self._report_endings()
        if not ready.entries:
            return bool(self._values.__length_hint__())
        while not self._closed and self._pending is None:
            with self._driver.lock:
                if self._values.__length_hint__():
                    return True
                if not ready.entries or (commits is not None and commits.newcomers):
                    return False
                now_ns = 0
                if self._policy.any_conflates:
                    now_ns = time.monotonic_ns()
                    ready.next_turn(now_ns)
                if commits is not None:
                    commits.touched.add(ready.entries[0][0])
                else:
                    self._batch = None  # two would not fit in the processor's cache
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
            if isinstance(loss, InvalidValue):
                self._types.report(loss.error, self._call)
            else:
                report_loss(self._policy, stream, loss, self._call)
            if core.endings:
                self._report_endings()
        return False

    def _is_ready(self) -> bool:
        """Whether there is something to take, or to report."""
        commits = self._commits
        if commits is not None and (commits.newcomers or commits.failed):
            return commits.failed
        if self._core.ready.entries or self._values.__length_hint__():
            return True
        if self._driver.refused is not None or self._core.denials.waiting:
            return True
        return any(one.stream.position >= one.stop for one in self._core.endings)

    def _clear_active(self) -> None:
        self._stream = self._batch = None
        self._values, self._active = NO_VALUES, NOTHING

    def _call(self, callback: Callable[[Any], Any], report: Any) -> None:
        """Call the application's `on_gap`, `on_end` or `on_invalid`."""
        call_back(callback, report, awaits=False)

    def _report_denial(self) -> None:
        """Log, and raise, what is not allowed; each is reported once."""
        with self._driver.lock:
            denial = self._core.denials.take()
        if denial is None:
            return
        error = denial.as_error()
        _log.warning("%s", error)
        raise error

    def _report_endings(self) -> None:
        """Report sessions that are over and all of which was delivered."""
        while self._pending is None:
            with self._driver.lock:
                left = self._values.__length_hint__()  # another thread has them
                ending = None if left else self._core.pop_ending()
            if ending is None:
                return
            stream = ending.stream
            peer = stream.peer
            end = SessionEnd(stream.topic, peer.session, peer.name, ending.stop, ending.announced)
            if callable(self._on_end):
                self._call(self._on_end, end)
            elif self._on_end == "stop":
                raise SessionEndedError(end)
            else:
                _log.info("%s", end)

    def _forget(self) -> None:
        """In a forked child: the sockets and the thread are the parent's, perhaps the lock too."""
        self._closed = self._driver.stopping = True
        self._unusable = INHERITED
        self._driver.lock = threading.RLock()
        if self._commits is not None:
            self._commits.forget()
        deque(self._values, maxlen=0)  # an iterator that was begun drives its messages by them
        self._active, self._values = NOTHING, NO_VALUES


def _open_cursor(config: "CursorConfig", places: list[str], topics: list[str]) -> "ResumePoints":
    from p2pmsg.sync.commits import open_cursor  # most subscribers have no cursor

    return open_cursor(config, places, topics)


def _texts(places: "list[transports.Endpoint]") -> list[str]:
    """Return the endpoints by which a cursor is known: a peer may get another key."""
    return [str(place.without_key()) for place in places]
