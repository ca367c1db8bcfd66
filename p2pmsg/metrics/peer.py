"""The metrics client: what it gathers, joined to a publisher or a plain StatsD server's socket."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from p2pmsg.config import PublisherConfig
from p2pmsg.driver.peer import Peer
from p2pmsg.driver.verbs import Verb
from p2pmsg.errors import ClosedError, ConfigError, MessageError, P2PError, ReentrantCallError
from p2pmsg.metrics.deltas import check_name, check_number, check_size, check_tags
from p2pmsg.metrics.gathering import Change, Gathering
from p2pmsg.metrics.sinks import Plain, Reliable
from p2pmsg.peers.opening import Settings
from p2pmsg.peers.publisher import PublisherPeer
from p2pmsg.statsd import make_key
from p2pmsg.toolkit import INHERITED, check_process, checked, shown
from p2pmsg.toolkit import check_name as check_publisher
from p2pmsg.toolkit import own_log as _log

if TYPE_CHECKING:
    from pathlib import Path

    from p2pmsg.log import LogConfig
    from p2pmsg.security import Security
    from p2pmsg.toolkit import Section

_RELIABLE: Final = ("tcp", "ipc", "inproc")
_ADD_UP_AT: Final = 1_000
"""Calls that are added up together: their changes wait in a queue until then, or until a flush."""
_KEYS_MAX: Final = 10_000
_LONGEST_S: Final = 1e9


class MetricsPeer(Peer):
    """Sends every interval what was gathered; all else is the publisher's.

    Attributes:
        gathering: the engine.
        changes: its queue, to which a call that counts appends in one step.
        endpoint: where it is bound, or where it sends to.
        bytes_max: largest message of deltas, packed, in bytes.
        unusable: why nothing more is taken; None: it is.
        missing: how many messages no collector had when it was closed.

    """

    thread_name = "p2pmsg-metrics"

    def __init__(self, title: str, make: Callable[[], Reliable | Plain], interval_s: float) -> None:
        check_process()
        self.name = f"the metrics client {title!r}"
        self.sink = make()
        self.endpoint, self.bytes_max = self.sink.endpoint, self.sink.bytes_max
        self.gathering = Gathering(self.bytes_max, self.sink.following())
        self.changes = self.gathering.changes
        self.unusable: str | None = None
        self.missing = 0
        self._timeout_s = 0.0
        self._interval_ns = round(min(interval_s, _LONGEST_S) * 1e9) or 2**62
        self._due_ns = self.now_ns() + self._interval_ns

    def turn(self, now_ns: int) -> None:
        """Send what was gathered, if it is time to, and have the publisher take its turn."""
        if now_ns >= self._due_ns and self.unusable is None:
            self._due_ns = now_ns + self._interval_ns
            self.gathering.take()
            self._send_or_say()
        self.sink.publisher.turn(now_ns)

    def fds(self) -> Collection[int]:
        """Return the publisher's."""
        return self.sink.publisher.fds()

    def next_deadline_ns(self) -> int:
        """Return when something is to be sent, or the publisher has something to do."""
        due_ns = self.sink.publisher.next_deadline_ns()
        return due_ns if self.unusable is not None else min(due_ns, self._due_ns)

    def resync(self) -> None:
        """Find out what was accepted of what was leaving."""
        self.sink.publisher.resync()
        self.gathering.settle(self.sink.following())

    def upkeep(self) -> Verb[None] | None:
        """Return the publisher's."""
        return self.sink.publisher.upkeep()

    def shut(self) -> None:
        """Send the rest as far as there is space, and close."""
        if self.unusable is None:
            self.unusable = "it is closed"
            self.gathering.take()
        if self.unusable != INHERITED:
            self._send_or_say()
        self.sink.publisher.shut()
        if self.unusable != INHERITED:
            self._count_missing()

    def abandon(self) -> None:
        """Be the closed copy of the parent's, in a forked child: the parent sends it."""
        self.unusable = INHERITED
        self.gathering.changes.clear()
        self.sink.publisher.abandon()

    # -------------------------------------------------------------------------- calls

    def add_up(self, *, bounded: bool) -> None:
        """Add up what was gathered; send it where it does not fit into one message."""
        self.gathering.take()
        if self.gathering.add_up():
            self._send(bounded=bounded)

    def flush(self, *, bounded: bool) -> None:
        """Send what was gathered."""
        if self.unusable == INHERITED:
            raise ClosedError("the metrics client", INHERITED)
        if self.unusable is None:
            self.gathering.take()
            self._send(bounded=bounded)

    def _send(self, *, bounded: bool) -> None:
        """Send all that was taken; what one message raises is raised when the others are sent."""
        gathering, sink = self.gathering, self.sink
        error: P2PError | None = None
        gathering.add_up()
        while (leaving := gathering.begin()) is not None:
            failure: P2PError | None = None
            try:
                sink.send(leaving, bounded=bounded)
            except P2PError as caught:
                error = failure = caught
            gathering.settle(sink.following(), has_failed=failure is not None)
            gathering.add_up()
        if error is not None:
            raise error

    def _send_or_say(self) -> None:
        try:
            self._send(bounded=True)
        except P2PError:
            _log.exception("metrics: deltas could not be sent")

    def undelivered(self) -> int:
        """Return how many messages were not sent, or reached no collector."""
        return self.gathering.lost + self.missing

    def sent(self) -> int:
        """Return how many messages were sent."""
        return self.gathering.sent

    def holds_up(self) -> bool:
        """Whether a call that may wait is to do so in `leave`."""
        return self.sink.holds_up()

    # -------------------------------------------------------------------------- verbs

    def leave(self) -> Verb[None]:
        """Wait until what was sent has left."""
        return self.sink.leave()

    def wait_for_collectors(self, count: int, timeout_s: float | None) -> Verb[None]:
        """Wait until so many subscribe."""
        return self.sink.wait_for_collectors(count, timeout_s)

    def close(self, timeout_s: float) -> Verb[None]:
        """Send the rest, and wait until a collector has everything."""
        failure: P2PError | None = None
        if self.unusable is None:
            self.unusable, self._timeout_s = "it is closed", timeout_s
            self.gathering.take()
            try:
                self._send(bounded=False)
            except P2PError as error:
                failure = error  # raised when the rest is done
        yield from self.sink.close(timeout_s)
        if failure is not None:
            raise failure

    def _count_missing(self) -> None:
        self.missing, why = self.sink.missing(self._timeout_s)
        if self.missing:
            _log.warning(
                "metrics: %d of %d messages of deltas went nowhere: %s",
                self.missing, self.gathering.sent, why,
            )  # fmt: skip


