"""A publisher: its engine, its sockets, its verbs; and the base of its faces, which never waits."""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from p2pmsg.checks import checked
from p2pmsg.codec import EncHook
from p2pmsg.config import OnFull, PublisherConfig
from p2pmsg.driver.verbs import Verb, Wait
from p2pmsg.errors import LogFailedError, ReentrantCallError, translated
from p2pmsg.native import appending
from p2pmsg.peers.network import MACHINE, Network
from p2pmsg.peers.opening import Settings, open_publisher
from p2pmsg.peers.serving import ServingBase, ServingPeer
from p2pmsg.peers.settings import check_columns, check_name, laid_over, publish_error
from p2pmsg.publisher.batch import OpenBatches
from p2pmsg.publisher.packing import PACKING_ERRORS
from recovery.checks import to_ns
from transports import TURN

if TYPE_CHECKING:
    from pathlib import Path

    from p2pmsg.publisher.core import PublisherCore
    from p2pmsg.security.settings import Security
    from p2pmsg.stats import PublisherStats
    from recovery.log import LogConfig

_MS: Final = 1_000_000
_OFTEN_NS: Final = 5 * _MS
"""While batches are begun so soon after one another, turns come once a `linger` by themselves, so
that a batch need not wake anybody."""
_COUNT_MAX: Final = 65_536
_LAST_FRAMES: Final = 4


