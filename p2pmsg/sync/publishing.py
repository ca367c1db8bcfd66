"""What a publisher does, with a thread or in an event loop: accept messages, and send them."""

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from p2pmsg.checks import checked
from p2pmsg.codec import EncHook
from p2pmsg.config import OnFull, PublisherConfig
from p2pmsg.driver.lifecycle import INHERITED, close_in_children
from p2pmsg.errors import ClosedError, LogFailedError, MessageError
from p2pmsg.publisher.batch import PACKING_ERRORS, OpenBatches, is_of_packing
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.opening import open_publisher
from p2pmsg.sync.sending import Outgoing
from p2pmsg.sync.serving import ServingPeer, ServingRounds
from p2pmsg.sync.settings import check_columns, check_name, publish_error, publisher_config
from transports import TURN

if TYPE_CHECKING:
    from pathlib import Path

    from p2pmsg.security.settings import Security
    from p2pmsg.stats import PublisherStats
    from recovery.log import LogConfig

_COUNT_MAX: Final = 65_536
_LAST_FRAMES: Final = 4
_NOT_YET: Final = -1
_PERHAPS: Final = -2
"""In place of a sequence, while a message is not in, or may be."""
_now_ns = time.monotonic_ns
_wall_ns = time.time_ns
R = TypeVar("R")


