"""Delivers streams to HTTP endpoints: one durable subscriber for each endpoint."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from p2pmsg.aio import Subscriber
from p2pmsg.errors import ClosedError, ConfigError, ReentrantCallError
from p2pmsg.toolkit import (
    INHERITED,
    ClosesItself,
    check,
    check_endpoints,
    check_name,
    check_topics,
    checked,
    close_at_exit,
    close_in_children,
    parse_start,
    shown,
    time_to_wait,
    was_closed,
)
from p2pmsg.toolkit import own_log as _log
from p2pmsg.webhooks.channel import Channel
from p2pmsg.webhooks.client import import_aiohttp
from p2pmsg.webhooks.endpoint import Endpoint, HookEvent, SenderStats

if TYPE_CHECKING:
    from p2pmsg.security import Security

_THREADS: Final = 32
"""For names that are looked up and cursors; one that hangs holds up no other."""
_JOIN_S: Final = 5.0


class Sender(ClosesItself):
    """Posts the messages of streams to HTTP endpoints: each at least once, and in order.

    Each endpoint has a subscriber of its own with a cursor, which moves when a message was answered
    with 2xx. So a receiver may be away for as long as the publisher's log, or a relay's, keeps the
    messages; that costs disk only. A message has the same id in each attempt, and after each
    restart. All runs in one thread with an event loop of its own.

    Args:
        publishers: endpoints of publishers, or of relays that keep a log, as for a `Subscriber`.
        state: a folder for cursors, parked messages and dead letters; made where it is missing.
            One sender uses it at a time.
        endpoints: where messages go, and how.
        start: where an endpoint that is new begins; as for a `Subscriber`. Default `latest`.
        name: the subscribers' name, for people.
        on_event: gets each `HookEvent`, in the sender's thread; it should not block. An exception
            that it raises is logged. Default: events are only logged, as warnings.
        security: keys for the connections to the publishers; one that refuses them is tried again.
            Default None: open.

    Raises:
        ConfigError: a setting is out of its limits, or a publisher's endpoint is none.
        MissingExtraError: aiohttp, or for Ed25519 cryptography, is not installed.
        LogInUseError: another sender uses the folder.
        CursorError, LogFormatError: what is in the folder cannot be used.
        LogFailedError: the folder cannot be made or written.
        AuthenticationError: no key is pinned for a publisher, or another one is.

    """

    @checked()
    def __init__(
        self,
        publishers: str | Sequence[str],
        *,
        state: str | Path,
        endpoints: Sequence[Endpoint],
        start: str | int | datetime = "latest",
        name: str = "",
        on_event: Callable[[HookEvent], object] | None = None,
        security: "Security | None" = None,
    ) -> None:
        import_aiohttp()
        self._places = places = [str(each) for each in check_endpoints(publishers)]
        parse_start(start)
        self._on_event = on_event
        self._state = Path(state)
        self._closed, self._why = False, "it is closed"
        given = _checked(endpoints)
        subscribe = partial(
            Subscriber, places, start=start, name=check_name(name), security=security
        )
        self._changing, self._ended = asyncio.Lock(), threading.Event()
        self._channels: dict[str, Channel] = {}
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(_THREADS, "webhooks"))
        self._thread = threading.Thread(target=self._live, name="p2pmsg-webhooks", daemon=True)
        self._thread.start()
        try:
            self._call(self._open(subscribe, given))
        except BaseException:
            self.close(timeout=0)
            raise
        close_at_exit(self, Sender.close)
        close_in_children(self)

    def __repr__(self) -> str:
        return shown(self, lambda: f"{', '.join(self._places)} to {', '.join(self._channels)}")

    def stats(self) -> SenderStats:
        """Return the counters as they are now; also after `close`."""
        return SenderStats(endpoints={n: each.stats() for n, each in self._channels.items()})

    def resume(self, name: str) -> None:
        """Send again, at once, to an endpoint to which nothing is sent.

        That is one that was stopped, since it answered 410; that asked for a pause by `Retry-After`
        (`held_s` in `stats()`); or that counts as down (`is_open`). What failed since it was away
        or asked for the pause is tried within 2 s. For any other it changes nothing.

        Args:
            name: the endpoint's name.

        Raises:
            ConfigError: there is no endpoint of this name.
            ClosedError: the sender is closed.
            ReentrantCallError: called by `on_event`, in the sender's own thread.

        """
        check("name", name, name in self._channels, f"one of {', '.join(self._channels)}")
        if self._closed:
            raise ClosedError("the sender", self._why)
        self._check_thread()
        self._call(self._channels[name].resume())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the sender is closed, at most `timeout` seconds; return whether it is.

        Args:
            timeout: in seconds. Default None: without end.

        Raises:
            ClosedError: it belongs to the parent process.

        """
        if timeout is not None:
            timeout = time_to_wait("timeout", timeout)
        if self._why == INHERITED:
            raise ClosedError("the sender", self._why)
        return self._ended.wait(timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Take no more messages, wait for requests under way, commit, and close.

        Args:
            timeout: how long requests under way may take, in seconds. Default 5. The messages of
                those that take longer are sent again at the next start.

        Raises:
            ReentrantCallError: called by `on_event`, in the sender's own thread.

        """
        timeout = time_to_wait("timeout", timeout)
        if self._closed:
            return
        self._check_thread()
        self._closed = True
        was_closed(self)
        try:
            self._call(self._close(timeout))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_JOIN_S)
            self._ended.set()

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise ReentrantCallError

    def _forget(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._closed, self._why = True, INHERITED

    def _live(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _open(self, subscribe: Callable[..., Subscriber], endpoints: list[Endpoint]) -> None:
        async with self._changing:
            for endpoint in endpoints:
                if self._closed:
                    return  # Ctrl-C: who waited for this has called `close`
                channel = Channel(subscribe, endpoint, self._state, self._report)
                self._channels[endpoint.name] = channel
                await channel.open()

    async def _close(self, timeout: float) -> None:
        async with self._changing:
            await asyncio.gather(*(each.close(timeout) for each in self._channels.values()))

    def _report(self, event: HookEvent) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            _log.exception("on_event failed for %r", event)


def _checked(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    found: list[Endpoint] = [*endpoints]
    if not found:
        raise ConfigError("endpoints", "at least one Endpoint", found)
    names: set[str] = set()
    for each in found:
        check("name", each.name, each.name not in names, "of one endpoint only")
        check_topics(each.topics)
        names.add(each.name)
    return found
