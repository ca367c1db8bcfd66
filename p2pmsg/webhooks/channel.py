"""Delivers a stream to one endpoint: a durable subscriber, the core that decides, a client."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random, SystemRandom
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Final

from p2pmsg.aio.subscriber import Subscriber
from p2pmsg.config import CursorConfig
from p2pmsg.errors import ConfigError, CursorError, LogFailedError, LossReport, P2PError
from p2pmsg.message import Message
from p2pmsg.trouble import Rarely
from p2pmsg.webhooks.client import Client
from p2pmsg.webhooks.delivery import Delivery, Effect, Failure, Item
from p2pmsg.webhooks.endpoint import Endpoint
from p2pmsg.webhooks.formats import Request, encode, join, message_id, percent_encoded
from p2pmsg.webhooks.letters import CURSOR, Letter, Letters
from p2pmsg.webhooks.stats import EndpointStats, HookEvent
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_COMMIT_S: Final = 0.05
"""How long until the cursor is moved; what was delivered within it comes twice after a crash."""
_ASKED_S: Final = 1.0
_AGAIN_S: Final = 5.0
_LEAVE_S: Final = 2.0
"""With nothing wanted for so long the subscriber leaves, so that it holds up no publisher."""
_TAKE_MAX: Final = 256
_HELD_LONG_S: Final = 60.0
"""A pause that is as long is always said: while it lasts, there is no other."""
_GATHER_S: Final = 0.01
_STREAMS_MAX: Final = 65_536
_OWN_BYTES: Final = 300
_ASKED_MAX: Final = 100
"""How many dead letters are taken up at once to be sent again."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the messages come from."""

    publishers: list[str]
    start: str | int | datetime
    name: str
    security: "Security | None" = None


@dataclass(slots=True)
class Content:
    """What is sent of a message, and by what its letter is named."""

    request: Request | None
    message: Message | None
    topic: str
    session: int
    sequence: int
    error: str = ""


