"""A publisher's core and a subscriber's core over one socket pair, in one thread.

The smallest shell there is, by the public calls of the cores alone::

    publish ─▶ PublisherCore ─▶ frames_to_send ─DATA──▶ receive_frame ─▶ SubscriberCore ─▶ ready
                 requests ─▶ next_reply ────────REPLY─▶ receive_reply ─▶       │
                    ▲                                                          ▼
                    └──receive ◀────────────────REQUEST──────────────────── effects
"""

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from random import Random
from struct import Struct
from typing import Any, Final

from p2pmsg import wire
from p2pmsg.checks import checked
from p2pmsg.config import PublisherConfig, SubscriberConfig
from p2pmsg.errors import ClosedError
from p2pmsg.message import Message
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.start import parse_start
from p2pmsg.stats import SubscriberStats
from p2pmsg.subscriber.core import Intake, SubscriberCore
from p2pmsg.subscriber.effects import Action, Send
from p2pmsg.wire import Frame, Kind
from transports.own_log import own_log

_DATA, _REQUEST, _REPLY = range(3)
_HEADER: Final = Struct(">BI")  # channel, length
_OUT_BYTES: Final = 256 * 1024
_FRAMES_MAX, _HELD_S = 64, 0.005


class _End:
    """One end of the socket pair: frames of three channels."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end
        self.came: tuple[deque[bytes], ...] = (deque(), deque(), deque())
        self._in, self.out = bytearray(), bytearray()

    def has_space(self) -> bool:
        return len(self.out) < _OUT_BYTES

    def send(self, channel: int, frame: bytes | memoryview) -> None:
        self.out += _HEADER.pack(channel, len(frame)) + frame

    def read(self) -> None:
        self._in += self.socket.recv(_OUT_BYTES)
        at = _HEADER.size
        while len(self._in) >= at:
            channel, length = _HEADER.unpack_from(self._in, at - _HEADER.size)
            if len(self._in) < at + length:
                break
            self.came[channel].append(bytes(self._in[at : at + length]))
            at += length + _HEADER.size
        del self._in[: at - _HEADER.size]


class PeerPair:
    """A publisher and a subscriber that has joined it; nothing happens outside of its calls.

    `TimeoutError` where they did not join each other within 30 s.

    Args:
        topics: what the subscriber takes. Default: all.
        drop_every: each so-many-th data frame is lost on its way, repairs are not. 0: none.

    """

    @checked()
    def __init__(self, topics: Collection[str] = (), *, drop_every: int = 0) -> None:
        rng, now_ns = Random(), time.monotonic_ns()
        self._publisher = PublisherCore(
            name="publisher", session=rng.getrandbits(64), recovery="pair",
            config=PublisherConfig(), now_ns=now_ns,
        )  # fmt: skip
        self._subscriber = SubscriberCore(
            topics=list(topics), lines=1, start=parse_start("latest"), name="subscriber",
            subscriber=rng.getrandbits(64), config=SubscriberConfig(),
            rng=rng, now_ns=now_ns,
        )  # fmt: skip
        self._here, self._there = map(_End, socket.socketpair())
        self._prefixes = {*wire.topic_prefixes(topics or ["*"]), wire.control_prefix(Kind.WELCOME)}
        self._drop_every, self._data_frames, self._closed = drop_every, 0, False
        self._here.send(_DATA, self._publisher.welcome)
        if not self._run(lambda: self._publisher.joined > 0, 30.0):
            raise TimeoutError("the subscriber has not joined within 30 s")

    def publish(self, topic: str, value: Any) -> int:
        """Publish `value` under `topic`; return its sequence. `ClosedError` after `close`."""
        if self._closed:
            raise ClosedError("the pair")
        self._run(self._here.has_space)
        return self._publisher.publish(
            topic, value, None, None, None, now_ns=time.monotonic_ns(), wall_ns=time.time_ns()
        )

    def receive(self, timeout: float | None = None) -> list[Message]:
        """Return a topic's next messages, none after `close`; `TimeoutError` after `timeout` s."""
        ready = self._subscriber.ready
        while self._closed or self._run(lambda: len(ready) > 0, timeout):
            taken = ready.take(now_ns=time.monotonic_ns())
            if taken is None:
                return []
            if messages := list(taken[4]):
                return messages
        raise TimeoutError(f"no message within {timeout} s")

    def __iter__(self) -> Iterator[list[Message]]:
        return iter(self.receive, [])

    def close(self, timeout: float = 5.0) -> bool:
        """End both; what came may be received. False: in `timeout` seconds not everything came."""
        if not self._closed:
            self._publisher.begin_close(now_ns=time.monotonic_ns())
            self._run(lambda: not self._publisher.requests.incomplete, timeout)
            self._closed = True
            self._here.socket.close()
            self._there.socket.close()
        return not self._publisher.requests.incomplete

    def stats(self) -> SubscriberStats:
        """Return the subscriber's ledger and counters."""
        return self._subscriber.stats()

    def _run(self, is_done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Do rounds, one at least, until `is_done`; False when the time is up."""
        end_s = float("inf") if timeout is None else time.monotonic() + timeout
        self._round(0.0)
        while not (done := is_done()) and (left_s := end_s - time.monotonic()) > 0:
            self._round(left_s)
        return done

    def _round(self, wait_s: float) -> None:
        """Wait until something comes or is due, and do it."""
        here, there, now_ns = self._here, self._there, time.monotonic_ns()
        due_ns: list[int | None] = [self._subscriber.next_deadline_ns()]
        if here.has_space():
            requests = self._publisher.requests
            due_ns += self._publisher.next_deadline_ns(), requests.next_deadline_ns(now_ns=now_ns)
        wait_s = min(wait_s, *((due - now_ns) / 1e9 for due in due_ns if due is not None))
        held = sum(map(len, there.came))
        ends = {end.socket: end for end in (here, there)}
        can_read, can_write, _ = select.select(
            [here.socket] if held >= _FRAMES_MAX else ends,
            [end.socket for end in ends.values() if end.out],
            (),
            max(0.0, min(wait_s, _HELD_S) if held else wait_s),
        )
        for one in can_read:
            ends[one].read()
        for one in can_write:
            del ends[one].out[: one.send(ends[one].out)]
        self._serve(time.monotonic_ns())
        self._take(time.monotonic_ns())

    def _serve(self, now_ns: int) -> None:
        """Do the publisher's part of a round."""
        core, end, requests = self._publisher, self._here, self._publisher.requests
        while end.came[_REQUEST]:
            requests.receive(b"subscriber", end.came[_REQUEST].popleft(), now_ns=now_ns)
        if end.has_space():
            core.handle_timer(now_ns=now_ns)
            for frame in core.frames_to_send():
                self._data_frames += (is_data := Frame(bytes(frame)).kind == Kind.DATA)
                if not (is_data and self._drop_every and self._data_frames % self._drop_every == 0):
                    end.send(_DATA, frame)
        while end.has_space() and (reply := requests.next_reply(now_ns=now_ns)) is not None:
            end.send(_REPLY, reply.frame)
            requests.reply_sent(reply, now_ns=now_ns)

    def _take(self, now_ns: int) -> None:
        """Do the subscriber's part of a round."""
        core, end = self._subscriber, self._there
        while end.came[_REPLY] and not core.replies_full:
            reply = end.came[_REPLY].popleft()
            core.receive_reply(self._publisher.session, reply, now_ns=now_ns)
        while end.came[_DATA] and (intake := core.intake(now_ns)) is not Intake.HOLD:
            if (frame := end.came[_DATA].popleft()).startswith(tuple(self._prefixes)):
                core.receive_frame(0, frame, now_ns=now_ns, shed=intake is Intake.SHED)
        if now_ns >= core.next_deadline_ns():
            core.handle_timer(now_ns=now_ns)
        for effect in core.effects():
            if isinstance(effect, Send):
                end.send(_REQUEST, effect.frame)
            elif effect.what is Action.SUBSCRIBE:
                self._prefixes.add(effect.prefix)
            elif effect.what is Action.UNSUBSCRIBE:
                self._prefixes.discard(effect.prefix)
            elif effect.what is Action.RECONNECT:  # a new connection begins with a welcome
                self._here.send(_DATA, self._publisher.welcome)
            elif effect.what is Action.WARN:
                own_log.warning("%s", effect.text)
