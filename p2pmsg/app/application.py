"""`App`: handlers by decorators."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from p2pmsg.aio import Puller, Responder, Subscriber
from p2pmsg.app.handler import Handler, HandlerStats
from p2pmsg.app.parameters import name_of, parameters_of
from p2pmsg.app.policy import OnError
from p2pmsg.app.running import Parts, Run
from p2pmsg.app.sources import (
    KeyOf,
    ResponderSource,
    Source,
    SubscriberSource,
    TimerSource,
    WorkerSource,
)
from p2pmsg.app.wakeup import woken_by_signals
from p2pmsg.errors import ClosedError, ConfigError
from p2pmsg.toolkit import (
    GapPolicy,
    StopSignals,
    at_least,
    check,
    check_endpoints,
    check_topics,
    checked,
    parse_endpoint,
    shown,
    whole,
)

if TYPE_CHECKING:
    from p2pmsg.security import Security

F = TypeVar("F", bound=Callable[..., Any])
_OWN: Final = ("commit", "commit_interval")
"""Arguments of a subscriber that are the app's."""
_PREFETCH: Final = 64
_CONCURRENCY_MAX: Final = 10_000
"""Each makes a task, of some kilobytes, when the app starts."""
_ENDING_S: Final = 1.0
"""How long what is left in the event loop may take to end."""


