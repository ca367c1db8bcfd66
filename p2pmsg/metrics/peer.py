"""The metrics client: what it gathers, sent by a publisher or to a plain StatsD server."""

import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from p2pmsg.config import PublisherConfig
from p2pmsg.errors import ClosedError, ConfigError, MessageError, P2PError, ReentrantCallError
from p2pmsg.metrics.deltas import (
    BYTES_MAX,
    Change,
    Deltas,
    Gathering,
    check_name,
    check_number,
    check_size,
    check_tags,
)
from p2pmsg.statsd import DELTAS_TOPIC, ListenEndpoint, make_key, parse_listen
from p2pmsg.toolkit import (
    INHERITED,
    Peer,
    PublisherPeer,
    PublisherSettings,
    Verb,
    check_process,
    checked,
    shown,
)
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
_PACKET_BYTES: Final = 1432
"""What fits into one Ethernet frame, as statsd's documentation advises."""
_OTHERS_NS: Final = 1_000_000_000
_IDLE_NS: Final = 1_000_000_000


class MetricsPeer(Peer):
    """Sends every interval what was gathered.

    Attributes:
        gathering: the engine.
        changes: its queue, to which a call that counts appends in one step.
        endpoint: where it is bound, or where it sends to.
        bytes_max: largest message of deltas, packed, in bytes.
        unusable: why nothing more is taken; None: it is.
        missing: how many messages no collector had when it was closed.

    """

    thread_name = "p2pmsg-metrics"

    def __init__(self, title: str, endpoint: str, bytes_max: int, interval_s: float) -> None:
        self.name = f"the metrics client {title!r}"
        self.endpoint, self.bytes_max = endpoint, bytes_max
        self.gathering = Gathering(bytes_max, self.following())
        self.changes = self.gathering.changes
        self.unusable: str | None = None
        self.missing = 0
        self._timeout_s = 0.0
        self._interval_ns = round(min(interval_s, _LONGEST_S) * 1e9) or 2**62
        self._due_ns = self.now_ns() + self._interval_ns

    @abstractmethod
    def send(self, deltas: Deltas, *, bounded: bool) -> None:
        """Send a message; with `bounded` it is refused where too much waits to be sent."""

    @abstractmethod
    def following(self) -> int:
        """Return the next message's sequence."""

    def turn(self, now_ns: int) -> None:
        """Send what was gathered, if it is time to."""
        if now_ns >= self._due_ns and self.unusable is None:
            self._due_ns = now_ns + self._interval_ns
            self.gathering.take()
            self._send_or_say()

    def fds(self) -> Collection[int]:
        """Return none: a server says nothing."""
        return ()

    def next_deadline_ns(self) -> int:
        """Return when something is to be sent."""
        idle_ns = self.now_ns() + _IDLE_NS
        return idle_ns if self.unusable is not None else min(idle_ns, self._due_ns)

    def resync(self) -> None:
        """Find out what was accepted of what was leaving."""
        self.gathering.settle(self.following())

    def shut(self) -> None:
        """Send the rest as far as there is space."""
        if self.unusable is None:
            self.unusable = "it is closed"
            self.gathering.take()
        if self.unusable != INHERITED:
            self._send_or_say()

    def abandon(self) -> None:
        """Be the closed copy of the parent's, in a forked child: the parent sends it."""
        self.unusable = INHERITED
        self.gathering.changes.clear()

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
        gathering, error = self.gathering, None
        gathering.add_up()
        while (leaving := gathering.begin()) is not None:
            failure: P2PError | None = None
            try:
                self.send(leaving, bounded=bounded)
            except P2PError as caught:
                error = failure = caught
            gathering.settle(self.following(), has_failed=failure is not None)
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
        return False

    # -------------------------------------------------------------------------- verbs

    def leave(self) -> Verb[None]:
        """Wait until what was sent has left."""
        yield from ()

    def wait_for_collectors(self, count: int, timeout_s: float | None) -> Verb[None]:
        """Wait until so many subscribe."""
        yield from ()

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
        yield from self._wait_for_all(timeout_s)
        if failure is not None:
            raise failure

    def _wait_for_all(self, timeout_s: float) -> Verb[None]:
        """Wait until a collector has everything; nobody confirms anything."""
        yield from ()


class PlainPeer(MetricsPeer):
    """Sends lines to a StatsD server; losses are not noticed.

    Raises:
        ConfigError: it is no endpoint, or of a host that is unknown.

    """

    def __init__(self, title: str, endpoint: str, interval_s: float) -> None:
        check_process()
        place = parse_listen(endpoint, "endpoint")
        self._begun = 0
        family, self._address = _find(endpoint, place)
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        super().__init__(title, str(place), BYTES_MAX, interval_s)

    def send(self, deltas: Deltas, *, bounded: bool) -> None:
        """Send them in as few packets as hold them."""
        self._begun += 1
        for packet in _packets(deltas.lines()):
            with suppress(OSError):  # a server that is away is no reason for a program to fail
                self._socket.sendto(packet, self._address)

    def following(self) -> int:
        """Return how many were begun: some packets may have left, and would count twice."""
        return self._begun

    def shut(self) -> None:
        """Send the rest, and close the socket."""
        super().shut()
        self._socket.close()

    def abandon(self) -> None:
        """Be the closed copy of the parent's."""
        super().abandon()
        self._socket.close()


