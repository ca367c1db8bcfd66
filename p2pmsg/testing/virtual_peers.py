"""Publishers, subscribers and relays on a network in memory, and what threads' names do there."""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol

from p2pmsg.checks import at_least, check, whole
from p2pmsg.driver.lifecycle import ClosesAtOnce
from p2pmsg.errors import ClosedError, ConfigError
from p2pmsg.message import Message, MessageBatch, T_co
from p2pmsg.peers.callbacks import check_callbacks, report_of
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.relay.core import RelayCore
from p2pmsg.stats import SubscriberStats
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.typed import InvalidValue, ValueTypes
from p2pmsg.testing.clock import ManualClock
from p2pmsg.testing.simulated_publisher import SimulatedPublisher
from p2pmsg.testing.simulated_relay import SimulatedRelay
from p2pmsg.testing.simulated_subscriber import SimulatedSubscriber

ENDLESS_S: Final = 60.0
"""How long is waited, by the network's clock, where a real peer would wait without end."""
CLOSE_S: Final = 5.0
"""How long a publisher waits for its subscribers when it is closed, by the network's clock."""


class Time(Protocol):
    """A network's time."""

    @property
    def clock(self) -> ManualClock:
        """The clock."""

    @property
    def now(self) -> float:
        """How long the network has run, in seconds."""

    def wait_until(self, is_so: Callable[[], bool], timeout: float = ENDLESS_S) -> bool:
        """Let time pass until `is_so()`, at most `timeout` seconds; return whether it is."""

    def stir(self) -> None:
        """Note that something is to happen, for tasks that wait."""


class PublisherPeer:
    """What a publisher of a `VirtualNetwork` does without waiting.

    Args:
        network: which made it.
        process: the simulated one.

    """

    def __init__(self, network: Time, process: SimulatedPublisher) -> None:
        self._network = network
        self._process = process
        self._closed = False

    @property
    def endpoint(self) -> str:
        """What subscribers connect to, for messages of the code under test."""
        return self._process.endpoint

    @property
    def session(self) -> int:
        """64-bit id of the sequence space."""
        return self._core.session

    def publish(
        self,
        topic: str,
        value: Any,
        key: str | None = None,
        timestamp_ns: int | None = None,
        headers: dict[str, Any] | None = None,
    ) -> int:
        """Accept one message and return its sequence; see `p2pmsg.Publisher.publish`.

        It travels when time passes. Where a subscriber's queue is full, time passes here, with the
        names of threads.

        Args:
            topic: UTF-8, 1 to 255 bytes, without a zero byte, not ending in `*`.
            value: any msgpack value.
            key: what it belongs to. Default None.
            timestamp_ns: when it happened, in ns since the epoch. Default: the network's time.
            headers: further fields by name. Default None.

        Raises:
            MessageError: it cannot be published as it is.
            ClosedError: the publisher is closed, or has crashed.

        """
        self._check_open()
        self._wait_for_space()
        sequence = self._process.accept(topic, value, key, timestamp_ns, headers)
        self._network.stir()
        return sequence

    def _wait_for_space(self) -> None:
        """Do nothing: in asyncio it is accepted all the same."""

    def publish_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[str | None] | None = None,
        timestamps_ns: Sequence[int] | None = None,
    ) -> tuple[int, int]:
        """Publish each of these; returns the first and the last sequence.

        Args:
            topic: as for `publish`.
            values: one a message, at least one.
            keys: one a message. Default: none.
            timestamps_ns: one a message, in ns since the epoch. Default: the network's time.

        Raises:
            ConfigError: there are no values, or not as many keys or timestamps.
            Others as `publish`.

        """
        count = len(values)
        check("values", values, count > 0, "at least one")
        for name, column in (("keys", keys), ("timestamps_ns", timestamps_ns)):
            check(name, column, column is None or len(column) == count, f"{count}, as the values")
        sequences = [
            self.publish(
                topic,
                values[at],
                None if keys is None else keys[at],
                None if timestamps_ns is None else timestamps_ns[at],
            )
            for at in range(count)
        ]
        return sequences[0], sequences[-1]

    def flush(self) -> None:
        """Do nothing: what is gathered travels when time passes."""

    def crash(self) -> None:
        """Die as by SIGKILL: what was not sent yet is gone, unless the network has `log=True`."""
        self._process.crash()
        self._network.stir()

    def restart(self) -> None:
        """Come back after `crash`: as a new session, or with a log in the same one."""
        self._process.start()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._process.name}{' closed' if self._closed else ''}>"

    @property
    def _core(self) -> PublisherCore:
        if self._closed:
            raise ClosedError("the publisher")
        if self._process.core is None:
            raise ClosedError("the publisher", "it has crashed")
        return self._process.core

    def _check_open(self) -> None:
        _ = self._core