class App:
    """Functions that are called for messages, jobs, requests and ticks.

    ::

        app = p2pmsg.App()

        @app.subscriber("tcp://127.0.0.1:5556", topics=["trades"], cursor="trades.cursor")
        async def on_trade(trade: Trade, message: p2pmsg.Message) -> None:
            await book.add(trade, message.sequence)

        app.run()

    A handler's first parameter gets the value, decoded into the type of its annotation.
    Parameters named or annotated as `message: Message` (`job: Job`, `request: Request`),
    `event: Event` and `app: App` get these; `message: Message[Trade]` and `job: Job[Trade]` say
    the type of the value, too. Handlers may be `async def`, or plain functions, which
    run in threads.

    At SIGTERM or Ctrl-C the app gets no more events, lets the handlers that run finish, commits,
    and ends. A second Ctrl-C cancels them.

    Args:
        name: what it is called, for people. Default: none.
        stop_timeout: how long handlers may take to end after the app is to stop, in seconds;
            then they are cancelled, and reported by name. Default 10.0.
        threads: how many plain functions run at once, in all. Default 16.
        security: keys for the connections of all handlers that have no `security` of their own.
            Default None: open. `p2pmsg run --security` sets it.

    Raises:
        ConfigError: an argument is out of its limits.

    Attributes:
        name: what it is called.
        stop_timeout: as given, in seconds.
        security: as given; it may be set until the app runs.
        state: for whatever handlers and hooks share, such as a connection.

    """

    @checked(threads=1)
    def __init__(
        self,
        name: str = "",
        *,
        stop_timeout: float = 10.0,
        threads: int = 16,
        security: "Security | None" = None,
    ) -> None:
        self.security = security
        self.name = name
        self.state = SimpleNamespace()
        self.stop_timeout = stop_timeout
        self._threads = threads
        self._parts = Parts()
        self._responders: dict[str, ResponderSource] = {}
        self._run: Run | None = None
        self._came_early = False

    def subscriber(
        self,
        endpoints: str | Sequence[str],
        *,
        topics: str | Sequence[str] | None = None,
        concurrency: int = 1,
        by_key: bool = False,
        key: KeyOf | None = None,
        prefetch: int | None = None,
        on_error: OnError = "log",
        **options: Any,
    ) -> Callable[[F], F]:
        """Return a decorator: the function is called for each message.

        With a `cursor` a message is committed when its handler has ended and those before it in its
        stream have. After a crash what was not committed comes again, so a handler may see a
        message twice: at least once. A graceful stop commits all that is done: by key, what was
        read is handled before, if it can be begun in the first half of `stop_timeout`. Without a
        cursor, what was read and not handled when the app ends is gone.

        Args:
            endpoints: of one publisher, or several.
            topics: what to take: topics, and prefixes that end in `*`. Default: all, as with `"*"`.
            concurrency: how many messages are handled at once. Default 1: one after the other, in
                order. With more, messages of a stream are begun in order, and end in any. At most
                10,000.
            by_key: whether messages with the same `key` are handled one after the other, in
                order; those without a key count as of one key. Default False.
            key: what messages have in common that are handled so, computed from each; in place of
                `by_key`. Where it raises, or its result is not hashable, `on_error` says what
                becomes of the message; of a value that does not fit no key is asked. Default None.
            prefetch: how many messages may be read and wait for a handler. Default 64, or 0 where
                `on_gap` is "latest" for any topic: newer values replace what waits in the
                subscriber, and of what was read only what waits for its key. Beyond it nothing is
                read, and a publisher that is too fast has `on_full` and the replay buffer to see to
                it.
            on_error: what becomes of a message whose handler raised. `log` (default): the exception
                is logged, and the message counts as handled. `retry`: `Retry()`. A `Retry`: some
                more attempts. A `DeadLetter`: it is kept elsewhere. `stop`: the app stops, and
                the message is not committed. A callable gets the `Event` and the exception, and
                then the message counts as handled; if it raises, the app stops. A value that does
                not fit the annotation is an error that is not tried again.
            options: further arguments of `p2pmsg.aio.Subscriber`, such as `start`, `cursor`,
                `on_gap`, without `commit`.

        Raises:
            ConfigError: an argument is out of its limits; when the function is decorated, one of
                its parameters cannot be filled, and is named.

        """
        check_endpoints(endpoints)
        given = {**options, "topics": check_topics(topics) or None}
        _check_options(Subscriber, given, _OWN)
        _check_concurrency(concurrency)
        conflates = GapPolicy(options.get("on_gap", "wait")).any_conflates
        ahead = (0 if conflates else _PREFETCH) if prefetch is None else prefetch
        whole("prefetch", ahead, 0)
        check("key", key, key is None or callable(key), "a function of a message")
        check("key", key, key is None or not by_key, "left out where by_key is given")
        if by_key:
            key = attrgetter("key")

        def add(function: F) -> F:
            handler = self._handler(function, "message", on_error)
            self._add(SubscriberSource(handler, endpoints, given, concurrency, key, ahead))
            return function

        return add

    def worker(
        self,
        endpoints: str | Sequence[str],
        *,
        concurrency: int = 1,
        on_error: OnError = "retry",
        **options: Any,
    ) -> Callable[[F], F]:
        """Return a decorator: the function is called for each job of the work queue.

        A job is acknowledged when its handler has ended, unless that has settled it itself. Of a
        key one job at a time is with any worker.

        Args:
            endpoints: of one pusher, or several.
            concurrency: how many jobs are handled at once; not more than `prefetch`, which is 16.
                Default 1; at most 10,000.
            on_error: what becomes of a job whose handler raised. `retry` (default): it is rejected,
                so that the pusher has it tried again, by its own rules. A `Retry`: the same, until
                `attempts`. `dead_letter`: it is discarded, and so among the pusher's dead letters.
                A `DeadLetter`: it is kept elsewhere, and acknowledged. `log`: it is acknowledged.
                `stop`: it is rejected, and the app stops. A callable gets the `Event` and the
                exception; what it does not settle is rejected.
            options: further arguments of `p2pmsg.aio.Puller`, such as `prefetch` and `name`, but
                not `acknowledge`. With `type` a job whose value does not fit becomes a dead letter
                before it comes to the handler.

        Raises:
            ConfigError: as for `subscriber`.

        """
        check_endpoints(endpoints)
        _check_options(Puller, options, ("acknowledge",))  # by the batch none can be rejected
        _check_concurrency(concurrency)

        def add(function: F) -> F:
            handler = self._handler(function, "job", on_error)
            self._add(WorkerSource(handler, endpoints, options, concurrency))
            return function

        return add

    def responder(
        self,
        endpoint: str,
        topic: str,
        *,
        concurrency: int = 100,
        on_error: OnError = "log",
        **options: Any,
    ) -> Callable[[F], F]:
        """Return a decorator: the function is called for each request, and returns the reply.

        Handlers of one endpoint share a responder; requests of one topic that wait take no place of
        another's. When the app stops, requests that came are answered first, if their handlers can
        be called in the first half of `stop_timeout`; further ones are left to be asked of another
        responder.

        Args:
            endpoint: where to bind.
            topic: of the requests.
            concurrency: how many requests of the topic are handled at once. Default 100, at most
                10,000; plain functions also need a thread of the app each.
            on_error: `log` (default) or `stop`. In both cases the requester gets the exception.
            options: further arguments of `p2pmsg.aio.Responder`, without `handlers` and
                `tasks_max`; the same for all topics of the endpoint. `pending_max` (default 1000)
                is how many requests of each topic may wait; further ones are left to be asked
                again, and counted in `HandlerStats.refused`.

        Raises:
            ConfigError: as for `subscriber`; the topic has a handler already.

        """
        place = str(parse_endpoint(endpoint))
        _check_options(Responder, options, ("endpoint", "handlers", "tasks_max"))
        _check_concurrency(concurrency)

        def add(function: F) -> F:
            handler = self._handler(function, "request", on_error)
            source = self._responders.get(place) or ResponderSource(place)
            source.add(topic, handler, concurrency, options)
            if place not in self._responders:
                self._add(source)
                self._responders[place] = source
            return function

        return add

    def timer(
        self, seconds: float, *, at_start: bool = False, on_error: OnError = "log"
    ) -> Callable[[F], F]:
        """Return a decorator: the function is called again and again.

        Args:
            seconds: from one call to the next. A call that takes longer delays the next one; those
                that were due meanwhile are left out.
            at_start: whether the first call is at once. Default False.
            on_error: `log` (default) or `stop`.

        Raises:
            ConfigError: as for `subscriber`.

        """
        at_least("seconds", seconds, 0.001)

        def add(function: F) -> F:
            handler = self._handler(function, "timer", on_error)
            self._add(TimerSource(handler, seconds, at_start=at_start))
            return function

        return add

    def middleware(self, function: F) -> F:
        """Register a function that is called around each handler.

        ::

            @app.middleware
            async def timed(call_next, event):
                began = time.monotonic()
                try:
                    return await call_next(event)
                finally:
                    seconds[event.handler].append(time.monotonic() - began)

        The first one registered is the outermost. It may change `event.value`, leave `call_next`
        out, or raise, which counts as the handler's failure. Each attempt goes through all of them.

        Args:
            function: an `async def` that takes the next one and the `Event`.

        Raises:
            ConfigError: `function` is no `async def`.

        """
        check("middleware", function, iscoroutinefunction(function), "an async def")
        self._check_idle("middleware")
        self._parts.middleware.append(function)
        return function

    def on_start(self, function: F) -> F:
        """Register a function that is called before the first event, in order.

        Args:
            function: plain (then a thread calls it) or async; without parameters, or with one for
                the app. What it raises ends the app.

        Raises:
            ConfigError: it has more parameters.

        """
        return self._hook(self._parts.on_start, function)

    def on_stop(self, function: F) -> F:
        """Register a function that is called after the last event, the last one registered first.

        It is called whatever went wrong before: an `on_start` that raised, too, so that what this
        one closes may not be there.

        Args:
            function: as for `on_start`. What it raises is logged, the other hooks are called all
                the same, and `run` raises it if nothing else went wrong before.

        Raises:
            ConfigError: it has more parameters.

        """
        return self._hook(self._parts.on_stop, function)

    def run(self, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        """Run until SIGTERM, Ctrl-C or `stop`, in an event loop of its own.

        SIGTERM is meant for the process: an app that runs after it stops as it begins.

        Args:
            loop_factory: makes the event loop, such as `uvloop.new_event_loop`. Default: asyncio's.

        Raises:
            HandlerError: a handler raised whose policy is `stop`.
            TimeoutError: handlers did not end within `stop_timeout`.
            ClosedError: the app runs already, or is called where an event loop runs: there, use
                `serve`.
            Others: what opening the peers raises, and on_start and on_stop.

        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise ClosedError("App.run", "an event loop runs here; await app.serve()")
        # Around it all, so that no signal comes between two steps of the event loop.
        with self._signals():
            loop = (loop_factory or asyncio.new_event_loop)()
            asyncio.set_event_loop(loop)
            try:
                loop.run_until_complete(self._serve(has_signals=True))
            finally:
                _close_loop(loop)

    async def serve(self, *, signals: bool = False) -> None:
        """Run in the event loop of the caller until `stop`; cancelling it stops it, too.

        Args:
            signals: whether SIGTERM and Ctrl-C stop it. Default False.

        Raises:
            ClosedError: the app runs already.
            Others as `run`.

        """
        with self._signals() if signals else contextlib.nullcontext():
            await self._serve(signals)

    async def _serve(self, has_signals: bool) -> None:
        if self._run is not None:
            raise ClosedError("the app", "it runs already")
        run = self._run = Run(
            self,
            self._parts,
            threads=self._threads,
            stop_timeout=self.stop_timeout,
            security=self.security,
        )
        try:
            with woken_by_signals() if has_signals else contextlib.nullcontext():
                if self._came_early:
                    run.stop()
                await run.run()
        finally:
            self._run = None
            self._came_early = False

    def stop(self) -> None:
        """Stop gracefully, and return at once; any thread may call it, and signal handlers.

        While the app does not run, it does nothing.
        """
        run = self._run
        if run is not None:
            run.stop()

    def stats(self) -> list[HandlerStats]:
        """Return the counters of each handler, in the order in which they were registered."""
        return [handler.stats() for source in self._parts.sources for handler in source.handlers]

    def __repr__(self) -> str:
        def names() -> str:
            found = ", ".join(each.name for each in self.stats())
            return f"{self.name!r} {found or 'no handlers'}"

        return shown(self, names, lambda: self._run is None, ("running", "idle"))

    def _signals(self) -> StopSignals:
        self._came_early = False
        return StopSignals(self._stop_from_signal, self._hurry_from_signal)

    def _stop_from_signal(self) -> None:
        if self._run is None:
            self._came_early = True
        else:
            self._run.stop()

    def _hurry_from_signal(self) -> None:
        if self._run is not None:
            self._run.hurry_from_signal()

    def _handler(self, function: Any, kind: Any, on_error: OnError) -> Handler:
        return Handler(function, kind, on_error, App)

    def _add(self, source: Source) -> None:
        self._check_idle("handlers")
        self._parts.sources.append(source)

    def _check_idle(self, what: str) -> None:
        if self._run is not None:
            raise ClosedError("the app", f"it runs, and takes no more {what}")

    def _hook(self, hooks: list[Callable[..., Any]], function: F) -> F:
        self._check_idle("hooks")
        count = len(parameters_of(function))
        check(f"hook {name_of(function)}", function, count <= 1, "a function of at most the app")
        hooks.append(function)
        return function


def _check_concurrency(concurrency: int) -> None:
    whole("concurrency", concurrency, 1, _CONCURRENCY_MAX)


def _check_options(peer: type, options: dict[str, Any], own: tuple[str, ...]) -> None:
    known = inspect.signature(peer).parameters.keys() - {"endpoints", *own}
    for name in options:
        if name not in known:
            limit = f"one of {', '.join(sorted(known))}"
            raise ConfigError(f"argument {name!r} of {peer.__name__}", limit, options[name])


def _close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left, wait for it a little, and close the loop."""
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_ENDING_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