class PublishingPeer(ServingPeer):
    """A publisher; the subclass makes its rounds, and waits.

    Attributes:
        _rounds: answer requests, send heartbeats, flush.

    """

    _kind = "publisher"
    _core: PublisherCore
    _rounds: ServingRounds

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
        self._security = security
        self._config = publisher_config(
            config, replay_bytes, on_full, stall_timeout, exact_types, enc_hook
        )
        self._name = check_name(name if name is not None else str(endpoint)[:80])
        self._lock = self._make_lock()
        self._unusable: str | None = None
        self._open_by(partial(self._open, endpoint, recovery_endpoint, log))

    def _open(
        self,
        endpoint: str | Sequence[str],
        recovery_endpoint: str | None,
        log: "LogConfig | str | Path | None",
    ) -> None:
        self._core, self._sender, self._server, self._outgoing = open_publisher(
            self._name, endpoint, recovery_endpoint, self._config, log, self._security
        )
        self._batches = self._core.open_batches
        self._send = self._sender.send
        self._publish_alone: Callable[..., int] = self._core.publish_alone
        self._bulk = _Bulk(self._core, self._outgoing)
        kept = self._core.log
        self._is_synced = kept is not None and kept.syncs_first
        self._gathers = True  # whether what is gathered leaves by the clock
        self._fast_batches = self._batches
        if kept is not None and kept.keeps_batches:
            # What outlives the process cannot just be added to a batch in memory. A subclass with a
            # `publish` of its own goes the long way, and finds no batch.
            self._fast_batches = OpenBatches()
            if type(self).publish is PublishingPeer.publish:
                self.publish = self._publish_logged  # type: ignore[method-assign]
        close_in_children(self)

    @abstractmethod
    def _send_rest(self, is_done: Callable[[], bool] | None = None) -> None:
        """Send what has no space yet, or see to it that it is sent; until `is_done`."""

    @abstractmethod
    def _wait_for_disk(self) -> None:
        """Wait until all that was accepted is on the disk, where a call may wait."""

    def _check_caller(self) -> None:
        """Raise where the publisher must not be used from here."""

    @property
    def session(self) -> int:
        """The 64-bit id of this publisher's sequence space."""
        return self._core.session

    @property
    def config(self) -> PublisherConfig:
        """Its settings, with what was given by name."""
        return self._config

    # Written out, since each call saved is a tenth of it: see PublishLock. Whatever comes after
    # that (Ctrl-C too), a message is in or out by the setting of `end` and `next`, which is one
    # step, and repair() cuts off the rest.
    def publish(
        self,
        topic: str,
        value: Any,
        key: str | None = None,
        timestamp_ns: int | None = None,
        headers: dict[str, Any] | None = None,
    ) -> int:
        """Accept one message and return its sequence.

        With a log it is in there on return, as safe as `LogConfig.fsync` says. It is sent at
        once where the stream is idle, and shares a frame with others where messages follow one
        another closely, for at most `linger`. What is changed in `value` afterwards does not
        change the message.

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
        lock = self._lock
        me = lock.mark
        if not me._is_owned():
            me = lock.ident()
        if lock.owner is not None:
            return self._publish_locked(topic, value, key, timestamp_ns, headers)
        lock.owner, sequence, batch = me, _NOT_YET, None
        try:
            batches = self._fast_batches
            batch = batches.batch if topic is batches.topic else batches.get(topic)
            if batch is not None:
                buffer, encode_into = batch.buffer, batch.encode_into
                encode_into(value, buffer, -1)
                if key is not None or timestamp_ns is not None or headers is not None:
                    batch.add_columns(key, timestamp_ns, headers)
                if (size := len(buffer)) < batch.limit:
                    sequence = batch.next
                    batch.end, batch.next = size, sequence + 1
                    lock.owner = None
                    return sequence
                batch.repair()  # it fills the batch: the core looks at it closely
            else:
                now_ns, sequence = _now_ns(), _PERHAPS
                sequence = self._publish_alone(
                    topic, value, key, timestamp_ns, headers, now_ns, _wall_ns()
                )
                if sequence >= 0:
                    core, outbox = self._core, self._core.outbox
                    sent = self._send(outbox[0])
                    if sent:
                        outbox.popleft()
                    core.on_alone(topic, now_ns, _now_ns())
                    TURN.is_theirs = True
                    lock.owner = None
                    if not sent:
                        self._send_rest()
                    elif lock.wanted:  # who waits may run only while this thread sends
                        lock.give_way()
                    return sequence
        except BaseException as error:
            if lock.owner is me:  # else it was left, and another thread may be inside
                if batch is not None:  # should another signal come, what follows repairs it
                    batch.beyond, batch.limit = batch.beyond + batch.limit, 0
                try:
                    self._repair(topic)
                finally:
                    lock.owner = None
            if (refusal := _refusal(error, sequence, topic, value)) is not None:
                raise refusal from None
        lock.owner = None
        return self._publish_locked(topic, value, key, timestamp_ns, headers)

    def _publish_logged(
        self,
        topic: str,
        value: Any,
        key: str | None = None,
        timestamp_ns: int | None = None,
        headers: dict[str, Any] | None = None,
    ) -> int:
        """Do as `publish`, with messages gathered in the log's tail file; see `LoggedBatch`."""
        lock = self._lock
        me = lock.mark
        if not me._is_owned():
            me = lock.ident()
        if lock.owner is not None:
            return self._publish_locked(topic, value, key, timestamp_ns, headers)
        lock.owner = me
        sequence: int = _NOT_YET
        batch = None
        try:
            batches: Any = self._batches  # each is a LoggedBatch
            batch = batches.batch if topic is batches.topic else batches.get(topic)
            if batch is not None:
                packed, end, encode_into = batch.scratch, batch.end, batch.encode_into
                encode_into(value, packed)  # saying where, 0, would take a tenth of the call
                size = end + len(packed)
                if size < batch.limit and (
                    (key is None and timestamp_ns is None and headers is None)
                    or batch.add_columns(key, timestamp_ns, headers)
                ):
                    batch.memory[end:size] = packed
                    sequence = batch.next
                    batch.header[0] = size  # from here on the message outlives the process
                    batch.end, batch.next = size, sequence + 1
                    lock.owner = None
                    return sequence
                batch.repair()  # it fills the batch: the core looks at it closely
        except BaseException as error:
            if lock.owner is me:
                if batch is not None:
                    batch.beyond, batch.limit = batch.beyond + batch.limit, 0
                try:
                    self._repair(topic)
                finally:
                    lock.owner = None
            if (refusal := _refusal(error, sequence, topic, value)) is not None:
                raise refusal from None
            return self._publish_locked(topic, value, key, timestamp_ns, headers)
        lock.owner = None
        if batch is None:
            return PublishingPeer.publish(self, topic, value, key, timestamp_ns, headers)
        return self._publish_locked(topic, value, key, timestamp_ns, headers)

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
        at, last, bulk = 0, -1, self._bulk
        try:
            while at < count:
                taken, last, gone = self._under_lock(
                    bulk.take, topic, values, keys, timestamps_ns, at
                )
                at += taken
                if not gone or not taken:
                    self._send_rest()
                elif self._lock.wanted:
                    self._lock.give_way()
            if self._is_synced:
                self._wait_for_disk()
        except BaseException as error:
            meant = publish_error(error, topic, values)
            meant.add_note(f"{at} of {count} values were accepted")
            raise meant from None
        finally:
            if bulk.reserved:
                bulk.end(topic)
        return last - count + 1, last

    def flush(self) -> None:
        """Send what is gathered now, without waiting for others to share its frame.

        Raises:
            ClosedError: the publisher is closed.

        """
        if not self._under_lock(self._flush):
            self._send_rest(self._flushed)

    def rotate_keys(self) -> None:
        """Begin to use another key for a sealed multicast: of udp:// with `security`.

        It is done at least once a day without that. All subscribers get the next key before it is
        used, or after 2 s; it returns at once, and no message is lost by it.

        Raises:
            ConfigError: nothing is sealed here; over TCP each connection has keys of its own.
            ClosedError: the publisher is closed.

        """
        self._under_lock(self._rounds.rotate_keys)
        self._rounds.wake()

    def stats(self) -> "PublisherStats":
        """Return the counters as they are now; also after `close`."""
        from p2pmsg.sync.stats import publisher_stats

        sockets = self._sender, self._server
        return self._lock.read(
            publisher_stats, self._core, self._outgoing.guard, *sockets, self._undelivered
        )

    def _check_logged(self, failure: LogFailedError | None) -> None:
        unlogged = self._core.pending
        if unlogged:
            what = f"{unlogged} messages could not be written to the log, and were not sent"
            kept = self._core.log
            if kept is not None and kept.keeps_batches:
                what += "; they are in its tail file, and the next publisher on this log sends them"
            raise LogFailedError(what) from failure
        if failure is not None:
            raise failure

    def _publish_locked(
        self, topic: str, value: Any, key: Any, timestamp_ns: Any, headers: Any
    ) -> int:
        if self._unusable is not None:
            raise ClosedError("the publisher", self._unusable)
        self._check_caller()
        lock = self._lock
        lock.acquire()
        try:
            if self._unusable is not None:
                raise ClosedError("the publisher", self._unusable)
            core = self._core
            lock.favour()
            taken = not self._bulk.reserved or topic not in self._bulk.reserved
            gone = True
            if taken:
                self._outgoing.make_space()
                now_ns, inside_ns = _now_ns(), core.gathering.inside_ns
                sequence = core.publish(
                    topic, value, key, timestamp_ns, headers, now_ns=now_ns, wall_ns=_wall_ns()
                )
                if core.outbox or core.unsynced:
                    gone = self._send_now()
                made = gone and core.sealed_ns == now_ns
                core.gathering.on_call(inside_ns, now_ns, _now_ns(), made=made)
                if self._batches and self._gathers and not self._rounds.ticking:
                    self._rounds.tick()
        except BaseException as error:
            self._repair(topic)
            raise publish_error(error, topic, value) from None
        finally:
            lock.owner = lock.free  # written out: see PublishLock
            lock.unlock()
        if not gone or not taken:
            self._send_rest()
        if not taken:
            return self._publish_locked(topic, value, key, timestamp_ns, headers)
        return sequence

    def _send_more(self) -> bool:
        log = self._core.log
        broken = log is not None and log.broken is not None
        return self._unusable is not None or self._send_now() or broken

    def _send_now(self) -> bool:
        """Send what may go; what must be on the disk first is seen to by the driver."""
        if self._core.unsynced:
            self._rounds.wake()
        return self._outgoing.send()

    def _flush(self) -> bool:
        self._core.flush(now_ns=time.monotonic_ns())
        return self._flushed()

    def _flushed(self) -> bool:
        sent = self._send_more()
        log = self._core.log
        if log is not None and log.broken is not None:
            raise LogFailedError(log.broken)
        return sent and not self._core.unsynced

    def _begin_close(self) -> None:
        self._lock.run(self._refuse_more)

    def _refuse_more(self) -> None:
        self._unusable = "it is closed"
        self._core.begin_close(now_ns=time.monotonic_ns())

    def _close_log(self) -> None:
        if self._core.log is not None:
            self._core.log.close(keeps_tail=self._core.pending > 0)

    def _under_lock(self, call: Callable[..., R], *arguments: Any) -> R:
        """Call under the lock, if the publisher can be used."""
        self._check_caller()
        result: R = self._lock.run(self._if_usable, call, *arguments)
        return result

    def _if_usable(self, call: Callable[..., R], *arguments: Any) -> R:
        if self._unusable is not None:
            raise ClosedError("the publisher", self._unusable)
        return call(*arguments)

    def _repair(self, topic: Any) -> None:
        """Cut off what an exception left half done in a batch."""
        batch = self._batches.get(topic) if isinstance(topic, str) else None
        if batch is not None:
            batch.repair()

    def _forget(self) -> None:
        """In a forked child: the sockets and the thread are the parent's, perhaps the lock too."""
        self._unusable = self._why = INHERITED
        self._closed = True
        self._lock = PublishLock()
        self._core.closing = True
        # So that publish() goes by the lock, and looks at _unusable.
        self._batches = self._fast_batches = OpenBatches()