class VirtualPublisher(PublisherPeer, ClosesAtOnce):
    """A publisher on a `VirtualNetwork`, used as `p2pmsg.Publisher` is."""

    def _wait_for_space(self) -> None:
        core = self._core
        if core.outbox:
            self._network.wait_until(lambda: not core.outbox)

    def wait_for_subscribers(self, count: int = 1, timeout: float | None = None) -> None:
        """Let time pass until `count` subscribers have confirmed that they receive.

        Args:
            count: how many. Default 1.
            timeout: in seconds of the network's clock. Default None: 60.0, then it fails.

        Raises:
            TimeoutError: they did not come in time.
            ClosedError: the publisher is closed, or has crashed.

        """
        _wait_for_joins(self._network, self._core, count, timeout)

    def close(self, timeout: float = CLOSE_S) -> None:
        """Send what is left, and let time pass until every subscriber has it.

        Args:
            timeout: how long at most, in seconds of the network's clock. Default 5.0.

        """
        if self._closed:
            return
        if self._process.core is not None:
            self._process.close()
            self._network.wait_until(lambda: self._process.is_complete, timeout)
            self._process.leave_for_good()
        self._closed = True


class SubscriberPeer(Generic[T_co]):
    """What a subscriber of a `VirtualNetwork` does without waiting.

    Args:
        network: which made it.
        process: the simulated one.
        policy: what to do about messages that are missing.
        types: what values are decoded into, and what to do about those that do not fit.
        commits_each: whether a message is committed when the next one is asked for.

    Raises:
        ConfigError: a callable would do nothing when it is called.

    """

    _awaits = False
    """Whether what callbacks return is awaited."""

    def __init__(
        self,
        network: Time,
        process: SimulatedSubscriber,
        policy: GapPolicy,
        types: ValueTypes,
        *,
        commits_each: bool,
    ) -> None:
        check_callbacks((types.on_invalid, *policy.callables), may_be_async=self._awaits)
        self._network = network
        self._process = process
        self._policy, self._types = policy, types
        self._commits_each = commits_each
        self._answer: Awaitable[Any] | None = None
        self._closed = False

    @property
    def connected(self) -> int:
        """How many publishers it has joined."""
        core = self._process.core
        return 0 if core is None else sum(peer.joined for peer in core.peers.values())

    def stats(self) -> SubscriberStats:
        """Return the ledger and the counters.

        Raises:
            ClosedError: the subscriber is closed.

        """
        core = self._process.core
        if core is None:
            raise ClosedError("the subscriber")
        cursor = self._process.cursor
        return core.stats(cursor=None if cursor is None else cursor.stats())

    def crash(self) -> None:
        """Die as by SIGKILL: what was received and not committed comes again, with a cursor."""
        self._process.crash()
        self._network.stir()

    def restart(self) -> None:
        """Come back after `crash`: at the cursor, or without one as a new subscriber."""
        self._process.revive()

    def _commit(self, message: Message | MessageBatch | None) -> None:
        self._check_open()
        cursor = self._process.cursor
        if cursor is None:
            raise ConfigError("cursor", "given where commit() is called", None)
        if message is None:
            self._process.commit()
            return
        last = message if isinstance(message, Message) else message[len(message) - 1]
        for stream in self._process.streams:
            is_its = (stream.peer.session, stream.topic) == (last.session, last.topic)
            is_its = is_its and not stream.retired
            if is_its and cursor.commit_until(stream, last.sequence + 1):
                return
        raise ConfigError("message", "one that this subscriber has returned", message)

    def _leave_network(self, *, commits: bool) -> None:
        """Close; `commits`: what was returned is processed, where that is committed by itself."""
        if commits and self._commits_each and self._process.core is not None:
            self._process.commit()
        self._closed = True
        self._process.leave_for_good()
        self._network.stir()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the subscriber")
        if self._process.core is None:
            raise ClosedError("the subscriber", "it has crashed")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._process.name}{' closed' if self._closed else ''}>"

    @property
    def _is_ready(self) -> bool:
        return self._process.has_ready

    def _take(self, count_max: int) -> MessageBatch[T_co] | None:
        """Return messages that are there, after reporting what was lost before them."""
        self._check_open()
        if self._commits_each:
            self._process.commit()
        while (taken := self._process.take(count_max)) is not None:
            stream, output = taken
            if isinstance(output, MessageBatch):
                return output
            if isinstance(output, InvalidValue):
                report = self._types.report_of(output.error)
            else:
                report = report_of(self._policy, stream, output)
            result = None if report is None else report()
            if self._awaits and inspect.isawaitable(result):
                self._answer = result
                return None
        return None


