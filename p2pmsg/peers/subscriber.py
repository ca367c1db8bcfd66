"""A subscriber: its sockets and its core, its verbs, and what both of its faces share."""

import builtins
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple

import transports
from p2pmsg import control, wire
from p2pmsg.checks import checked, whole
from p2pmsg.config import OnEnd, OnGap, SubscriberConfig
from p2pmsg.driver.lifecycle import INHERITED, check_process
from p2pmsg.driver.peer import CLOSED, Peer
from p2pmsg.driver.verbs import Blocking, LateError, Verb, Wait
from p2pmsg.errors import ConfigError, SessionEnd, SessionEndedError
from p2pmsg.message import Message, MessageBatch, T_co
from p2pmsg.peers.base import FaceBase
from p2pmsg.peers.callbacks import check_callbacks, report_by, report_of
from p2pmsg.peers.lines import open_lines
from p2pmsg.peers.network import Network
from p2pmsg.peers.reading import Reading, TakenBatch
from p2pmsg.peers.settings import (
    Commit,
    check_commit,
    check_endpoints,
    check_name,
    check_on_end,
    check_topics,
    cursor_config,
    laid_over,
    seconds_ns,
)
from p2pmsg.start import Start
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.sessions import Session
from p2pmsg.subscriber.typed import InvalidValue, OnInvalid, ValueTypes
from p2pmsg.wire import Kind
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from pathlib import Path

    from p2pmsg.peers.commits import Commits
    from p2pmsg.security.settings import Security
    from p2pmsg.stats import SubscriberStats
    from p2pmsg.subscriber.resume import ResumePoints
    from recovery import CursorConfig

_MS: Final = 1_000_000
BATCH_MAX: Final = 65_536
"""As many messages as a batch has by default."""
MANY: Final = 2**32
"""As many messages as are there, for who gets them one by one."""
_TURN_NS: Final = _MS
"""How long a turn reads at most, while other tasks wait."""
_REST_NS: Final = 2 * _MS
"""How long it rests after such a turn where nobody waits for messages; always, where a line is UDP:
nobody holds the sender up while the kernel's buffer fills."""
_TICK_NS: Final = 10 * _MS
"""How long it rests where all was read, or where the application takes frames by itself."""
_CATCH_UP_NS: Final = _MS
"""How often a reader of the newest values reads all that has come."""
_SOME_NS: Final = _MS
"""So long, about, such a reader is busy with what it takes at a time; what is newer comes next."""
_SOME_MAX: Final = 1024


class Settings(NamedTuple):
    """What a subscriber is made of; the arguments of `Subscriber`, checked."""

    places: list[transports.Endpoint]
    topics: list[str]
    start: Start
    policy: GapPolicy
    on_end: OnEnd
    types: ValueTypes
    name: str
    config: SubscriberConfig
    cursor: "CursorConfig | None"
    commit: tuple[Commit, float | None]
    security: "Security | None"
    is_drained: Callable[[Session], bool] | None


