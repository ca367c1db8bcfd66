"""What a subscriber's application is reading: messages that were taken, and not handed out yet.

They leave by an iterator that is all C, in the step in which a call returns them or a loop gets
them. So an exception, or a cancellation, comes before that, and they are there still; or after it.
What is to be reported before the next messages leaves in the same way.
"""

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from itertools import chain, cycle, islice, repeat, takewhile
from operator import attrgetter, call, length_hint
from typing import Any, Final, Protocol, Self, TypeVar

from p2pmsg.driver.lifecycle import is_inherited
from p2pmsg.errors import ClosedError, SessionEndedError
from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.conflation import ConflatedBatch, batch_of
from p2pmsg.subscriber.sessions import Stream

R = TypeVar("R")
Report = Callable[[], object]
"""What reports something to the application, to be called outside of the section."""
NOTHING: Final[Iterator[Any]] = iter(())
_NO_VALUES: Final[Iterator[Any]] = iter([])
_RUN_MAX: Final = 128
"""How many messages are handed out between two looks at the clock, where they are handled fast."""
_RUN_NS: Final = 100_000
"""Where handling some takes longer, fewer are."""
_now_ns: Final = time.monotonic_ns


class Reading:
    """The messages that are there, or what is to be reported before the next ones.

    Attributes:
        stream: whose they are; None: there are none.
        batch: all of them that were taken; None: one alone, or they are all handed out.
        values: what is left of their values, which drives `messages`.
        messages: the messages.
        reports: what is to be reported, one at most; who takes it calls it.

    """

    __slots__ = ("_begun", "batch", "messages", "reports", "stream", "values")

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.batch: MessageBatch | None = None
        self.values: Any = _NO_VALUES
        self.messages: Iterator[Message] = NOTHING
        self.reports: Iterator[Report] = NOTHING
        self._begun: tuple[tuple[Any, ...] | None, Iterator[Any], int | None] = (
            None, NOTHING, None,
        )  # fmt: skip

    @property
    def left(self) -> int:
        """How many are left."""
        return length_hint(self.values)

    @property
    def is_reporting(self) -> bool:
        """Whether something is still to be reported."""
        return length_hint(self.reports) > 0

    def begin(
        self,
        taken: tuple[Any, ...] | None,
        stream: Stream,
        batch: MessageBatch | None,
        values: Any,
        messages: Iterator[Message],
    ) -> None:
        """Hand out these from now on."""
        self.stream, self.batch, self.values = stream, batch, values
        self._begun = taken, messages, None
        self.messages = messages  # last: from here on they are handed out

    def begin_report(
        self, taken: tuple[Any, ...] | None, report: Report, start: int | None = None
    ) -> None:
        """Report this next, once, also where that is interrupted, or raises.

        Args:
            taken: what was taken last, as the core has it.
            report: what to call.
            start: the sequence from which on `taken` is what is reported; None: it is not.

        """
        reports = iter((report,))
        self._begun = taken, reports, start
        self.reports = reports  # last, as in `begin`

    @property
    def taken(self) -> tuple[Any, ...] | None:
        """What was begun with last, as the core has it, where it is handed out by now."""
        taken, begun, _ = self._begun
        return taken if begun is self.messages or begun is self.reports else None

    def clear(self) -> None:
        """Forget those that were handed out: there are no others."""
        self.stream, self.batch, self.values = None, None, _NO_VALUES

    def end(self) -> None:
        """Hand out no more; what is left stays counted."""
        self.messages = NOTHING

    def abandon(self) -> None:
        """End iterators that were begun, in a forked child: they drive their messages by values."""
        for _ in self.values:
            pass
        self.clear()

    def following(self, stream: Stream) -> int:
        """Return the sequence after what was handed out, or reported, of a stream."""
        taken, begun, start = self._begun
        is_here = taken is not None and taken[0] is stream and begun is self.reports
        if start is not None and is_here and self.is_reporting:
            return start
        left = self.left if stream is self.stream else 0
        if left and isinstance(self.batch, ConflatedBatch):
            return self.batch.sequences[-left]  # it has holes
        return stream.position - left

    def last(self) -> tuple[Stream, int] | None:
        """Return the stream and the sequence of the message that was handed out last, if any."""
        total, left = 1 if self.batch is None else len(self.batch), self.left
        if self.stream is None or left >= total:
            return None
        if isinstance(self.batch, ConflatedBatch):
            return self.stream, self.batch.sequences[total - left - 1]
        return self.stream, self.stream.position - left - 1


