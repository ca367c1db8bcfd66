"""Where events come from: subscribers, pullers, responders, timers."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Hashable, Iterable
from contextlib import AsyncExitStack
from time import monotonic_ns
from typing import Any, Final

from p2pmsg.aio import Puller, Responder, Subscriber
from p2pmsg.app.events import Event, Request
from p2pmsg.app.handler import Handler, Runtime
from p2pmsg.app.order import NO_KEY, WINDOW_MAX, Entry, InOrder, KeyQueue
from p2pmsg.errors import InvalidValueError, SecurityError, SessionEndedError
from p2pmsg.message import Message
from p2pmsg.queue import Job, acknowledge
from p2pmsg.requests import EXPIRED, LEFT, is_wanted
from p2pmsg.toolkit import GapPolicy, check, check_topic, here, whole
from p2pmsg.toolkit import own_log as _log

_SLICE_NS: Final = 2_000_000
_SLICE_MIN_NS: Final = 100_000
"""How long handlers that wait for nothing go on, all tasks together, until others have a turn."""
_REPLACEABLE_MAX: Final = 1000
"""How many newest values may wait for their keys, all keys together."""
_REQUESTS_WAITING_MAX: Final = 1000
_CANCELLED_S: Final = 1.0
"""How long a request's handler that was cancelled may still take."""
KeyOf = Callable[[Message], Hashable]
Options = dict[str, Any]
_Item = tuple[Message, Entry | None, Exception | None]


class Source(ABC):
    """Gets events and has them handled.

    Attributes:
        handlers: whose events these are.
        reader: the task that gets events; cancelled when the app stops.
        tasks: those that handle them; waited for when the app stops.

    """

    def __init__(self, *handlers: Handler) -> None:
        self.handlers = [*handlers]
        self.reader: asyncio.Task[None] | None = None
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def keeps_running(self) -> bool:
        """Whether the app runs because of it: there may be events."""
        return self.reader is None or not self.reader.done()

    @abstractmethod
    async def open(self, run: Runtime, stack: AsyncExitStack) -> None:
        """Make the peer, which `stack` closes, and the tasks."""

    def stop(self) -> None:
        """Get no more events; what has not begun is left, unless commits wait for it."""
        if self.reader is not None:
            self.reader.cancel()

    def begin_no_more(self) -> None:  # noqa: B027 - most begin nothing after `stop`
        """Leave what has not begun, although commits wait for it."""

    async def finish(self) -> None:  # noqa: B027 - most have nothing to do
        """Do what is to be done after the last event."""