class VirtualSubscriber(SubscriberPeer[T_co], ClosesAtOnce):
    """A subscriber on a `VirtualNetwork`, used as `p2pmsg.Subscriber` is."""

    def receive(self, timeout: float | None = 0.0) -> Message[T_co]:
        """Return the next message.

        Args:
            timeout: let at most so many seconds of the network's clock pass until one comes.
                Default 0.0: one that is there. None: 60.0, where a real subscriber would wait
                without end.

        Raises:
            TimeoutError: none came in time.
            MessagesLostError: `on_gap="raise"`, and messages were lost.
            InvalidValueError: `on_invalid="raise"`, and a value does not fit its type.
            ClosedError: the subscriber is closed.

        """
        return self.receive_many(1, timeout)[0]

    def receive_many(
        self, count_max: int = 65_536, timeout: float | None = 0.0
    ) -> MessageBatch[T_co]:
        """Return the next messages of one stream, as many as are there.

        Args:
            count_max: how many at most. Default 65,536.
            timeout: as for `receive`, in seconds, for the first of them.

        Raises:
            ConfigError: `count_max` is not an int of at least 1.
            TimeoutError: none came in time.
            Others as `receive`.

        """
        whole("count_max", count_max, 1)
        limit = ENDLESS_S if timeout is None else timeout
        at_least("timeout", limit, 0)
        end_ns = self._network.clock.now_ns + round(limit * 1e9)
        while True:
            if (batch := self._take(count_max)) is not None:
                return batch
            left_s = max(0, end_ns - self._network.clock.now_ns) / 1e9
            if not self._network.wait_until(lambda: self._is_ready, left_s):
                now = f"at {self._network.now:.3f} s of the network's time"
                hint = "" if limit else "; advance() it, or give a timeout"
                raise TimeoutError(f"no message within {limit} s, {now}{hint}")

    def __iter__(self) -> Iterator[Message[T_co]]:
        """Iterate over the messages that are there; it ends with them, and no time passes."""
        while (batch := self._take(1)) is not None:
            yield batch[0]

    def commit(self, message: Message | MessageBatch | None = None) -> None:
        """Note durably that messages are processed, as `p2pmsg.Subscriber.commit`.

        Args:
            message: commit its stream up to and including it. Default None: everything that was
                returned so far.

        Raises:
            ConfigError: there is no cursor, or `message` is none that this subscriber returned.
            ClosedError: the subscriber is closed, or has crashed.

        """
        self._commit(message)

    def close(self) -> None:
        """Close; what was not received is gone, or comes to the next one with the cursor."""
        if not self._closed:
            self._leave_network(commits=False)

    def _leave(self, error: BaseException | None) -> None:
        if not self._closed:
            self._leave_network(commits=error is None)


class VirtualRelay(ClosesAtOnce):
    """A relay on a `VirtualNetwork`: give it to `subscriber` in place of a publisher.

    Args:
        network: which made it.
        process: the simulated one.

    """

    def __init__(self, network: Time, process: SimulatedRelay) -> None:
        self._network = network
        self._process = process

    @property
    def endpoint(self) -> str:
        """What subscribers connect to, for messages of the code under test."""
        return self._process.endpoint

    @property
    def connected(self) -> int:
        """How many sessions of publishers it has joined."""
        core = self._process.core
        return 0 if core is None else sum(peer.joined for peer in core.peers.values())

    def wait_for_subscribers(self, count: int = 1, timeout: float | None = None) -> None:
        """Let time pass until `count` subscribers have confirmed that they receive.

        Args:
            count: how many. Default 1.
            timeout: in seconds of the network's clock. Default None: 60.0, then it fails.

        Raises:
            TimeoutError: they did not come in time.
            ClosedError: the relay is closed, or has crashed.

        """
        relay = self._process.relay
        if relay is None:
            raise ClosedError("the relay", "it is closed, or has crashed")
        _wait_for_joins(self._network, relay, count, timeout)

    def crash(self) -> None:
        """Die as by SIGKILL: without a log all that it had is gone."""
        self._process.crash()

    def restart(self) -> None:
        """Come back after `crash`."""
        self._process.revive()

    def close(self) -> None:
        """Close at once; subscribers have only what came to them so far."""
        self._process.leave_for_good()

    def __repr__(self) -> str:
        return f"<VirtualRelay {self._process.name}>"


def _wait_for_joins(
    network: Time, core: PublisherCore | RelayCore, count: int, timeout: float | None
) -> None:
    limit = ENDLESS_S if timeout is None else timeout
    if not network.wait_until(lambda: core.joined >= count, limit):
        raise TimeoutError(f"{core.joined} of {count} subscribers came within {limit} s")