class Channel:
    """The delivery to one endpoint; lives in one event loop.

    Args:
        source: the publishers.
        endpoint: where to.
        state: the sender's folder; the channel has one in it.
        report: gets each event.
        resolver: aiohttp's, or None.

    """

    def __init__(
        self,
        source: Source,
        endpoint: Endpoint,
        state: Path,
        report: Callable[[HookEvent], None],
        resolver: Any = None,
    ) -> None:
        self._source = source
        self._endpoint = endpoint
        self._folder = state / endpoint.name
        self._report = report
        self._core = Delivery(endpoint.rules, Random(SystemRandom().getrandbits(64)))
        self._loop = asyncio.get_running_loop()
        self._client = Client(endpoint, resolver)
        self._subscriber: Subscriber | None = None
        self._space = asyncio.Event()
        self._posts: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._to_write: list[Effect] = []
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._offered: dict[tuple[int, str], int] = {}
        self._again: dict[tuple[int, str], int] = {}
        self._disk = ThreadPoolExecutor(1, f"webhook {endpoint.name}")
        self._positions: dict[Any, Message] = {}
        self._committing: asyncio.Task[None] | None = None
        self._is_closing = False
        self._said, self._said_held = Rarely(), Rarely()
        self._lost = self._commit_failures = 0
        self._error: str | None = None
        self._letters: Letters | None = None
        self._dead_letters = 0

    async def open(self) -> None:
        """Open the folder and the subscriber; raises what either raises."""
        letters = await self._loop.run_in_executor(self._disk, self._open_letters)
        now_ns = time.monotonic_ns()
        for letter in letters.all("parked"):
            self._restore(letter, now_ns)
        for letter_id in (*letters.ids("dead"), *letters.ids("asked")):
            self._core.know(letter_id)
        self._core.stopped = letters.stopped
        if self._core.stopped is not None:
            _log.warning("webhook %s: stopped: %s", self._endpoint.name, self._core.stopped)
        self._subscriber = self._subscribe()
        self._tasks = [
            self._loop.create_task(self._receive()),
            self._loop.create_task(self._look_for_requests()),
        ]
        self._pump()

    def stats(self) -> EndpointStats:
        """Return the counters; also from another thread."""
        core, counters = self._core, self._core.counters
        return EndpointStats(
            name=self._endpoint.name,
            received=counters.offered,
            delivered=counters.delivered,
            requests=counters.requests,
            retries=counters.retries,
            failures=counters.failures,
            statuses=dict(counters.statuses),
            dead=counters.dead,
            dead_letters=self._dead_letters,
            parked=core.parked,
            waiting=core.waiting,
            in_flight=core.in_flight,
            lost=self._lost,
            is_open=core.is_open,
            opened=counters.opened,
            stopped=core.stopped,
            held_s=core.held_ns(time.monotonic_ns()) / 1e9,
            connected=None if self._subscriber is None else self._subscriber.connected,
            reason=core.reason,
            refused_letters=counters.refused_letters,
            commit_failures=self._commit_failures,
            error=self._error,
        )

    async def resume(self) -> None:
        """Send again to an endpoint that answered 410, asked for a pause, or counts as down."""
        if self._letters is not None:
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
        if self._committing is not None:
            await self._committing
        try:
            await self._commit()
            if self._subscriber is not None:
                await self._subscriber.close()
        except CursorError as error:
            _log.warning("webhook %s: %s", self._endpoint.name, error)
        await self._client.close()
        self._disk.shutdown()
        if self._letters is not None:
            self._letters.close()

    # ------------------------------------------------------------------------- from the stream

    def _subscribe(self) -> Subscriber:
        return Subscriber(
            self._source.publishers,
            topics=self._endpoint.topics,
            start=self._source.start,
            on_gap=self._note_loss,
            name=self._source.name,
            # A crash of the operating system may take a commit back: the messages come twice.
            cursor=CursorConfig(self._folder / CURSOR, fsync="never"),
            security=self._source.security,
        )

    async def _receive(self) -> None:
        """Take messages while they are wanted, until cancelled."""
        while True:
            try:
                if self._subscriber is None:
                    await self._wait_for_space()
                    self._subscriber = self._subscribe()
                self._error = None
                await self._take_all(self._subscriber)
                await self._leave()
            except (P2PError, OSError) as error:
                self._error = str(error)
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
            if wanted < min(_TAKE_MAX, self._endpoint.rules.window // 4):
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
        if self._committing is not None:
            await self._committing
        await self._commit()
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            await subscriber.close()
        self._again = dict(self._offered)

    def _offer(self, message: Message, now_ns: int) -> None:
        stream = (message.session, message.topic)
        if message.sequence <= self._again.get(stream, -1):
            return  # it is here since before the subscriber left
        self._again.pop(stream, None)
        self._offered.pop(stream, None)
        self._offered[stream] = message.sequence  # the last one in the order of the dict
        if len(self._offered) > _STREAMS_MAX:
            del self._offered[next(iter(self._offered))]
        hook_id = message_id(message.session, message.topic, message.sequence)
        content = self._content(message, hook_id)
        request = content.request
        item = Item(hook_id, stream, message.key, _OWN_BYTES, content, is_alone=request is None)
        item.size += 0 if request is None else len(request.body)
        self._core.offer(item, now_ns)

    def _content(self, message: Message, hook_id: str) -> Content:
        request, error = None, ""
        try:
            request = encode(message, self._endpoint.format, hook_id)
            if self._endpoint.scheme == "github":
                request.headers["x-github-event"] = percent_encoded(message.topic)
        except (ValueError, TypeError, RecursionError, OverflowError) as wrong:
            error = f"it has no form as {self._endpoint.format}: {wrong}"
        return Content(request, message, message.topic, message.session, message.sequence, error)

    def _note_loss(self, report: LossReport) -> None:
        self._lost += report.count
        self._again.pop((report.session, report.topic), None)
        _log.warning("webhook %s: %s", self._endpoint.name, report)
        self._report(HookEvent("lost", self._endpoint.name, str(report), report))

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
            if item.content.message is not None:
                self._positions[item.stream] = item.content.message
        if self._positions and self._committing is None and not self._is_closing:
            self._committing = self._loop.create_task(self._commit_soon())
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
            reasons, trace = self._client.reasons, "".join(format_exception(error)).rstrip()
            _log.error(
                "webhook %s: %s: %s", self._endpoint.name, items[0].id, reasons.hidden(trace)
            )
            result = Failure(f"{type(error).__name__}: {reasons.short(str(error))}")
        now_ns = time.monotonic_ns()
        if isinstance(result, Failure):
            self._core.failed(items, now_ns, result)
            if not any(effect.kind == "held" for effect in self._core.effects):
                self._say_failed(result)
        else:
            self._core.succeeded(items, now_ns, result)
        self._pump()

    def _say_failed(self, failure: Failure) -> None:
        """Log that a request failed, unless something else that is logged says so."""
        core = self._core
        if core.is_open or core.stopped is not None or failure.is_final or not self._said.is_due():
            return
        _log.warning(
            "webhook %s: a request failed, and is tried again: %s",
            self._endpoint.name, failure.reason,
        )  # fmt: skip

    async def _send(self, contents: list[Content], hook_id: str) -> Failure | int:
        requests = [each.request for each in contents if each.request is not None]
        if not requests:
            return Failure(contents[0].error, is_final=True)
        is_batch = self._endpoint.format == "cloudevents-batch"
        return await self._client.post(join(requests) if is_batch else requests[0], hook_id)

    def _do(self, effect: Effect) -> None:
        name, reason = self._endpoint.name, effect.reason
        if effect.kind in ("park", "unpark", "dead"):
            self._write_later(effect)
            return
        if effect.kind == "held":
            self._report_held(reason)
            return
        if effect.kind == "stopped":
            _log.warning("webhook %s: it answered 410, and gets nothing any more: %s", name, reason)
            self._write_later(effect)
        elif effect.kind == "opened":
            _log.warning("webhook %s: it counts as down, and is probed: %s", name, reason)
        else:
            _log.warning("webhook %s: it works again", name)
        self._report(HookEvent(effect.kind, name, reason))  # type: ignore[arg-type]

    def _report_held(self, reason: str) -> None:
        """Say until when nothing is sent; short pauses, which may be many, once a minute."""
        name, held_s = self._endpoint.name, self._core.held_ns(time.monotonic_ns()) / 1e9
        until = datetime.fromtimestamp(time.time() + held_s, UTC)
        if held_s >= _HELD_LONG_S or self._said_held.is_due():
            _log.warning(
                "webhook %s: it asked for a pause by Retry-After, and gets nothing for %.0f s, "
                "until %s: %s", name, held_s, until.isoformat(timespec="seconds"), reason,
            )  # fmt: skip
        self._report(HookEvent("held", name, reason, until))

    # ------------------------------------------------------------------------------- to the disk

    def _open_letters(self) -> Letters:
        try:
            self._letters = letters = Letters(self._folder)
            letters.lock()
            self._dead_letters = letters.count("dead")
        except P2PError:
            raise
        except OSError as error:
            reason = f"state: the folder {self._folder} cannot be used: {error.strerror}"
            raise LogFailedError(reason, error.errno) from error
        return letters

    def _write_later(self, effect: Effect) -> None:
        self._to_write.append(effect)
        if self._writing is None:
            self._writing = self._loop.create_task(self._write())

    async def _write(self) -> None:
        """Bring effects to the disk, all that are there at once, and report that to the core."""
        try:
            while self._to_write:
                effects, self._to_write = self._to_write, []
                refused = await self._loop.run_in_executor(self._disk, self._write_effects, effects)
                now_ns = time.monotonic_ns()
                for effect in effects:
                    if effect.kind not in ("park", "dead") or effect.item is None:
                        continue
                    if effect in refused:
                        self._core.refused(effect, now_ns)
                        continue
                    self._core.persisted(effect, now_ns)
                    if effect.kind == "dead":
                        self._report_dead(effect.item, effect.reason)
                self._pump()
        finally:
            self._writing = None

    def _write_effects(self, effects: Sequence[Effect]) -> list[Effect]:
        """Write in a thread; return what could not be written."""
        letters = self._letters
        assert letters is not None
        puts, refused = [], []
        drops = [each.item.id for each in effects if each.kind == "unpark" and each.item]
        try:
            for effect in effects:
                if effect.kind == "stopped":
                    letters.stop(effect.reason)
                if effect.kind not in ("park", "dead") or effect.item is None:
                    continue
                letter = _letter(effect.item, effect.kind == "dead")
                if effect.kind == "dead" and (why := letters.why_full(letter)):
                    _log.warning("webhook %s: %s", self._endpoint.name, why)
                    refused.append(effect)
                else:
                    puts.append(letter)
            letters.write(puts, drops)
            self._dead_letters = letters.count("dead")
        except OSError as error:
            _log.warning("webhook %s: letters: %s", self._endpoint.name, error)
            return [each for each in effects if each.kind in ("park", "dead")]
        return refused

    def _report_dead(self, item: Item, reason: str) -> None:
        name = self._endpoint.name
        _log.warning("webhook %s: %s is a dead letter: %s", name, item.id, reason)
        self._report(HookEvent("dead", name, reason, _letter(item, True)))

    def _restore(self, letter: Letter, now_ns: int) -> None:
        request = Request(letter.headers, letter.body)
        content = Content(request, None, letter.topic, letter.session, letter.sequence)
        stream = (letter.session, letter.topic)
        item = Item(letter.id, stream, letter.key, letter.size, content, reason=letter.reason)
        self._core.restore(item, now_ns, letter.attempts)

    async def _look_for_requests(self) -> None:
        """Send again what `p2pmsg hook dead-letters` asks for, until cancelled."""
        while True:
            await asyncio.sleep(_ASKED_S)
            try:
                has_space = self._core.parked < self._endpoint.rules.parked_max
                again = await self._loop.run_in_executor(self._disk, self._take_up, has_space)
            except OSError as error:
                _log.warning("webhook %s: letters: %s", self._endpoint.name, error)
                continue
            now_ns = time.monotonic_ns()
            for letter in again:
                self._core.forget(letter.id)
                self._restore(letter, now_ns)
            if again:
                self._pump()

    def _take_up(self, has_space: bool) -> list[Letter]:
        """Park in a thread what is to be sent again, and return it; each has all its attempts."""
        letters = self._letters
        assert letters is not None
        self._dead_letters = letters.count("dead")
        asked = letters.all("asked", limit=_ASKED_MAX) if has_space else []
        again = [replace(letter, why="parked", attempts=0) for letter in asked]
        if again:
            letters.write(again)
        return again

    async def _commit_soon(self) -> None:
        try:
            await asyncio.sleep(_COMMIT_S)
            await self._commit()
        except CursorError as error:
            self._commit_failures += 1
            _log.warning("webhook %s: %s. It is tried again", self._endpoint.name, error)
            await asyncio.sleep(0 if self._is_closing else _AGAIN_S)
        finally:
            self._committing = None
            if self._positions and not self._is_closing:
                self._loop.call_later(_COMMIT_S, self._pump)

    async def _commit(self) -> None:
        subscriber = self._subscriber
        if subscriber is None:
            return
        for stream, message in [*self._positions.items()]:
            try:
                await subscriber.commit(message)
            except ConfigError:
                continue  # it was returned before the subscriber left, and comes again
            if self._positions.get(stream) is message:
                del self._positions[stream]


def _letter(item: Item, is_dead: bool) -> Letter:
    content: Content = item.content
    request = content.request or Request({}, b"")
    return Letter(
        id=item.id,
        why="dead" if is_dead else "parked",
        topic=content.topic,
        session=content.session,
        sequence=content.sequence,
        key=item.key,
        attempts=item.attempts,
        reason=item.reason,
        at_ns=time.time_ns(),
        body=request.body,
        headers=request.headers,
    )