class Workers:
    """Some tasks, each of which handles one item after the other.

    Args:
        run: of the app; while that stops, nothing is begun before `stop` is called.
        count: how many tasks.
        waiting_max: how many items may wait for a task.
        handle: what they do.
        conflates: whether more is read while items wait that would be replaced by newer ones, so
            that these are new when their turn comes.

    Attributes:
        tasks: the tasks; each ends when the app stops and nothing waits.
        stopped: whether `stop` was called.

    """

    def __init__(
        self,
        run: Runtime,
        count: int,
        waiting_max: int,
        handle: Callable[[Any], Coroutine[Any, Any, None]],
        *,
        conflates: bool = False,
    ) -> None:
        self._run = run
        self._conflates = conflates
        self._handle = handle
        self._slice_ns = max(_SLICE_NS // count, _SLICE_MIN_NS)
        self._since_ns = monotonic_ns()
        self._queue: KeyQueue[Any] = KeyQueue()
        self._held = 0
        self._held_max = count + waiting_max
        self._low = self._held_max - max(1, waiting_max // 2)
        self._idle: list[asyncio.Future[None]] = []
        self.stopped = False
        self._has_space, self._is_empty = asyncio.Event(), asyncio.Event()
        self.tasks = [asyncio.create_task(self._work()) for _ in range(count)]

    async def space(self) -> int:
        """Wait until there is space; return for how many items."""
        if self._conflates:
            await asyncio.sleep(0)  # free tasks take what was read
        while (space := self._space()) <= 0:
            self._has_space.clear()
            await self._has_space.wait()
        return space

    def _space(self) -> int:
        replaceable = self._queue.replaceable
        space = self._held_max - self._held + replaceable
        if not replaceable:
            return space
        if replaceable >= _REPLACEABLE_MAX:
            return 0
        return space or 1  # one is read ahead, unless it replaces another

    async def drained(self) -> None:
        """Wait until all items are done."""
        while self._held:
            self._is_empty.clear()
            await self._is_empty.wait()

    def put(
        self, item: Any, key: Hashable = NO_KEY, newest_of: tuple[Hashable, ...] | None = None
    ) -> Any:
        """Add an item; with a key it waits for the earlier ones of that key.

        It replaces one that waits for its key and has the same `newest_of`, which is returned.
        """
        replaced = self._queue.put(item, key, newest_of)
        if replaced is None:
            self._held += 1
            self._wake_one()
        return replaced

    def stop(self, *, leave: bool = True) -> int:
        """End with what has begun, or with all that waits; return how many items are left."""
        self.stopped = True
        left = self._queue.clear() if leave else 0
        self._held -= left
        self._wake_all()
        return left

    async def _work(self) -> None:
        while True:
            is_held_up = self._run.stopping and not self.stopped
            taken = None if is_held_up else self._queue.take()
            if taken is None:
                if self.stopped and not len(self._queue):
                    self._wake_all()  # others may wait for a key
                    return
                future = asyncio.get_running_loop().create_future()
                self._idle.append(future)
                await future
                self._since_ns = monotonic_ns()
                continue
            key, item = taken
            try:
                await self._handle(item)
            finally:
                self._queue.done(key)
                self._held -= 1
                if self._held <= self._low or self._conflates:
                    self._has_space.set()
                if not self._held:
                    self._is_empty.set()
            if monotonic_ns() - self._since_ns > self._slice_ns:  # others have their turn
                await asyncio.sleep(0)
                self._since_ns = monotonic_ns()

    def _wake_all(self) -> None:
        while self._idle:
            self._wake_one()

    def _wake_one(self) -> None:
        while self._idle:
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)
                return


class _PeerSource(Source):
    """Events of one peer that connects, for one handler."""

    def __init__(
        self, handler: Handler, endpoints: Any, options: Options, concurrency: int
    ) -> None:
        super().__init__(handler)
        self._handler = handler
        self._endpoints, self._options, self._concurrency = endpoints, options, concurrency


class SubscriberSource(_PeerSource):
    """Messages of one subscriber.

    Args:
        handler: for the messages.
        endpoints: as for `Subscriber`.
        options: further arguments of `Subscriber`.
        concurrency: how many messages are handled at once.
        key: what messages have in common that are handled one after the other; None: nothing.
        prefetch: how many messages may be read and wait.

    """

    def __init__(
        self,
        handler: Handler,
        endpoints: Any,
        options: Options,
        concurrency: int,
        key: KeyOf | None,
        prefetch: int,
    ) -> None:
        super().__init__(handler, endpoints, options, concurrency)
        self._key, self._prefetch = key, prefetch
        self._order: InOrder | None = None
        self._gaps = GapPolicy(options.get("on_gap", "wait"))
        self._conflates = key is not None and self._gaps.any_conflates

    async def open(self, run: Runtime, stack: AsyncExitStack) -> None:
        """Make the subscriber and the tasks."""
        self._run = run
        options: Options = {"security": run.security, **self._options}
        kind = self._handler.value_type
        if kind is not None and options.keys().isdisjoint(("type", "types")):
            options = {**options, "type": kind}
        self._subscriber = await stack.enter_async_context(Subscriber(self._endpoints, **options))
        self._workers = Workers(
            run, self._concurrency, self._prefetch, self._handle, conflates=self._conflates
        )
        self._committer: asyncio.Task[None] | None = None
        self._due, self._moved, self._order = asyncio.Event(), asyncio.Event(), None
        if self._options.get("cursor") is not None:
            self._order = InOrder(self._advanced)
            self._committer = asyncio.create_task(self._commit())
            self._committer.add_done_callback(lambda task: _fail_of(task, run))
        self.tasks = self._workers.tasks
        self.reader = asyncio.create_task(self._read())

    def stop(self) -> None:
        """Read no more, and leave what has not begun.

        With a cursor, what waits for its key is handled: commits of later messages wait for it.
        """
        super().stop()
        is_needed = self._key is not None and self._order is not None
        self._handler.left += self._workers.stop(leave=not is_needed)

    def begin_no_more(self) -> None:
        """Leave what has not begun, although commits wait for it."""
        left = self._workers.stop()
        self._handler.left += left
        if left:
            _log.warning(
                "%s: %d were not begun in time, since the app stops; messages after them, although "
                "they are done, come again",
                self._handler.name, left,
            )  # fmt: skip

    async def finish(self) -> None:
        """Commit what is done."""
        if self._committer is not None:
            self._committer.cancel()
            await asyncio.wait([self._committer])
            await self._commit_due()

    async def _read(self) -> None:
        order = self._order
        while True:
            space = await self._workers.space()
            if order is not None:
                while order.held >= WINDOW_MAX:
                    self._moved.clear()
                    await self._moved.wait()
                space = min(space, WINDOW_MAX - order.held)
            invalid: InvalidValueError | None = None
            batch: Iterable[Message]
            try:
                if space > 1:
                    batch = await self._subscriber.receive_many(space)
                else:  # parts of one message cost as much as there are in the batch
                    batch = [await self._subscriber.receive()]
            except InvalidValueError as error:
                batch, invalid = [error.item], error
            except SecurityError:  # it was logged, and is tried again
                continue
            except SessionEndedError:  # on_end="stop"
                await self._workers.drained()
                return
            for message in batch:
                self._put(message, invalid)

    def _put(self, message: Message, error: Exception | None) -> None:
        handler, order = self._handler, self._order
        handler.received += 1
        key: Hashable = NO_KEY
        if self._key is not None and error is None:
            try:
                key = self._key(message)
                hash(key)
            except Exception as raised:
                key, error = NO_KEY, raised
        entry = None if order is None else order.add(message)
        newest_of = None
        if self._conflates and self._gaps.conflates(message.topic):
            newest_of = message.session, message.topic, message.key
        replaced = self._workers.put((message, entry, error), key, newest_of)
        if replaced is not None:
            handler.conflated += 1
            if order is not None:
                order.done(replaced[1])

    async def _handle(self, item: _Item) -> None:
        message, entry, error = item
        handler = self._handler
        event = Event("message", handler.name, message.value, message=message)
        order = self._order
        is_left = True
        try:
            is_left = await handler.handle(event, self._run, error) is LEFT
        finally:
            if order is not None and entry is not None:
                if not is_left:
                    order.done(entry)
                elif self._workers.stopped:  # what comes after it could not be committed
                    handler.left += self._workers.stop()

    def _advanced(self) -> None:
        self._due.set()
        self._moved.set()

    async def _commit(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self._commit_due()

    async def _commit_due(self) -> None:
        order = self._order
        while order is not None and order.due:
            stream = next(iter(order.due))
            message = order.due.pop(stream)
            try:
                await self._subscriber.commit(message)
            except BaseException:
                order.due.setdefault(stream, message)
                raise


class WorkerSource(_PeerSource):
    """Jobs of one puller.

    Args:
        handler: for the jobs.
        endpoints: as for `Puller`.
        options: further arguments of `Puller`.
        concurrency: how many jobs are handled at once.

    """

    async def open(self, run: Runtime, stack: AsyncExitStack) -> None:
        """Make the puller and the tasks."""
        self._run = run
        options: Options = {"security": run.security, **self._options}
        self._puller = await stack.enter_async_context(Puller(self._endpoints, **options))
        self._workers = Workers(run, self._concurrency, 0, self._handle)
        self.tasks = self._workers.tasks
        self.reader = asyncio.create_task(self._read())

    def stop(self) -> None:
        """Take no more jobs."""
        super().stop()
        self._handler.left += self._workers.stop()

    async def _read(self) -> None:
        while True:
            await self._workers.space()
            try:
                job = await self._puller.receive()
            except SecurityError:  # it was logged, and is tried again
                continue
            self._handler.received += 1
            self._workers.put(job)

    async def _handle(self, job: Job) -> None:
        handler = self._handler
        event = Event("job", handler.name, job.value, job=job, attempt=job.delivery_count)
        try:
            result = await handler.handle(event, self._run)
        except asyncio.CancelledError:
            job.reject("the app stopped while it was handled", 0.0)
            raise
        if result is LEFT:
            job.reject("the app stops", 0.0)
        else:
            acknowledge(job)


class _Calls:
    """Calls of one topic's handler: some at once, and further ones wait.

    Args:
        count: how many at once.
        waiting_max: how many may wait.

    Attributes:
        waiting: the tasks that wait.

    """

    def __init__(self, count: int, waiting_max: int) -> None:
        self._free = asyncio.Semaphore(count)
        self._waiting_max = waiting_max
        self.waiting: set[asyncio.Task[Any] | None] = set()

    @property
    def is_full(self) -> bool:
        """Whether no further one may wait."""
        return self._free.locked() and len(self.waiting) >= self._waiting_max

    async def begin(self) -> None:
        """Wait for the turn of the current task, which then calls `end`."""
        task = asyncio.current_task()
        self.waiting.add(task)
        try:
            await self._free.acquire()
        finally:
            self.waiting.discard(task)

    def end(self) -> None:
        """Let the next one begin."""
        self._free.release()


class ResponderSource(Source):
    """Requests of one responder, for one handler a topic.

    Args:
        endpoint: where to bind.

    Attributes:
        options: further arguments of `Responder`.

    """

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.options: Options = {}
        self._answers: set[asyncio.Task[Any] | None] = set()
        self._endpoint = endpoint
        self._topics: dict[str, tuple[Handler, int]] = {}

    def add(self, topic: str, handler: Handler, concurrency: int, options: Options) -> None:
        """Add the handler of a topic; `ConfigError` where another one has it."""
        check_topic(topic)
        check("topic", topic, topic not in self._topics, "without a handler at this endpoint")
        for name, value in options.items():
            known = self.options.setdefault(name, value)
            check(name, value, known == value, f"{known!r} for all topics of this endpoint")
        self._topics[topic] = handler, concurrency
        self.handlers.append(handler)

    async def open(self, run: Runtime, stack: AsyncExitStack) -> None:
        """Make the responder."""
        self.tasks = []
        options: Options = {"security": run.security, **self.options}
        waiting_max = options.setdefault("pending_max", _REQUESTS_WAITING_MAX)
        whole("pending_max", waiting_max, 1)
        self._calls = [_Calls(count, waiting_max) for _, count in self._topics.values()]
        answers = {
            topic: self._answer_of(topic, handler, calls, run)
            for (topic, (handler, _)), calls in zip(self._topics.items(), self._calls, strict=True)
        }
        # Requests that wait are tasks, too: those of one topic take no place of another's.
        tasks_max = sum(count + waiting_max for _, count in self._topics.values())
        made = Responder(self._endpoint, answers, tasks_max=tasks_max, **options)
        self._responder = await stack.enter_async_context(made)

    def stop(self) -> None:
        """Take no more requests; those that came are answered."""
        self.tasks = [asyncio.create_task(self._responder.close())]

    def begin_no_more(self) -> None:
        """Leave requests that wait to be asked of another responder."""
        for calls in self._calls:
            for task in calls.waiting:
                if task is not None:
                    task.cancel()

    async def finish(self) -> None:
        """Have requests that were cancelled end, so that they are counted."""
        answers = [task for task in self._answers if task is not None]
        if answers:
            await asyncio.wait(answers, timeout=_CANCELLED_S)

    def _answer_of(
        self, topic: str, handler: Handler, calls: _Calls, run: Runtime
    ) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        async def answer(value: Any) -> Any:
            if calls.is_full:
                handler.refused += 1
                return LEFT
            handler.received += 1
            task = asyncio.current_task()
            self._answers.add(task)
            has_begun = False
            try:
                await calls.begin()
                has_begun = True
                if not is_wanted():  # it may have waited for its turn
                    handler.left += 1
                    return EXPIRED
                request = Request(topic, value)
                event = Event("request", handler.name, value, request=request)
                return await handler.handle(event, run)
            finally:
                self._answers.discard(task)
                if has_begun:
                    calls.end()
                else:
                    handler.left += 1

        return answer


class TimerSource(Source):
    """Ticks, which alone do not keep an app running whose feeds have ended.

    Args:
        handler: for the ticks.
        seconds: from one to the next.
        at_start: whether the first one comes at once.

    """

    def __init__(self, handler: Handler, seconds: float, *, at_start: bool) -> None:
        super().__init__(handler)
        self._handler = handler
        self._seconds, self._at_start = seconds, at_start

    @property
    def keeps_running(self) -> bool:
        """Not where other sources have ended."""
        return False

    async def open(self, run: Runtime, stack: AsyncExitStack) -> None:
        """Make the task."""
        self.tasks = [asyncio.create_task(self._tick(run))]

    async def _tick(self, run: Runtime) -> None:
        now_ns = here().now_ns
        due = now_ns() / 1e9 + (0.0 if self._at_start else self._seconds)
        while True:
            await run.pause(due - now_ns() / 1e9)
            if run.stopping:
                return
            self._handler.received += 1
            await self._handler.handle(Event("timer", self._handler.name), run)
            late = max(0.0, now_ns() / 1e9 - due)  # ticks that were missed are left out
            due += self._seconds * (late // self._seconds + 1)


def _fail_of(task: "asyncio.Task[None]", run: Runtime) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        run.fail(error)
