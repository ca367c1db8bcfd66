"""The fast path of a frame, and how a subscriber's messages are iterated over.

A thread that waits for one message at a time is woken with cold caches, and every function on the
way costs ten times what it does in a loop. All of `read` took 17 µs; that is more than ZeroMQ's I/O
thread waits before it goes to sleep, so that an answer had to wake it, for another 20.

A thread that takes frame after frame has cold caches, too, for each goes through all that it
decodes. So what is to be found out before waiting is not asked again while the next frame is there.
"""

import time
from collections.abc import Callable, Iterator
from itertools import chain, cycle, repeat, takewhile
from operator import attrgetter, call
from typing import Any, Final, Literal, Protocol

from p2pmsg.driver.lifecycle import is_inherited
from p2pmsg.errors import ClosedError, SessionEndedError
from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.conflation import ConflatedBatch, refold_ns
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.sync.subscriber_io import SubscriberIO

_now_ns: Final = time.monotonic_ns
_BATCHED_BYTES: Final = 4096
"""From this size on a frame likely has another one after it, so that it pays to look."""
_turns: Final = (attrgetter("_waiter"), attrgetter("_active"))
_is_open: Final = attrgetter("_open")


Find = Callable[[SubscriberCore, SubscriberIO, int | None], tuple[Stream, bytes] | None]


class Reader(Protocol):
    """A subscriber, as far as what reads for it needs to know it."""

    _core: SubscriberCore
    _driver: SubscriberIO
    _stream: Stream | None
    """Whose messages are being read; `_batch` they, `_values` what is left of their values."""
    _batch: MessageBatch | None
    _values: Any
    _active: Iterator[Message]
    """The messages that are there."""

    def _put_back(self, stream: Stream, batch: MessageBatch, left: int) -> None: ...


class WaitingReader(Reader, Protocol):
    """One whose threads wait: `_waiter` makes messages active, while `_open`."""

    _waiter: Iterator[Message]
    _open: bool

    def _advance(self, timeout: float | None) -> None: ...


def _follow(driver: SubscriberIO) -> tuple[Stream, bytes] | None:
    """Return the frame that is there already, where nothing else is to be done."""
    stream, receiver = driver.followed, driver.zmq_receiver
    if stream is None or receiver is None or driver.stopping:
        return None
    data = receiver.receive()
    return None if data is None else (stream, data)


def _wait(
    core: SubscriberCore, driver: SubscriberIO, deadline_ns: int | None
) -> tuple[Stream, bytes] | None:
    """Wait for a frame, if nothing else is to be done; return it and the last one's stream."""
    driver.followed = None
    stream, receiver = core.last_stream, driver.only_receiver()
    wait_ms = driver.wait_ms(deadline_ns)
    if stream is None or receiver is None or core.ready.entries:
        return None
    if wait_ms <= 0 or driver.stopping:
        return None
    if core.cursor is not None and core.cursor.newcomers:
        return None
    data = receiver.receive_wait(wait_ms)
    return None if data is None else (stream, data)