class SubscriberPeer(Peer):
    """A subscriber's core with its sockets and its cursor.

    Attributes:
        core: the engine.
        reading: the messages that were taken from it, and not handed out yet, or a report.
        each: whether a message is committed when the next one is asked for.

    """

    kind = "subscriber"
    thread_name = "p2pmsg-subscriber"

    def __init__(self, settings: Settings, network: Network) -> None:
        check_process()
        self.places = ", ".join(map(str, settings.places))
        self.name = f"the subscriber of {self.places}"
        self.now_ns = network.now_ns
        self._policy, self._on_end, self._types = settings[3:6]
        self.reading = Reading()
        self._taken_batch: TakenBatch | None = None
        self._is_over = False
        self._rests_until_ns = 0
        self._is_wanted = self._has_more = False
        self._caught_up_ns = self._some_ns = 0
        self._some_max = 1
        self._hands_out: Callable[[], bool] = partial(bool, 1)
        self._conflates = settings.policy.any_conflates
        self._commits: Commits | None = None
        points: ResumePoints | None = None
        if settings.cursor is not None:
            from p2pmsg.peers.commits import open_cursor  # most subscribers have no cursor

            # By these it is known: a peer may get another key.
            texts = [str(place.without_key()) for place in settings.places]
            points = open_cursor(network, settings.cursor.path, texts, settings.topics)
        try:
            self._make(settings, network, points)
        except BaseException:
            if points is not None:
                points.file.close()
            raise
        self._rest_ns = _TICK_NS
        if self.core.multicast is not None:
            self._rest_ns = _REST_NS

    def _make(self, settings: Settings, network: Network, points: "ResumePoints | None") -> None:
        places, random = settings.places, network.random
        self.core = SubscriberCore(
            topics=settings.topics, lines=len(places), start=settings.start,
            subscriber=random.getrandbits(64), name=settings.name, config=settings.config,
            policy=settings.policy, types=settings.types, rng=Random(random.getrandbits(64)),
            now_ns=self.now_ns(), cursor=points, counts_replies=network.keeps_replies,
            is_drained=settings.is_drained,
            datagram_lines=[at for at, place in enumerate(places) if place.is_datagram],
        )  # fmt: skip
        if points is not None and settings.cursor is not None:
            from p2pmsg.peers.commits import Commits

            self._commits = Commits(
                self.core, self.reading, points, settings.cursor, *settings.commit, self.now_ns
            )
        self.each = self._commits is not None and self._commits.each
        self._io = open_lines(
            self.core, places, settings.topics, settings.config, network, settings.security
        )

    # ------------------------------------------------------------------- for the driver

    def turn(self, now_ns: int) -> None:
        """Do what is due; read, but leave a frame that comes alone to who waits for it."""
        core, io = self.core, self._io
        wanted, self._is_wanted, self._has_more = self._is_wanted, False, False
        io.check(now_ns)
        if now_ns < core.next_deadline_ns():
            if wanted and not self._conflates and io.sees_frame():
                return
            if now_ns < self._rests_until_ns:
                io.settle()
                return
        end_ns = now_ns + _TURN_NS
        has_read = False
        while io.round(now_ns):
            has_read = True
            if wanted and core.ready.entries:
                self._has_more = True
                return
            now_ns = self.now_ns()
            if now_ns >= end_ns:
                self._has_more = True
                break
        self._has_more = io.settle() or self._has_more
        if has_read and not wanted:
            self._rests_until_ns = now_ns + (_REST_NS if self._has_more else self._rest_ns)

    def fds(self) -> frozenset[int]:
        """Return the sockets' descriptors; none while it rests."""
        return frozenset() if self._rests_until_ns > self.now_ns() else self._io.fds()

    def next_deadline_ns(self) -> int:
        """Return when something is due, or its rest is over."""
        due_ns = self._io.next_deadline_ns()
        rests_until_ns = self._rests_until_ns
        if rests_until_ns > self.now_ns():
            return min(due_ns, rests_until_ns)
        return 0 if self._has_more or self._io.has_sent else due_ns

    def resync(self) -> None:
        """Put back what was taken and did not arrive; ask again for what is missing."""
        if not self.closed_why and self.core.ready.take_back(self.reading.taken):
            self.reading.clear()
            if self._taken_batch is not None:
                self._taken_batch.clear()
        self._io.resync()

    @property
    def is_inherited(self) -> bool:
        """Whether it is the copy of a forked child."""
        return self.closed_why == INHERITED

    def upkeep(self) -> Verb[None] | None:
        """Return the cursor's: who joins is recorded, and commits that are due are written."""
        return None if self._commits is None else self._commits.upkeep()

    def shut(self) -> None:
        """Close the sockets."""
        self.closed_why, self._is_over = self.closed_why or CLOSED, True
        self.reading.end()
        if self._commits is not None:
            self._commits.shut()
        self._io.close()

    def abandon(self) -> None:
        """In a forked child: the sockets and the file are the parent's."""
        super().abandon()
        self.reading.abandon()
        if self._commits is not None:
            self._commits.abandon()

    # -------------------------------------------------------------------------- verbs

    def fill(self, timeout: float | None, deadline_ns: int | None, count_max: int) -> Verb[None]:
        """Wait until messages are there to be read, or something to be reported before them.

        It is for who has found none.
        """
        while True:
            is_ready = yield Wait(self._is_ready, deadline_ns)
            if not is_ready and not self.closed_why:
                raise LateError(f"no message within {timeout} s")
            if self.take_now(count_max):
                return

    def commit_returned(self) -> Verb[None]:
        """Commit what was returned before; for `each` only."""
        assert self._commits is not None
        return self._commits.commit_returned()

    def commit(self, message: Message | MessageBatch | None) -> Verb[None]:
        """Commit what was returned so far, or up to `message`."""
        if self._commits is None:
            raise ConfigError("cursor", "given where commit() is called", None)
        yield from self._commits.commit(message)

    def close(self, *, in_hand: bool) -> Verb[None]:
        """Close the cursor; another call waits until that is done."""
        if self.closed_why:
            yield Wait(lambda: self._is_over)
            return
        self.closed_why = CLOSED
        try:
            if self._commits is not None:
                yield from self._commits.close(in_hand=in_hand)
        finally:
            self.reading.end()
            self._is_over = True

    # --------------------------------------------------- inside, and without a wait

    def take_now(self, count_max: int = MANY, reading: Reading | None = None) -> bool:
        """Have messages there to be read, at most `count_max`, or a report; if there are any.

        With `reading` it is that where messages will be, unless some are there already. Where
        nothing is, a refused connection is raised, once for each refusal.
        """
        if self.closed_why:
            self.check_open()
        if not self._hands_out():
            return False
        if self.reading.left or self.reading.is_reporting:
            return True
        reading = reading or self.reading
        if self._commits is not None:
            self._commits.asked()
        if self._conflates:
            self._catch_up()
        if self._take_frame(count_max, reading):
            return True
        taken = self._take_ready(count_max, reading)
        if not taken and not self._io.is_empty and self._io.round(self.now_ns()):
            taken = self._take_ready(count_max, reading)
        self._rests_until_ns = self.now_ns() + self._rest_ns if taken else 0
        if not taken:
            self._io.raise_refused()
        return taken

    def take_batch(self, count_max: int, taken: TakenBatch) -> None:
        """Move what is there, at most `count_max`, to `taken`, where there is no report."""
        reading = self.reading
        if reading.left and not self.closed_why:
            taken.take(reading)
            if len(taken.rest) > count_max:
                self.put_back(taken)
        if not taken.rest:
            unseen, self._taken_batch = Reading(), taken
            if self.take_now(count_max, unseen):
                taken.take_whole(unseen)
            self.core.ready.arrived()
            self._taken_batch = None
        if taken.rest and self._commits is not None:
            assert taken.stream is not None
            self._commits.hand_out(taken.stream, taken.batch().sequence)

    def put_back(self, taken: TakenBatch) -> None:
        """Have a batch that did not arrive come again."""
        if taken.rest and taken.stream is not None:
            self.core.ready.put_back(taken.stream, taken.whole, len(taken.rest))
        taken.clear()

    def close_now(self) -> None:
        """Close the cursor, and wait for the disk."""
        if not self.closed_why:
            _run_at_once(self.close(in_hand=False))

    def commit_at_once(self) -> None:
        """Do as `commit_returned`, and wait for the disk."""
        _run_at_once(self.commit_returned())

    def hold_until(self, is_done: Callable[[], bool]) -> None:
        """Hand nothing out until `is_done()`."""
        self._hands_out = is_done

    def connected(self) -> int:
        """Return how many endpoints have somebody who was joined, and answers."""
        return sum(self._io.connected())

    def sessions(self) -> list[Session]:
        """Return the sessions that are known."""
        return list(self.core.peers.values())

    def contacted(self) -> list[bool]:
        """Return at which endpoints a publisher was met."""
        return [line.contacted for line in self.core.lines]

    def settle(self, session: int, topic: str, following: int, lost: list[tuple[int, int]]) -> None:
        """Say to a publisher that the application is done with a stream below `following`."""
        body = control.Settled(topic, following, lost)
        self.core.requests.append((session, wire.control_frame(Kind.SETTLED, session, body)))

    def datagram_sockets(self) -> list[Any]:
        """Return the sockets that datagrams come to, for tests that have some lost."""
        return self._io.datagram_sockets()

    def stats(self) -> "SubscriberStats":
        """Return the ledger and the counters."""
        from p2pmsg.peers.subscriber_stats import subscriber_stats

        commits = None if self._commits is None else self._commits.stats()
        reading, lines = self.reading, self._io.line_stats()
        return subscriber_stats(self.core, reading.stream, reading.left, lines, commits)

    # ------------------------------------------------------------------------ reading

    def _is_ready(self) -> bool:
        """Whether there is something to take, or to report."""
        core, commits = self.core, self._commits
        self._is_wanted = True
        self._rests_until_ns = 0
        if self.closed_why:
            return True
        if not self._hands_out():
            return False
        if commits is not None and (commits.has_failed or commits.newcomers):
            return commits.has_failed
        io = self._io
        if core.ready.entries or core.denials.waiting:
            return True
        if self.reading.left or self.reading.is_reporting:
            return True
        if io.refused is not None or (not self._conflates and io.sees_frame()):
            return True
        return bool(core.endings) and any(one.stream.position >= one.stop for one in core.endings)

    def _take_frame(self, count_max: int, reading: Reading) -> bool:
        """Take a frame straight from the socket, where nothing else is to be done."""
        if self._conflates or (self._commits is not None and self._commits.newcomers):
            return False
        core, io = self.core, self._io
        self.reading.batch = None  # two would not fit in the processor's cache
        found = io.next_frame()
        if found is None:
            return False
        stream, data = found
        now_ns = self.now_ns()
        if self._commits is not None:
            self._commits.touched.add(stream)
        taken = core.take_frame(stream, data, count_max, now_ns)
        if taken is None:
            io.give(data, now_ns)
            return False
        if isinstance(taken, Message):
            values: Any = iter((taken,))
            reading.begin(core.ready.taken, stream, None, values, values)
        else:
            values = iter(taken.values)
            reading.begin(core.ready.taken, stream, taken, values, taken.iterate(values))
        self._rests_until_ns = now_ns + self._rest_ns
        return True

    def _take_ready(self, count_max: int, reading: Reading) -> bool:
        """Take from the core what is ready: messages, or what is to be reported before them."""
        commits, ready = self._commits, self.core.ready
        if self.core.denials.waiting:
            self._raise_denial()
        while not (self.core.endings and self._take_ending()):
            if not ready.entries or (commits is not None and commits.newcomers):
                return False
            now_ns = self.now_ns()
            if self._conflates:
                ready.next_turn(now_ns)
                if count_max == MANY:
                    count_max = self._some(now_ns)
            if commits is not None:
                commits.touched.add(ready.entries[0][0])
            taken = ready.take(count_max, now_ns=now_ns)
            if taken is None:
                return False
            stream, loss, batch, values, messages = taken
            if loss is None:
                reading.begin(taken, stream, batch, values, messages)
                break
            if commits is not None:
                commits.hand_out(stream, loss.start)
            if isinstance(loss, InvalidValue):
                report = report_by(self._types.on_invalid, loss.error, loss.error)
            else:
                report = report_of(self._policy, stream, loss)
            if report is not None:
                self.reading.begin_report(taken, report, loss.start)
                break
            ready.arrived()
        return True

    def _some(self, now_ns: int) -> int:
        """Return how many of the newest values are taken at a time, by how long the last took."""
        is_fast = now_ns - self._some_ns < _SOME_NS
        self._some_max = min(_SOME_MAX, 2 * self._some_max) if is_fast else 1
        self._some_ns = now_ns
        return self._some_max

    def _catch_up(self) -> None:
        """Read what has come, for a reader of the newest values that asks for the next message.

        Without that it takes a frame at a time, and a slow one the older ones the longer it runs:
        what waits in the socket is not conflated. It may take as long as the reader was away, so
        that a reader that can hardly follow spends half of its time on it, and 3 ms at most.
        """
        begun_ns = self.now_ns()
        away_ns = begun_ns - self._caught_up_ns
        if away_ns < _CATCH_UP_NS:
            return
        end_ns = begun_ns + min(away_ns, 3 * _MS)
        while self._io.round(self.now_ns()) and self.now_ns() < end_ns:
            pass
        self._caught_up_ns = self.now_ns()

    def _raise_denial(self) -> None:
        """Log, and raise, what is not allowed; each is reported once."""
        if (denial := self.core.denials.take()) is not None:
            error = denial.as_error()
            _log.warning("%s", error)
            raise error

    def _take_ending(self) -> bool:
        """Have it reported that a session is over and all of it was delivered; where one is."""
        ending = self.core.pop_ending()
        if ending is None:
            return False
        stream, peer = ending.stream, ending.stream.peer
        end = SessionEnd(stream.topic, peer.session, peer.name, ending.stop, ending.announced)
        report = report_by(self._on_end, end, SessionEndedError(end))
        logged = partial(_log.info, "%s", end)
        self.reading.begin_report(self.core.ready.taken, report or logged)
        return True