def _refusal(error: BaseException, sequence: int, topic: Any, value: Any) -> BaseException | None:
    """Return what to raise; None: packing failed, and the core is to look at the parts.

    A signal's handler may raise what looks alike at any time, and then the message may be in. Where
    it is packed alone, a failure to pack it is a `MessageError`.
    """
    if sequence >= 0 and isinstance(error, PACKING_ERRORS):
        return error
    may_be_in = sequence == _PERHAPS and not isinstance(error, MessageError)
    if sequence < 0 and not may_be_in and is_of_packing(error):
        return None
    return publish_error(error, topic, value)


class _Bulk:
    """Takes values by the frame, while others wait who publish to the same topic.

    Attributes:
        reserved: the topics that a call is not through with, and its thread. The lock is left while
            a call waits for space, and its sequences are to be one range all the same.

    """

    def __init__(self, core: PublisherCore, outgoing: Outgoing) -> None:
        self._core = core
        self._outgoing = outgoing
        self._frame_bytes = core.config.bulk_bytes
        self._counts: dict[str, int] = {}
        self.reserved: dict[str, int] = {}

    def take(
        self, topic: str, values: Any, keys: Any, timestamps_ns: Any, at: int
    ) -> tuple[int, int, bool]:
        """Accept a frame of `values` from `at` on: how many, the last sequence, whether it left.

        None, where the topic is reserved by another thread. It is called under the lock.
        """
        reserved, thread = self.reserved, threading.get_ident()
        if reserved and reserved.get(topic, thread) != thread:
            return 0, -1, False
        core = self._core
        self._outgoing.make_space()
        taken = core.publish_many(
            topic, values, keys, timestamps_ns, at,
            now_ns=_now_ns(), wall_ns=_wall_ns(),
            count=_share(len(values) - at, self._counts.get(topic, 64)),
        )  # fmt: skip
        if at + taken < len(values):
            reserved[topic] = thread
            core.hold(topic)
        elif reserved:
            reserved.pop(topic, None)
        last = core.replay.next(topic) - 1
        size = len(core.outbox[-1]) if core.outbox else self._frame_bytes
        self._counts[topic] = max(1, min(_COUNT_MAX, taken * self._frame_bytes // size))
        return taken, last, self._outgoing.send()

    def end(self, topic: str) -> None:
        """Let others publish to `topic`, where an exception ended the call."""
        if self.reserved.get(topic) == threading.get_ident():
            self.reserved.pop(topic, None)


def _share(left: int, count: int) -> int:
    """Return how many of the values that are left make the next frame, where `count` fill one.

    The last few frames share them evenly: a small one at the end would cost as much as a full one.
    """
    if left >= _LAST_FRAMES * count:
        return count
    return -(-left // max(1, round(left / count)))