class _Bulk:
    """One call of `publish_many`."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class PublisherPeer(ServingPeer):
    """Sends what was accepted, answers, and brings its log to the disk.

    Attributes:
        needs_turn: whether the last call left something for a turn that may not be near.

    """

    kind = "publisher"
    thread_name = "p2pmsg-publisher"
    core: "PublisherCore"

    def __init__(self, settings: Settings, network: Network = MACHINE) -> None:
        super().__init__(settings.title, network, settings.security)
        with translated(), ExitStack() as undo:
            self.core, self.sender, self.server, self.outgoing, self._group = open_publisher(
                settings, network, undo
            )
            self._use_sockets()
            undo.pop_all()
        self._send = self.sender.send
        self._tick_ns = max(_MS, min(to_ns(settings.config.linger), 1000 * _MS))
        self._gathered_ns = 0
        self._bulk_counts: dict[str, int] = {}
        self._bulk_bytes = settings.config.bulk_bytes
        # By topic, the call of publish_many that goes on: its sequences are to be one range.
        # Weakly, so that none stays that an exception ended on its way out.
        self._reserved: WeakValueDictionary[str, _Bulk] = WeakValueDictionary()
        self.needs_turn = False

    def _timer_ns(self, now_ns: int) -> int | None:
        tick_ns = now_ns + self._tick_ns
        due_ns = self.core.next_deadline_ns(tick_ns)
        if now_ns - self._gathered_ns >= _OFTEN_NS:
            return due_ns
        return tick_ns if due_ns is None else min(tick_ns, due_ns)

    def _seal_all(self) -> str | None:
        try:
            self.core.flush(now_ns=self.now_ns())
        except LogFailedError as error:
            return str(error)
        return None

    # --------------------------------------------------------------------- publishing

    def publish_alone(
        self,
        topic: str,
        value: Any,
        key: str | None,
        timestamp_ns: int | None,
        headers: dict[str, Any] | None,
    ) -> int:
        """Accept and send a message of an idle stream; -1 where `publish` is to be used."""
        core, now_ns = self.core, self.now_ns()
        wall_ns = self._wall_ns()
        sequence = core.publish_alone(topic, value, key, timestamp_ns, headers, now_ns, wall_ns)
        if sequence >= 0:
            outbox = core.outbox
            if self._send(outbox[0]):
                outbox.popleft()
            core.on_alone(topic, now_ns, self.now_ns())
            TURN.is_theirs = True
            self.needs_turn = bool(outbox) or core.heartbeats.is_sooner
        return sequence

    def publish(
        self,
        topic: str,
        value: Any,
        key: str | None,
        timestamp_ns: int | None,
        headers: dict[str, Any] | None,
        *,
        bounded: bool,
    ) -> int:
        """Accept a message; -1: `publish_many` has its topic; `unreserved` waits for that.

        With `bounded` it is refused where too much waits to be sent.
        """
        self.check_open()
        if topic in self._reserved:
            return -1
        self.outgoing.make_space(bounded=bounded)
        core, now_ns = self.core, self.now_ns()
        wall_ns = self._wall_ns()
        sequence = core.publish(
            topic, value, key, timestamp_ns, headers, now_ns=now_ns, wall_ns=wall_ns
        )
        gone = not core.unsynced and self.outgoing.send_now()
        core.on_published(now_ns, self.now_ns(), gone=gone)
        if core.open_batches:
            self._gathered_ns = now_ns
        self._check_turn(now_ns)
        return sequence

    def _check_turn(self, now_ns: int) -> None:
        core = self.core
        is_late = bool(core.open_batches) and self._due_ns > now_ns + 2 * self._tick_ns
        waits = self.outgoing.waits or bool(core.unsynced)
        self.needs_turn = is_late or waits or core.heartbeats.is_sooner

    def take(
        self,
        call: "_Bulk",
        topic: str,
        values: Any,
        keys: Any,
        timestamps_ns: Any,
        at: int,
        *,
        bounded: bool,
    ) -> tuple[int, int]:
        """Accept a frame of `values` from `at` on; return how many, and the last sequence.

        None, where another call than `call` has the topic.
        """
        self.check_open()
        if self._reserved.get(topic, call) is not call:
            return 0, -1
        self.outgoing.make_space(bounded=bounded)
        core, now_ns = self.core, self.now_ns()
        count = _share(len(values) - at, self._bulk_counts.get(topic, 64))
        taken = core.publish_many(
            topic, values, keys, timestamps_ns, at,
            now_ns=now_ns, wall_ns=self._wall_ns(), count=count,
        )  # fmt: skip
        if at + taken < len(values):
            self._reserved[topic] = call
            core.hold(topic)
        last = core.replay.next(topic) - 1
        size = len(core.outbox[-1]) if core.outbox else self._bulk_bytes
        self._bulk_counts[topic] = max(1, min(_COUNT_MAX, taken * self._bulk_bytes // size))
        self.outgoing.send_now()
        self._check_turn(now_ns)
        return taken, last

    def release(self, call: "_Bulk", topic: str) -> bool:
        """Let others publish to `topic`, if `call` has it; return whether it had."""
        is_mine = self._reserved.get(topic) is call
        if is_mine:
            del self._reserved[topic]
        return is_mine

    def unreserved(self, topic: str) -> Verb[None]:
        """Wait until no call of `publish_many` has `topic`; one of this thread is not waited for.

        Raises:
            ReentrantCallError: a signal's handler interrupted that call.

        """
        call = self._reserved.get(topic)
        if call is not None and call.thread == threading.get_ident():
            raise ReentrantCallError
        yield Wait(lambda: topic not in self._reserved, by_io=False)

    def flush(self) -> None:
        """Send what is gathered."""
        self.check_open()
        now_ns = self.now_ns()
        self.core.flush(now_ns=now_ns)
        self.outgoing.send_now()
        self._check_turn(now_ns)

    # -------------------------------------------------------------------------- verbs

    @property
    def session(self) -> int:
        """The 64-bit id of its sequence space."""
        return self.core.session

    @property
    def open_batches(self) -> OpenBatches:
        """The batches that `publish` may write to, by topic; always the same object."""
        return self.core.open_batches

    @property
    def holds_up(self) -> bool:
        """Whether a call that may wait is to do so until there is space."""
        return self.outgoing.holds_up

    @property
    def is_synced(self) -> bool:
        """Whether what is accepted is acknowledged when it is on the disk."""
        return self.core.log is not None and self.core.log.syncs_first

    def leave(self) -> Verb[None]:
        """Wait until a call's frames have left, and not too many wait for the disk."""
        yield Wait(lambda: not self.outgoing.holds_up or self._is_over)

    def leave_all(self) -> Verb[None]:
        """Wait until all that was accepted has left; what waits for the disk goes there first."""
        if self.is_synced:
            yield from self.sync()
        outgoing = self.outgoing
        yield Wait(lambda: not outgoing.waits or self._is_over)
        if outgoing.waits:
            self.check_open()
        log = self.core.log
        if log is not None and log.broken is not None:
            raise LogFailedError(log.broken)

    @property
    def _is_over(self) -> bool:
        log = self.core.log
        return self.is_closed or (log is not None and log.broken is not None)

    def drain(self) -> Verb[None]:
        """Wait until what was published has left."""
        self.check_open()
        yield from self.leave_all()

    def stats(self) -> "PublisherStats":
        """Return the counters."""
        from p2pmsg.peers.stats import publisher_stats

        return publisher_stats(self.core, self._group, self._counts())

    # ------------------------------------------------------------------------ closing

    def _check_logged(self, failure: LogFailedError | None) -> None:
        unlogged = self.core.pending
        if unlogged:
            what = f"{unlogged} messages could not be written to the log, and were not sent"
            log = self.core.log
            if log is not None and log.keeps_batches:
                what += "; they are in its tail file, and the next publisher on this log sends them"
            raise LogFailedError(what) from failure
        super()._check_logged(failure)

    def _close_log(self) -> None:
        if self.core.log is not None:
            self.core.log.close(keeps_tail=self.core.pending > 0)