def _run_at_once(verb: Verb[None]) -> None:
    for request in verb:
        if isinstance(request, Blocking):
            request.call()


class SubscriberBase(FaceBase, Generic[T_co]):
    """What both faces of a subscriber have in common: the arguments, and all that never waits."""

    _peer: SubscriberPeer
    _report: Callable[[], object]
    _is_drained: Callable[[Session], bool] | None = None
    """Whether all of a session that closes was processed, so that its publisher may go. None: it
    was received."""

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
        policy, values = GapPolicy(on_gap), ValueTypes(type, types, on_invalid)
        called = check_on_end(on_end), on_invalid, *policy.callables
        check_callbacks(called, may_be_async=self._may_await())
        how = check_commit(commit, commit_interval)
        settings = Settings(
            check_endpoints(endpoints), check_topics(topics),
            policy.check_start(start, has_cursor=cursor is not None), policy, on_end, values,
            check_name(name), laid_over(
                config or SubscriberConfig(), receive_bytes=receive_bytes,
                repair_timeout=repair_timeout,
            ), cursor_config(cursor, *how), how, security, self._is_drained,
        )  # fmt: skip
        self._begin(SubscriberPeer, settings)

    def _may_await(self) -> bool:
        """Whether what a callable returns is awaited."""
        return False

    def _on_open(self) -> None:
        self._reading = self._peer.reading
        self._each = self._peer.each

    def _deadline(self, timeout: float) -> int:
        """Return when `timeout` seconds will have passed; `ConfigError` for no number."""
        return self._peer.now_ns() + seconds_ns(timeout)

    def receive_nowait(self) -> Message[T_co] | None:
        """Return the next message, or None where there is none yet; it never waits.

        Raises:
            Others: as `receive`, without the TimeoutError.

        """
        self._driver.check_caller()
        if self._each:
            self._driver.section.run(self._peer.commit_at_once)
        while True:
            for message in self._reading.messages:
                return message
            if not self._take_now():
                return None
            self._report()

    def receive_many_nowait(self, count_max: int = BATCH_MAX) -> MessageBatch[T_co] | None:
        """Return the messages of one stream that are there, or None; it never waits.

        Args:
            count_max: how many at most. Default 65,536.

        Raises:
            ConfigError: `count_max` is not an int of at least 1.
            Others: as `receive_nowait`.

        """
        check_count(count_max)
        self._driver.check_caller()
        if self._each:
            self._driver.section.run(self._peer.commit_at_once)
        while True:
            batch = self._take_batch(count_max)
            if batch is not None or not self._take_now(count_max):
                return batch
            self._report()

    def _take_now(self, count_max: int = MANY) -> bool:
        """Have messages there to be read, or a report, if there are any, without a wait."""
        taken: bool = self._driver.section.run(self._peer.take_now, count_max)
        return taken

    def _take_batch(self, count_max: int) -> MessageBatch[T_co] | None:
        """Return what is there as a batch; None: there are none, or there is a report."""
        taken = TakenBatch()
        try:
            self._driver.section.run(self._peer.take_batch, count_max, taken)
            return taken.batch() if taken.rest else None
        except BaseException:
            if taken.rest:
                self._driver.section.run(self._peer.put_back, taken)
            raise

    @property
    def connected(self) -> int:
        """How many of its endpoints have a publisher, or relay, that was joined and answers.

        0 is false: `if not subscriber.connected`. One that vanishes without closing counts until it
        was silent for `SubscriberConfig.publisher_timeout`. `stats().lines` says which they are.
        """
        return self._read(self._peer.connected)

    def stats(self) -> "SubscriberStats":
        """Return the ledger and the counters as they are now; also after `close`."""
        return self._read(self._peer.stats)


def check_count(count_max: int) -> None:
    """Raise `ConfigError` where it is no int of at least 1."""
    if type(count_max) is not int or count_max < 1:
        whole("count_max", count_max, 1)