class TakenBatch:
    """A batch on its way to the caller of `receive_many`; until it is there it can be put back."""

    __slots__ = ("_whole", "rest", "stream")

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self._whole: MessageBatch | None = None
        self.rest: list[Any] = []

    def take(self, reading: Reading) -> None:
        """Take all that is left, so that nobody else gets any of it."""
        self.stream, self._whole = reading.stream, reading.batch
        self.rest.extend(reading.values)
        reading.clear()

    def take_whole(self, reading: Reading) -> None:
        """Take all of what nobody else has seen: a batch's values are not copied."""
        self.stream, self._whole = reading.stream, reading.batch
        whole = self._whole
        is_whole = whole is not None and reading.left == len(whole)
        self.rest = whole.values if whole is not None and is_whole else [*reading.values]

    def clear(self) -> None:
        """Have nothing."""
        self.rest = []

    @property
    def whole(self) -> MessageBatch:
        """The batch that it is a part of."""
        return self._whole if self._whole is not None else batch_of(self.rest[0])

    def batch(self) -> MessageBatch:
        """Return it."""
        whole = self.whole
        return whole.part(len(whole) - len(self.rest), len(whole))


class WaitingSource(Protocol):
    """A subscriber whose threads wait."""

    _reading: Reading
    _waiter: Iterator[Message]
    _is_open: bool

    def _advance(self, timeout: float | None) -> None: ...


_turns: Final = (attrgetter("_waiter"), attrgetter("_reading.messages"))
_is_open: Final = attrgetter("_is_open")


def waiter(source: WaitingSource) -> Iterator[Message]:
    """Return an iterator that waits until there are messages, and ends without one, each time."""

    def wait(_: Any) -> Message:
        try:
            source._advance(None)
        except (ClosedError, SessionEndedError) as error:
            if is_inherited(error):
                raise
            source._is_open = False
        raise StopIteration

    return map(wait, repeat(None))


def iterate(source: WaitingSource) -> Iterator[Message]:
    """Return an iterator over all messages, until the subscriber is closed or a session ends.

    A message takes 20 ns, where a `__next__` would take 100. The waiter and the messages that are
    there take turns. All but `wait` is C, so that an exception (a loss, Ctrl-C) can come from
    nowhere else, and from there the chain goes on the next time. If anything else raised, it would
    have ended and will not return.
    """
    return chain.from_iterable(map(call, cycle(_turns), takewhile(_is_open, repeat(source))))


class Each:
    """Iterates by one call for each message, or batch, until the subscriber is closed."""

    def __init__(self, receive: Callable[[], Any]) -> None:
        self._receive = receive

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self._receive()
        except (ClosedError, SessionEndedError) as error:
            if is_inherited(error):
                raise
            raise StopIteration from None


class AsyncEach:
    """The same in an event loop."""

    def __init__(self, receive: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._receive = receive

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._receive()
        except (ClosedError, SessionEndedError) as error:
            if is_inherited(error):
                raise
            raise StopAsyncIteration from None


class LoopSource(Protocol):
    """A subscriber whose tasks wait."""

    _reading: Reading
    _driver: Any

    async def receive(self) -> Message:
        """Return the next message."""

    async def _advance(self, timeout: float | None) -> None: ...


class AsyncMessages:
    """Iterates by an async generator, which takes two thirds of the time of a coroutine for each.

    Such a generator ends with the first exception that leaves it, so it puts another one in its
    place then: `__anext__` is that of the present one. And it serves one task: while it waits,
    `__anext__` is a coroutine function for other tasks that iterate by the same object.
    """

    __slots__ = ("__anext__", "_each", "_source")

    def __init__(self, source: LoopSource) -> None:
        self._source = source
        self._each = AsyncEach(source.receive)
        self._renew()

    def __aiter__(self) -> Self:
        return self

    def _renew(self) -> None:
        self.__anext__ = self._iterate().__anext__

    async def _wait(self, wait: Coroutine[Any, Any, R]) -> R:
        present = self.__anext__
        self.__anext__ = self._each.__anext__
        try:
            return await wait
        finally:
            self.__anext__ = present

    async def _iterate(self) -> AsyncIterator[Message]:
        source, run = self._source, 1
        reading, driver = source._reading, source._driver
        try:
            while True:
                if not reading.left or reading.messages is NOTHING:
                    await self._wait(source._advance(None))
                values, messages = reading.values, reading.messages
                start_ns = _now_ns()
                while reading.messages is messages and length_hint(values):
                    for message in islice(messages, run):
                        yield message
                    now_ns = _now_ns()
                    run = min(_RUN_MAX, 2 * run) if now_ns - start_ns < _RUN_NS else 1
                    if driver.must_rest():
                        await self._wait(driver.rest())
                        now_ns = _now_ns()
                    start_ns = now_ns
        except (ClosedError, SessionEndedError) as error:
            if is_inherited(error):
                self._renew()
                raise
        except GeneratorExit:  # the loop ends, or nobody iterates any more
            raise
        except BaseException:
            self._renew()
            raise