def receive_frame(
    source: Reader,
    deadline_ns: int | None,
    count_max: int,
    batched: bool,
    activate: bool = False,
    find: Find = _wait,
) -> Any:
    """Wait for a frame; return its messages, or `activate` them and return True.

    Returned is a `Message`, with `batched` a `MessageBatch`. None: what came, if anything did, was
    given to the core, and is not taken from there yet.

    Args:
        source: the subscriber.
        deadline_ns: until when to wait; None: without end.
        count_max: how many messages the frame may have.
        batched: whether one message is wanted as a batch, too.
        activate: whether the messages are to be the subscriber's active batch.
        find: what waits for a frame, or only looks.

    """
    core, driver = source._core, source._driver
    io_lock = driver.io_lock
    if driver.interrupted or core.ready.entries or not io_lock.acquire(blocking=False):
        return None
    taken: Message | MessageBatch | Literal[True] | None = None
    stream: Stream | None = None
    try:
        try:
            if driver.last_round_ns >= driver.late_ns:
                driver.give_way()
            found = _follow(driver) or find(core, driver, deadline_ns)
            if found is None:
                return None
            stream, data = found
            now_ns = driver.last_round_ns = _now_ns()
            with driver.lock:
                if not data.startswith(stream.prefix):
                    stream = core.stream_of(data) or stream
                if not activate:
                    taken = core.take_frame(stream, data, count_max, batched, now_ns)
                elif not source._values.__length_hint__():  # else another thread was quicker
                    source._batch = None  # two would not fit in the processor's cache
                    taken = core.take_frame(stream, data, count_max, batched, now_ns)
                    if taken is not None:
                        taken = _activate(source, stream, taken)
                if taken is None:
                    core.receive_frame(0, data, now_ns=now_ns)
            if taken is None or now_ns >= core.joiner.next_check_ns:
                driver.followed = None
                driver.do_commands()
            elif len(data) >= _BATCHED_BYTES:
                driver.followed = stream
        finally:
            io_lock.release()
        return taken
    except BaseException:
        driver.followed = None
        if stream is not None and isinstance(taken, Message | MessageBatch):
            core.ready.single = None
            with driver.lock:
                left = 1 if isinstance(taken, Message) else len(taken)
                core.ready.put_back(stream, taken, left)
        driver.interrupted = True  # Ctrl-C, perhaps in the core's work
        raise


def _activate(source: Reader, stream: Stream, taken: Message | MessageBatch) -> Literal[True]:
    batch: MessageBatch | None
    values: Any
    if isinstance(taken, Message):
        batch = None
        values = active = iter((taken,))
    else:
        batch = taken
        values = iter(batch.values)
        active = batch.iterate(values)
    # No call in between, so that Ctrl-C comes before it all or after it all.
    source._stream, source._batch, source._values, source._active = stream, batch, values, active
    return True


def waiter(source: WaitingReader) -> Iterator[Message]:
    """Return an iterator that waits until there are messages, and ends without one, each time."""

    def wait(_: Any) -> Message:
        try:
            source._advance(None)
        except (ClosedError, SessionEndedError) as error:
            if is_inherited(error):
                raise
            source._open = False
        raise StopIteration

    return map(wait, repeat(None))


def iterate(source: WaitingReader) -> Iterator[Message]:
    """Return an iterator over all messages, until the subscriber is closed or a session ends.

    A message takes 20 ns, where a `__next__` would take 100. The waiter and the messages that are
    there take turns. All but `wait` is C, so that an exception (a loss, Ctrl-C) can come from
    nowhere else, and from there the chain goes on the next time. If anything else raised, it would
    have ended and will not return.
    """
    turns = map(call, cycle(_turns), takewhile(_is_open, repeat(source)))
    return chain.from_iterable(turns)


class ConflatedIterator(Iterator[Message]):
    """Iterates over a conflated batch, and ends early where newer messages, or others, have come.

    What is left of the batch is put back then, and folded with them into another one, after the
    others had their turn.
    """

    __slots__ = ("_handed", "_inner", "_since_ns", "_source", "_stream", "_values")

    def __init__(
        self, source: Reader, stream: Stream, messages: Iterator[Message], values: Any
    ) -> None:
        self._source = source
        self._stream = stream
        self._values = values
        self._inner = messages
        self._handed = stream.receiver.handed
        self._since_ns = _now_ns()

    def __next__(self) -> Message:
        with self._source._driver.lock:
            if self._source._values is not self._values or self.renew():
                raise StopIteration
            return next(self._inner)

    def renew(self) -> bool:
        """Put back what is left, if that is out of date; the core's lock is held."""
        source, stream, batch = self._source, self._stream, self._source._batch
        is_newest = stream.receiver.handed == self._handed and not source._core.ready.entries
        if is_newest or not isinstance(batch, ConflatedBatch):
            return False
        left = source._values.__length_hint__()
        if not left or _now_ns() - self._since_ns < refold_ns(left):
            return False
        source._put_back(stream, batch, left)
        return True
