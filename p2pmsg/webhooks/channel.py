"""Delivers a stream to one endpoint: a durable subscriber, the core that decides, a client."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random, SystemRandom
from traceback import format_tb
from typing import Any, Final

from p2pmsg.aio import Subscriber
from p2pmsg.config import CursorConfig
from p2pmsg.errors import (
    ConfigError,
    CursorError,
    LogFailedError,
    LossReport,
    P2PError,
    RewoundReport,
)
from p2pmsg.message import Message
from p2pmsg.toolkit import Rarely
from p2pmsg.toolkit import own_log as _log
from p2pmsg.webhooks.client import Client
from p2pmsg.webhooks.delivery import Delivery, Effect, Failure, Item
from p2pmsg.webhooks.endpoint import Endpoint, EndpointStats, EventKind, HookEvent
from p2pmsg.webhooks.formats import Request, encode, join, message_id, percent_encoded
from p2pmsg.webhooks.letters import CURSOR, Letter, Letters

_COMMIT_S: Final = 0.05
"""How long until the cursor is moved; what was delivered within it comes twice after a crash."""
_ASKED_S: Final = 1.0
_AGAIN_S: Final = 5.0
_LEAVE_S: Final = 2.0
"""With nothing wanted for so long the subscriber leaves, so that it holds up no publisher."""
_TAKE_MAX: Final = 256
_FEW: Final = 250
_BATCH_MAX: Final = 100
_GATHER_S: Final = 0.01
_STREAMS_MAX: Final = 65_536
_ASKED_MAX: Final = 100
"""How many dead letters are taken up at once to be sent again."""


_TEXTS: Final = {
    "opened": "it counts as down, and is probed",
    "closed": "it works again",
    "stopped": "it answered 410, and gets nothing any more",
    "held": "it asked for a pause by Retry-After",
    "lost": "messages are lost",
    "dead": "a dead letter",
}
"""What is logged of events."""


class Channel:
    """The delivery to one endpoint; lives in one event loop.

    Args:
        subscribe: makes a subscriber of the publishers, with its other settings by name.
        endpoint: where to.
        state: the sender's folder; the channel has one in it.
        report: gets each event.

    Raises:
        LogInUseError: another sender has the folder.
        LogFormatError: the letters are something else.
        LogFailedError: the folder cannot be used.

    """

    def __init__(
        self,
        subscribe: Callable[..., Subscriber],
        endpoint: Endpoint,
        state: Path,
        report: Callable[[HookEvent], None],
    ) -> None:
        self._subscribe = subscribe
        self._endpoint = endpoint
        self._folder = state / endpoint.name
        self._letters = _open_letters(self._folder)
        self._report = report
        self._is_batch = endpoint.format == "cloudevents-batch"
        rng, batch_max = Random(SystemRandom().getrandbits(64)), _BATCH_MAX if self._is_batch else 1
        self._core = Delivery(endpoint, rng, batch_max=batch_max)
        self._loop = asyncio.get_running_loop()
        self._client = Client(endpoint)
        self._stats = self._core.stats
        self._subscriber: Subscriber | None = None
        self._space = asyncio.Event()
        self._posts: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._to_write: list[Effect] = []
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._offered: dict[tuple[int, str], int] = {}
        self._disk = ThreadPoolExecutor(1, f"webhook {endpoint.name}")
        self._positions: dict[Any, Message] = {}
        self._moved, self._committing = asyncio.Event(), asyncio.Lock()
        self._is_closing = False
        self._logged, self._logged_held, self._logged_disk = Rarely(), Rarely(), Rarely()

    async def open(self) -> None:
        """Take what is in the folder, and open the subscriber; raises what either raises."""
        now_ns = time.monotonic_ns()
        for letter in self._letters.all("parked"):
            self._restore(letter, now_ns)
        self._stats.dead_letters = self._letters.count("dead")
        self._stats.stopped = self._letters.stopped
        if self._stats.stopped is not None:
            _log.warning("webhook %s: stopped: %s", self._endpoint.name, self._stats.stopped)
        self._subscriber = self._make_subscriber()
        self._tasks = [
            self._loop.create_task(self._receive()),
            self._loop.create_task(self._check_requests()),
            self._loop.create_task(self._commit_soon()),
        ]
        self._pump()

    def stats(self) -> EndpointStats:
        """Return the counters; also from another thread."""
        core, subscriber = self._core, self._subscriber
        return replace(
            core.stats,
            statuses=dict(core.stats.statuses),
            waiting=core.waiting,
            held_s=core.held_ns(time.monotonic_ns()) / 1e9,
            connected=None if subscriber is None else subscriber.connected,
        )

    async def resume(self) -> None:
        """Send again to an endpoint that answered 410, asked for a pause, or counts as down."""
        await self._loop.run_in_executor(self._disk, self._letters.resume)
        self._core.resume(time.monotonic_ns())
        self._pump()

    async def close(self, timeout: float) -> None:
        """Take no more, wait for requests under way for so many seconds, commit, and close."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        if self._posts:
            await asyncio.wait(self._posts, timeout=timeout)
            for task in [*self._posts]:
                task.cancel()
            await asyncio.gather(*self._posts, return_exceptions=True)
        while self._writing is not None:
            await self._writing
        try:
            await self._commit()
            if self._subscriber is not None:
                await self._subscriber.close()
        except CursorError as error:
            _log.warning("webhook %s: %s", self._endpoint.name, error)
        await self._client.close()
        self._disk.shutdown()
        self._letters.close()

    # ------------------------------------------------------------------------- from the stream

    def _make_subscriber(self) -> Subscriber:
        # A crash of the operating system may take a commit back: the messages come twice.
        cursor = CursorConfig(self._folder / CURSOR, fsync="never")
        return self._subscribe(topics=self._endpoint.topics, on_gap=self._on_loss, cursor=cursor)

    async def _receive(self) -> None:
        """Take messages while they are wanted, until cancelled."""
        while True:
            try:
                if self._subscriber is None:
                    await self._wait_for_space()
                    self._subscriber = self._make_subscriber()
                self._stats.error = None
                await self._take_all(self._subscriber)
                await self._leave()
            except (P2PError, OSError) as error:
                self._stats.error = str(error)
                _log.warning("webhook %s: %s. It is tried again", self._endpoint.name, error)
                await asyncio.sleep(_AGAIN_S)

    async def _take_all(self, subscriber: Subscriber) -> None:
        """Take messages; return when nothing was wanted for some time."""
        while True:
            wanted = self._core.wants
            if not wanted:
                try:
                    async with asyncio.timeout(_LEAVE_S):
                        await self._wait_for_space()
                except TimeoutError:
                    return
                continue
            if wanted < _FEW:
                await asyncio.sleep(_GATHER_S)  # few at a time would cost more than they are
                wanted = max(1, self._core.wants)
            batch = await subscriber.receive_many(min(wanted, _TAKE_MAX))
            now_ns = time.monotonic_ns()
            for message in batch:
                self._offer(message, now_ns)
            self._pump()

    async def _wait_for_space(self) -> None:
        while not self._core.wants:
            self._space.clear()
            await self._space.wait()

    async def _leave(self) -> None:
        """Close the subscriber: the publisher's log has what follows, and the cursor the place."""
        await self._commit()
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            await subscriber.close()

    def _offer(self, message: Message, now_ns: int) -> None:
        stream = (message.session, message.topic)
        if message.sequence <= self._offered.get(stream, -1):
            return  # it is here since before the subscriber left
        self._offered.pop(stream, None)
        self._offered[stream] = message.sequence  # the last one in the order of the dict
        if len(self._offered) > _STREAMS_MAX:
            del self._offered[next(iter(self._offered))]
        letter = self._letter_of(message)
        item = Item(letter.id, stream, message.key, letter.size, letter, message)
        item.is_alone = not letter.headers
        self._core.offer(item, now_ns)

    def _letter_of(self, message: Message) -> Letter:
        """Return what is sent; without headers where the message has no such form."""
        hook_id = message_id(message.session, message.topic, message.sequence)
        request, reason = Request({}, b""), ""
        try:
            request = encode(message, self._endpoint.format, hook_id)
            if self._endpoint.scheme == "github":
                request.headers["x-github-event"] = percent_encoded(message.topic)
        except (ValueError, TypeError, RecursionError, OverflowError) as wrong:
            reason = f"it has no form as {self._endpoint.format}: {wrong}"
        return Letter(
            id=hook_id, why="parked", topic=message.topic, session=message.session,
            sequence=message.sequence, key=message.key, reason=reason, body=request.body,
            headers=request.headers,
        )  # fmt: skip

    def _on_loss(self, report: LossReport) -> None:
        self._stats.lost += report.count
        if isinstance(report, RewoundReport):
            self._offered.pop((report.session, report.topic), None)
        self._notify("lost", str(report), report)

    # -------------------------------------------------------------------------- to the endpoint

    def _pump(self) -> None:
        """Send what may be sent, do what the core asks for, and come back in time."""
        core = self._core
        if not self._is_closing:
            while items := core.take(time.monotonic_ns()):
                task = self._loop.create_task(self._post(items))
                self._posts.add(task)
                task.add_done_callback(self._posts.discard)
            self._arm(core.next_deadline_ns())
        while core.effects:
            self._do(core.effects.popleft())
        for item in core.committable():
            if item.message is not None:
                self._positions[item.stream] = item.message
        if self._positions:
            self._moved.set()
        if core.wants:
            self._space.set()

    def _arm(self, deadline_ns: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ns is not None:
            wait_s = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
            self._timer = self._loop.call_later(min(wait_s, 3600.0), self._pump)

    async def _post(self, items: list[Item]) -> None:
        try:
            result = await self._send([item.content for item in items], items[0].id)
        except Exception as error:  # the message waits; the others go on
            name, place = type(error).__name__, "".join(format_tb(error.__traceback__)).rstrip()
            _log.error("webhook %s: %s: %s at\n%s", self._endpoint.name, items[0].id, name, place)
            result = Failure(name)  # its text may have the URL
        now_ns = time.monotonic_ns()
        if isinstance(result, Failure):
            self._core.failed(items, now_ns, result)
            is_new = all(effect.kind == "park" for effect in self._core.effects)
            if is_new and not self._stats.is_open and self._logged.is_due():
                what = "webhook %s: a request failed, and is tried again: %s"
                _log.warning(what, self._endpoint.name, result.reason)
        else:
            self._core.succeeded(items, now_ns, result)
        self._pump()

    async def _send(self, letters: list[Letter], hook_id: str) -> Failure | int:
        requests = [Request(each.headers, each.body) for each in letters if each.headers]
        if not requests:
            return Failure(letters[0].reason, is_final=True)
        request = join(requests) if self._is_batch else requests[0]
        return await self._client.post(request, hook_id)

    def _do(self, effect: Effect) -> None:
        if effect.kind in ("park", "unpark", "dead", "stopped"):
            self._to_write.append(effect)
            if self._writing is None:
                self._writing = self._loop.create_task(self._write())
        if effect.kind in ("held", "opened", "closed", "stopped"):
            held_s = self._core.held_ns(time.monotonic_ns()) / 1e9
            until = datetime.fromtimestamp(time.time() + held_s, UTC)
            self._notify(effect.kind, effect.reason, until if effect.kind == "held" else None)

    def _notify(self, kind: EventKind, reason: str, detail: Any = None) -> None:
        """Log and report an event; pauses, which may be many, are logged once a minute."""
        if kind != "held" or self._logged_held.is_due():
            until = f", until {detail:%Y-%m-%dT%H:%M:%SZ}" if kind == "held" else ""
            name = self._endpoint.name
            _log.warning("webhook %s: %s%s: %s", name, _TEXTS[kind], until, reason)
        self._report(HookEvent(kind, self._endpoint.name, reason, detail))

    # ------------------------------------------------------------------------------- to the disk

    async def _write(self) -> None:
        """Bring effects to the disk, all that are there at once, and report that to the core.

        Where that fails it is tried again: what is not on the disk stays in memory.
        """
        try:
            while self._to_write:
                effects, self._to_write = self._to_write, []
                while not await self._loop.run_in_executor(self._disk, self._put, effects):
                    if self._is_closing:
                        return
                    await asyncio.sleep(_AGAIN_S)
                for effect in effects:
                    if effect.kind in ("park", "dead"):
                        self._core.persisted(effect, time.monotonic_ns())
                    if effect.kind == "dead":
                        letter = _letter(effect)
                        self._notify("dead", f"{letter.id}: {letter.reason}", letter)
                self._pump()
        finally:
            self._writing = None

    def _put(self, effects: Sequence[Effect]) -> bool:
        """Write in a thread; return whether all is on the disk."""
        letters = self._letters
        try:
            for effect in effects:
                if effect.kind == "stopped":
                    letters.stop(effect.reason)
            letters.write(
                [_letter(each) for each in effects if each.kind in ("park", "dead")],
                [each.item.id for each in effects if each.kind == "unpark" and each.item],
            )
            self._stats.dead_letters = letters.count("dead")
        except OSError as error:
            self._log_disk(error)
            return False
        return True

    def _log_disk(self, error: OSError) -> None:
        if self._logged_disk.is_due():
            what = "webhook %s: letters: %s. It is tried again"
            _log.warning(what, self._endpoint.name, error.strerror)

    def _restore(self, letter: Letter, now_ns: int) -> None:
        stream = (letter.session, letter.topic)
        item = Item(letter.id, stream, letter.key, letter.size, letter, reason=letter.reason)
        self._core.restore(item, now_ns, letter.attempts)

    async def _check_requests(self) -> None:
        """Send again what `p2pmsg hook dead-letters` asks for, until cancelled."""
        while True:
            await asyncio.sleep(_ASKED_S)
            try:
                has_space = self._core.has_space
                again = await self._loop.run_in_executor(self._disk, self._take_up, has_space)
            except OSError as error:
                self._log_disk(error)
                continue
            now_ns = time.monotonic_ns()
            for letter in again:
                self._restore(letter, now_ns)
            if again:
                self._pump()

    def _take_up(self, has_space: bool) -> list[Letter]:
        """Park in a thread what is to be sent again, and return it; each has all its attempts."""
        letters = self._letters
        self._stats.dead_letters = letters.count("dead")
        asked = letters.all("asked", limit=_ASKED_MAX) if has_space else []
        again = [replace(letter, why="parked", attempts=0) for letter in asked]
        if again:
            letters.write(again)
        return again

    async def _commit_soon(self) -> None:
        """Move the cursor soon after something was delivered, until cancelled."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            await asyncio.sleep(_COMMIT_S)
            try:
                await self._commit()
            except CursorError as error:
                _log.warning("webhook %s: %s. It is tried again", self._endpoint.name, error)
                await asyncio.sleep(_AGAIN_S)
                self._moved.set()

    async def _commit(self) -> None:
        async with self._committing:
            for stream, message in [*self._positions.items()]:
                if self._subscriber is None:
                    return
                try:
                    await self._subscriber.commit(message)
                except ConfigError:
                    continue  # it was returned before the subscriber left, and comes again
                if self._positions.get(stream) is message:
                    del self._positions[stream]


def _open_letters(folder: Path) -> Letters:
    try:
        with ExitStack() as undo:
            letters = undo.enter_context(closing(Letters(folder)))
            letters.lock()
            undo.pop_all()
    except P2PError:
        raise
    except OSError as error:
        reason = f"state: the folder {folder} cannot be used: {error.strerror}"
        raise LogFailedError(reason, error.errno) from error
    return letters


def _letter(effect: Effect) -> Letter:
    item = effect.item
    assert item is not None
    letter: Letter = item.content
    return replace(
        letter,
        why="dead" if effect.kind == "dead" else "parked",
        attempts=item.attempts,
        reason=item.reason,
        at_ns=time.time_ns(),
    )