def _share(left: int, count: int) -> int:
    """Return how many of the values that are left make the next frame, where `count` fill one.

    The last few frames share them evenly: a small one at the end would cost as much as a full one.
    """
    if left >= _LAST_FRAMES * count:
        return count
    return -(-left // max(1, round(left / count)))


class PublisherBase(ServingBase):
    """What the faces share."""

    _peer: PublisherPeer

    @checked()
    def __init__(
        self,
        endpoint: str | Sequence[str],
        *,
        name: str | None = None,
        replay_bytes: int | None = None,
        on_full: OnFull | None = None,
        stall_timeout: float | None = None,
        recovery_endpoint: str | None = None,
        log: "LogConfig | str | Path | None" = None,
        exact_types: bool | None = None,
        enc_hook: EncHook | None = None,
        config: PublisherConfig | None = None,
        security: "Security | None" = None,
    ) -> None:
        self._config = laid_over(
            config or PublisherConfig(), replay_bytes=replay_bytes, on_full=on_full,
            stall_timeout=stall_timeout, exact_types=exact_types, enc_hook=enc_hook,
        )  # fmt: skip
        self._name = check_name(name if name is not None else str(endpoint)[:80])
        self._security = security
        settings = Settings(self._name, endpoint, recovery_endpoint, self._config, log, security)
        self._begin(PublisherPeer, settings)

    def _on_open(self) -> None:
        peer = self._peer
        self._section = self._driver.section
        self._publish_alone = peer.publish_alone
        self._waits = self._driver.may_wait
        self._waits_for_disk = self._waits and peer.is_synced
        # What waits for the disk goes the long way, and finds no batch.
        self._batches = OpenBatches() if self._waits_for_disk else peer.open_batches

    @property
    def session(self) -> int:
        """The 64-bit id of this publisher's sequence space."""
        return self._peer.session

    @property
    def config(self) -> PublisherConfig:
        """Its settings, with what was given by name."""
        return self._config

    @appending
    def publish(
        self,
        topic: str,
        value: Any,
        key: str | None = None,
        timestamp_ns: int | None = None,
        headers: dict[str, Any] | None = None,
    ) -> int:
        """Accept one message and return its sequence.

        With a log it is in there on return, as safe as `LogConfig.fsync` says; in an event loop
        `drain` waits for the disk. It is sent at once where the stream is idle, and shares a frame
        with others where messages follow one another closely, for at most `linger`. What is changed
        in `value` afterwards does not change the message. It waits for a slow subscriber with
        threads, as `on_full` says, and never in an event loop.

        Args:
            topic: UTF-8, 1 to 255 bytes, without a zero byte, not ending in `*`.
            value: bytes, str, int, float, bool, None, aware datetime, list or dict of these. A
                tuple or set arrives as a list, a dataclass, Struct or pydantic model as a dict, a
                numpy scalar as a number; for a Decimal and the like see `exact_types`.
            key: what it belongs to. Default None.
            timestamp_ns: when it happened, in ns since the epoch. Default: the time at which its
                frame was begun, at most `linger` ago.
            headers: further fields by name, msgpack values. Default None.

        Raises:
            MessageError: it cannot be published as it is; it names the part: `value["a"][3].price`.
            SendQueueFullError: `on_full="raise"`, and a subscriber's queue is full. In an event
                loop also: too much waits to be sent; await `drain`.
            LogFailedError: the local log could not be written. With `fsync="always"` the
                message may be sent all the same when the log can be written again.
            ReentrantCallError: a signal handler called it that came within the publisher.
            ClosedError: the publisher is closed.

        """
        entered = self._section
        lock = entered.lock
        try:
            if not lock.acquire():
                entered.refuse()
            if entered.busy:
                entered.check()
            entered.busy = True
            batches = self._batches
            batch = batches.batch if topic is batches.topic else batches.get(topic)
            has_left = True
            if batch is not None:
                if key is None and timestamp_ns is None and headers is None and batch.slot is None:
                    # `Batch.put`, written out: the call would be a sixth of all.
                    buffer = batch.buffer
                    try:
                        batch.encode_into(value, buffer, -1)
                        size = len(buffer)
                    except PACKING_ERRORS:
                        size = batch.limit
                    if size < batch.limit:
                        sequence = batch.next
                        batch.end, batch.next = size, sequence + 1
                    else:
                        sequence = -1
                        batch.repair()
                else:
                    sequence = batch.put(value, key, timestamp_ns, headers)
            else:
                sequence = self._publish_alone(topic, value, key, timestamp_ns, headers)
                has_left = not self._peer.needs_turn
            entered.busy = False
            lock.release()
        except BaseException as error:
            entered.leave(error)
            raise publish_error(error, topic, value) from None
        if sequence < 0:
            del entered  # by which one is known that is inside
            return self._publish(topic, value, key, timestamp_ns, headers)
        if not has_left:
            del entered
            self._see_off()
        return sequence

    def _publish(self, topic: str, value: Any, key: Any, timestamp_ns: Any, headers: Any) -> int:
        """Publish what has not got its batch, or does not fit it."""
        driver, peer = self._driver, self._peer
        driver.check_caller()
        while True:
            try:
                sequence: int = driver.section.run(
                    self._accept, topic, value, key, timestamp_ns, headers
                )
            except BaseException as error:
                raise publish_error(error, topic, value) from None
            if sequence >= 0:
                break
            driver.run(peer.unreserved(topic))
        if self._waits_for_disk:
            driver.run(peer.sync())  # which sends it, too
        elif peer.needs_turn:
            self._see_off()
        return sequence

    def _accept(self, *message: Any) -> int:
        return self._peer.publish(*message, bounded=not self._waits)

    def _see_off(self) -> None:
        """Have sent what a call has left; where calls may wait, wait until there is space."""
        driver, peer = self._driver, self._peer
        if self._waits and peer.holds_up:
            driver.run(peer.leave())
        else:
            driver.wake()

    def publish_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[str | None] | None = None,
        timestamps_ns: Sequence[int] | None = None,
    ) -> tuple[int, int]:
        """Accept many messages in one call; returns the first and the last sequence.

        It is some ten times faster than as many calls of `publish`. If it raises, the exception's
        note says how many of the values were accepted.

        Args:
            topic: as for `publish`.
            values: what to publish, one message each; at least one.
            keys: one key (or None) a value. Default: none has one.
            timestamps_ns: one a value. Default: now, for all.

        Raises:
            MessageError, SendQueueFullError, LogFailedError, ClosedError: as for `publish`.
            ConfigError: no values, or as many keys or timestamps as values are not there.

        """
        count = check_columns(values, keys, timestamps_ns)
        driver, peer, at, last = self._driver, self._peer, 0, -1
        driver.check_caller()
        call = _Bulk()
        take = partial(peer.take, call, topic, values, keys, timestamps_ns, bounded=not self._waits)
        try:
            while at < count:
                taken, last = driver.section.run(take, at)
                at += taken
                if not taken:
                    driver.run(peer.unreserved(topic))
                elif peer.needs_turn:
                    self._see_off()
            if self._waits_for_disk:
                driver.run(peer.sync())
        except BaseException as error:
            meant = publish_error(error, topic, values)
            meant.add_note(f"{at} of {count} values were accepted")
            raise meant from None
        finally:
            if peer.release(call, topic):
                driver.wake()
        return last - count + 1, last

    def flush(self) -> None:
        """Send what is gathered now, without waiting for others to share its frame.

        With threads it waits as `publish` does, and where `fsync="always"` for the disk.

        Raises:
            LogFailedError: the local log could not be written.
            ClosedError: the publisher is closed.

        """
        driver, peer = self._driver, self._peer
        driver.check_caller()
        driver.section.run(peer.flush)
        if not self._waits:
            driver.wake()
        elif peer.holds_up or self._waits_for_disk:
            driver.run(peer.leave_all())

    def rotate_keys(self) -> None:
        """Begin to use another key for a sealed multicast: of udp:// with `security`.

        It is done at least once a day without that. All subscribers get the next key before it is
        used, or after 2 s; it returns at once, and no message is lost by it.

        Raises:
            ConfigError: nothing is sealed here; over TCP each connection has keys of its own.
            ClosedError: the publisher is closed.

        """
        self._driver.check_caller()
        self._driver.section.run(self._peer.rotate_keys)
        self._driver.wake()

    def stats(self) -> "PublisherStats":
        """Return the counters as they are now; also after `close`."""
        return self._read(self._peer.stats)