class ClientBase:
    """What the faces share: the calls that count, which never wait.

    A call appends its change to a queue, which takes one step: so a signal handler may count,
    wherever it came. What it counts within a flush leaves with the next one.
    """

    _patience_s: ClassVar[float | None] = None  # what `close_timeout` says
    _driver: Any
    _peer: MetricsPeer
    _section: "Section"

    if TYPE_CHECKING:

        def _open(self, make: Callable[[], Peer]) -> None: ...

    @checked()
    def __init__(
        self,
        endpoint: str,
        *,
        prefix: str = "",
        tags: Iterable[str] = (),
        interval: float = 0.1,
        name: str | None = None,
        config: PublisherConfig | None = None,
        log: "LogConfig | str | Path | None" = None,
        close_timeout: float = 5.0,
        security: "Security | None" = None,
    ) -> None:
        self._close_timeout = self._exit_s = close_timeout
        self._prefix = f"{check_name(prefix)}." if prefix else ""
        self._tags = check_tags(tags)
        self._keys: dict[tuple[str, tuple[str, ...]], str] = {}
        self._add_up_at = _ADD_UP_AT if interval else 1
        scheme = endpoint.partition(":")[0]
        title = check_publisher(name if name is not None else endpoint[:80])
        make: Callable[[], Reliable | Plain]
        if scheme in _RELIABLE:
            settings = Settings(
                title,
                endpoint,
                None,
                PublisherConfig() if config is None else config,
                log,
                security,
            )
            make = partial(_publish, settings)
        elif scheme in ("udp", "unixgram"):
            if log is not None:
                raise ConfigError("log", "None with a plain StatsD server", log)
            if security is not None:
                raise ConfigError("security", "None with a plain StatsD server", security)
            make = partial(Plain, endpoint)
        else:
            raise ConfigError("endpoint", "tcp://, ipc://, udp:// or unixgram://", endpoint)
        self._can_start_again = make.func is Plain
        self._make_peer = partial(MetricsPeer, title, make, interval)
        self._open(self._make_peer)

    def _on_open(self) -> None:
        self._section = self._driver.section
        self._changes, self._bytes_max = self._peer.changes, self._peer.bytes_max

    @property
    def endpoint(self) -> str:
        """Where it is bound, with the port that was picked for 0, or where it sends to."""
        return self._peer.endpoint

    @property
    def sent(self) -> int:
        """How many messages of deltas have been sent."""
        return int(self._section.read(self._peer.sent))

    @property
    def undelivered(self) -> int:
        """How many messages of deltas were not sent or, known after `close`, reached no collector.

        One message has the changes of one `interval`. Messages that a killed collector may have
        received, but did not confirm, count too.
        """
        return int(self._section.read(self._peer.undelivered))

    def increment(self, name: str, value: float = 1, *, tags: Iterable[str] = ()) -> None:
        """Add to a counter; a negative value subtracts.

        Args:
            name: of the metric, without the client's prefix. The other calls take it as well.
            value: how much; an int is added up exactly. Default 1.
            tags: of this metric, `key:value` or `key`, added to the client's. Default none.

        Raises:
            MessageError: the name, a tag or the value cannot be sent. `MessageTooLargeError`: they
                are larger than the publisher's `message_bytes_max`.
            ClosedError: the client is closed.

        """
        self._gather("c", self._key(name, tags), check_number("value", value))

    def gauge(
        self, name: str, value: float, *, delta: bool = False, tags: Iterable[str] = ()
    ) -> None:
        """Set a gauge to `value`, or with `delta` add `value`. Raises as `increment`."""
        kind = "g+" if delta else "g"
        self._gather(kind, self._key(name, tags), check_number("value", value))

    def timing(self, name: str, value_ms: float, *, tags: Iterable[str] = ()) -> None:
        """Add `value_ms`, in milliseconds, to a timer. Raises as `increment`."""
        self._gather("ms", self._key(name, tags), check_number("value", value_ms))

    def histogram(self, name: str, value: float, *, tags: Iterable[str] = ()) -> None:
        """Add `value`, of any unit, to a histogram. Raises as `increment`."""
        self._gather("h", self._key(name, tags), check_number("value", value))

    def distribution(self, name: str, value: float, *, tags: Iterable[str] = ()) -> None:
        """Add `value`, of any unit, to a distribution. Raises as `increment`."""
        self._gather("d", self._key(name, tags), check_number("value", value))

    def set_add(self, name: str, value: str | int, *, tags: Iterable[str] = ()) -> None:
        """Add `value` to a set, whose distinct values are counted.

        Raises:
            MessageError: as `increment`; or `value` is neither a str nor an int.
            ClosedError: the client is closed.

        """
        if not isinstance(value, str | int):
            raise MessageError("value", f"must be a text or an integer, not {value!r}")
        key, text = self._key(name, tags), str(value)
        if not text or not text.isprintable() or "|" in text:
            raise MessageError("value", f"must be a text without a bar, not {value!r}")
        check_size(key, text, self._bytes_max)
        self._gather("s", key, text)

    @contextmanager
    def timed(self, name: str, *, tags: Iterable[str] = ()) -> Iterator[None]:
        """Time a block or, as a decorator, a function, even if it raises."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.timing(name, (time.perf_counter() - began) * 1e3, tags=tags)

    def flush(self) -> None:
        """Send what was gathered.

        It waits for slow collectors with threads, and never in an event loop.

        Raises:
            MessageError, LogFailedError, SendQueueFullError: it could not be sent, and counts as
                `undelivered`.
            ReentrantCallError: a signal handler called it that came within a call of this client.
            ClosedError: the client belongs to the parent process.
            RuntimeError: it belongs to another event loop.

        """
        self._start_again()
        driver, peer = self._driver, self._peer
        driver.check_caller()
        self._section.run(partial(peer.flush, bounded=not driver.may_wait))
        driver.wake()
        if driver.may_wait and peer.holds_up():
            driver.run(peer.leave())

    def _gather(self, kind: str, key: str, value: float | str) -> None:
        change = kind, key, value
        changes = self._changes
        changes.append(change)
        if self._peer.unusable is not None:
            self._refuse(change)
        if len(changes) >= self._add_up_at:
            self._add_up()

    def _add_up(self) -> None:
        try:
            if self._add_up_at == 1:
                self.flush()
            else:
                self._section.run(partial(self._peer.add_up, bounded=not self._driver.may_wait))
        except ReentrantCallError:
            pass  # a signal handler calls: the next flush takes it

    def _refuse(self, change: Change) -> None:
        """Take a change out that came after the last message, and raise `ClosedError`."""
        unusable = self._peer.unusable or ""
        if self._start_again():
            self._changes.append(change)
            return
        with suppress(ValueError):  # it left just before
            self._changes.remove(change)
            raise ClosedError("the metrics client", unusable)

    def _start_again(self) -> bool:
        """In a forked child, let a client of a StatsD server start with nothing gathered."""
        again = self._can_start_again and self._peer.unusable == INHERITED and self._driver.may_wait
        if again:
            self._open(self._make_peer)
        return again

    def __repr__(self) -> str:
        return shown(self, lambda: self.endpoint, lambda: self._peer.unusable is not None)

    def _key(self, name: str, tags: Iterable[str]) -> str:
        given = tags if isinstance(tags, tuple) else check_tags(tags)
        try:
            key = self._keys.get((name, given))
        except TypeError:  # a list among them: the checks name it
            key = None
        if key is None:
            key = make_key(self._prefix + check_name(name), self._tags + check_tags(given))
            check_size(key, 0, self._bytes_max)
            if len(self._keys) < _KEYS_MAX:
                self._keys[name, given] = key
        return key


def _publish(settings: Settings) -> Reliable:
    return Reliable(PublisherPeer(settings))