def _find(text: str, place: ListenEndpoint) -> tuple[int, Any]:
    if place.path:
        return socket.AF_UNIX, place.path
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        raise ConfigError("endpoint", "of a host that is known", text) from error
    return found[0], found[4]


def _packets(lines: list[str]) -> Iterator[bytes]:
    packet = b""
    for line in lines:
        data = line.encode()
        if packet and len(packet) + len(data) + 1 > _PACKET_BYTES:
            yield packet
            packet = b""
        packet += b"\n" + data if packet else data
    if packet:
        yield packet


class ExactPeer(MetricsPeer):
    """Publishes deltas for collectors, which subscribe and request what was lost."""

    def __init__(self, settings: PublisherSettings, interval_s: float) -> None:
        check_process()
        self._publisher = PublisherPeer(settings)
        self._first = self.following()
        self._repaired, self._through_ns = -1, 0
        bytes_max = self._publisher.core.config.message_bytes_max
        super().__init__(settings.title, self._publisher.places, bytes_max, interval_s)

    def send(self, deltas: Deltas, *, bounded: bool) -> None:
        """Publish them."""
        message = deltas.message()
        self._publisher.publish(DELTAS_TOPIC, message, None, None, None, bounded=bounded)
        self._publisher.flush()

    def following(self) -> int:
        """Return the next sequence."""
        return self._publisher.core.accepted(DELTAS_TOPIC)

    def turn(self, now_ns: int) -> None:
        """Send what was gathered, if it is time to, and have the publisher take its turn."""
        super().turn(now_ns)
        self._publisher.turn(now_ns)

    def fds(self) -> Collection[int]:
        """Return the publisher's."""
        return self._publisher.fds()

    def next_deadline_ns(self) -> int:
        """Return when something is to be sent, or the publisher has something to do."""
        return min(super().next_deadline_ns(), self._publisher.next_deadline_ns())

    def resync(self) -> None:
        """Find out what was accepted of what was leaving."""
        self._publisher.resync()
        super().resync()

    def upkeep(self) -> Verb[None] | None:
        """Return the publisher's."""
        return self._publisher.upkeep()

    def shut(self) -> None:
        """Send the rest as far as there is space, and close; say what no collector has."""
        super().shut()
        self._publisher.shut()
        if self.unusable == INHERITED:
            return
        self.missing, why = self._find_missing()
        if self.missing:
            _log.warning(
                "metrics: %d of %d messages of deltas went nowhere: %s",
                self.missing, self.gathering.sent, why,
            )  # fmt: skip

    def abandon(self) -> None:
        """Be the closed copy of the parent's."""
        super().abandon()
        self._publisher.abandon()

    def holds_up(self) -> bool:
        """Whether a call that may wait is to do so in `leave`."""
        return self._publisher.holds_up or self._publisher.is_synced

    def leave(self) -> Verb[None]:
        """Wait until what was sent has left."""
        return self._publisher.leave_all()

    def wait_for_collectors(self, count: int, timeout_s: float | None) -> Verb[None]:
        """Wait until so many subscribe."""
        return self._publisher.wait_for_subscribers(count, timeout_s)

    def _wait_for_all(self, timeout_s: float) -> Verb[None]:
        return self._publisher.close(timeout_s, self._is_through)

    def _find_missing(self) -> tuple[int, str]:
        """Return how many deltas no collector has, and why."""
        core, following = self._publisher.core, self.following()
        stream = core.streams.get(DELTAS_TOPIC)
        if stream is None:
            return 0, ""
        # What the replay buffer no longer had when collectors asked for it.
        gone = sum(b - a for a, b in stream.unreached.overlap(self._first, following))
        if self._is_acknowledged():
            return gone, "evicted before a collector had them"
        why = "confirmed by no collector" if core.joined else "no collector was there"
        unacknowledged = following - max(self._first, stream.acknowledged)
        return gone + unacknowledged, f"{why} within {self._timeout_s:g} s"

    def _is_acknowledged(self) -> bool:
        """Whether a collector has everything, or none says what it has."""
        core, following = self._publisher.core, self.following()
        stream = core.streams.get(DELTAS_TOPIC)
        has_all = stream is None or stream.acknowledged >= following
        return following <= self._first or has_all or bool(core.requests.known.settlers())

    def _is_through(self) -> bool:
        """Whether a closing client may go: a collector has everything, and others are through.

        One that was killed, or hangs, never says so: others are waited for until no repair was
        sent for a second.
        """
        core, now_ns = self._publisher.core, self.now_ns()
        if not core.is_sent or not self._is_acknowledged():
            return False
        repaired = core.requests.frames_repaired
        if repaired != self._repaired:
            self._repaired, self._through_ns = repaired, now_ns + _OTHERS_NS
        return not core.requests.known.incomplete() or now_ns >= self._through_ns


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
        self._can_start_again = scheme not in _RELIABLE
        if scheme in _RELIABLE:
            config = config or PublisherConfig()
            settings = PublisherSettings(title, endpoint, None, config, log, security)
            self._make_peer: Callable[[], MetricsPeer] = partial(ExactPeer, settings, interval)
        elif scheme in ("udp", "unixgram"):
            if log is not None:
                raise ConfigError("log", "None with a plain StatsD server", log)
            if security is not None:
                raise ConfigError("security", "None with a plain StatsD server", security)
            self._make_peer = partial(PlainPeer, title, endpoint, interval)
        else:
            raise ConfigError("endpoint", "tcp://, ipc://, udp:// or unixgram://", endpoint)
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
