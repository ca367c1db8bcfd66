"""The responder for asyncio."""

# loop only
from collections.abc import Awaitable, Callable, Mapping

# threads only
# from collections.abc import Mapping
# both
from typing import TYPE_CHECKING, Any, Self

import transports
from p2pmsg.checks import BUSY_WAIT, checked, time_to_wait

# loop only
from p2pmsg.peers.handling import LoopServing as Serving

# threads only
# from p2pmsg.peers.handling import ThreadServing as Serving
# both
from p2pmsg.peers.responder import ResponderBase
from p2pmsg.requests.frames import MESSAGE_BYTES
from p2pmsg.requests.responder_engine import Handler

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

# loop only
AnyHandler = Handler | Callable[[Any], Awaitable[Any]]
# threads only
# AnyHandler = Handler
# both


class Responder(ResponderBase, Serving):
    """Answers requests: what a topic's handler returns is the reply.

    ::

        async with aio.Responder("tcp://127.0.0.1:5560", {"square": lambda n: n * n}) as responder:
            ...                                  # a background thread, or the loop, answers

    or `await responder.serve()`, in the caller's own thread or task. What a handler raises goes to
    the requester, with its type and text. A request that comes again is answered from a cache.

    With threads, handlers are functions. In an event loop, each call of a coroutine function is a
    task; a function is called in the loop, and must not block: give work that blocks to a thread,
    in a coroutine.

    `SystemExit` and `KeyboardInterrupt` of a handler go to the requester, too, and end the
    responder: `serve` raises them; the background thread cannot end the program, so it logs them as
    critical and closes the responder. In an event loop they end the loop.

    In a loop of another kind (trio's, one of your own) wait until one of `wait_fds()` is readable
    or `next_deadline` has come, and call `turn()`. What is to be awaited is begun with `begin`, as
    `begin(peer.close())`; at the end call `close_now()`. Handlers are functions there.

    Args:
        endpoint: where to bind.
        handlers: by topic; more with `on`. Default: none.
        type: what the value of each request is made before its handler gets it: a dataclass or any
            other type that `Subscriber(type=)` takes. One that does not fit is counted in
            `invalid_values` and answered with `InvalidValueError`, which names the place in it.
            Default None: what was sent.
        types: instead of `type`, types by topic, or by prefix followed by `*`. Default None.
        threads: with threads, how many requests are worked on at once. Default 1; more where
            handlers wait for something.
        tasks_max: in an event loop, how many requests are at work at once in coroutines. Default
            100.
        pending_max: how many requests may wait for one of several threads, or for such a task;
            further ones are left to be asked again, and counted in `refused`. Default 1000.
        cache_max: how many replies are kept. Default 10,000.
        cache_bytes_max: bytes of them. Default 64 MiB.
        cache_age: for how long, in seconds. Default 60: beyond the retries of most requests.
        message_bytes_max: largest reply, packed; at most 16 MiB, of which the header takes 1 KiB.
            The requester gets `MessageTooLargeError` for a larger one, as a `RemoteError`. Default
            1 MiB.
        busy_wait: how long it looks for the next request before it sleeps, in seconds; as for
            `Requester`. Default 0.0002.
        security: this peer's key, and whom it knows: only they connect, encrypted, and both ends
            known to each other. Default None: open.

    Raises:
        ConfigError: an argument is out of its limits, or the endpoint is none.
        BindError: the endpoint could not be bound.

    """

    # loop only
    @checked(busy_wait=BUSY_WAIT, message_bytes_max=MESSAGE_BYTES, tasks_max=1, pending_max=1)
    # threads only
    # @checked(busy_wait=BUSY_WAIT, message_bytes_max=MESSAGE_BYTES, threads=1, pending_max=1)
    # both
    def __init__(
        self,
        endpoint: str,
        handlers: Mapping[str, AnyHandler] | None = None,
        *,
        type: Any = None,  # noqa: A002  # as `Subscriber` calls it
        types: Mapping[str, Any] | None = None,
        # loop only
        tasks_max: int = 100,
        # threads only
        # threads: int = 1,
        # both
        pending_max: int = 1000,
        cache_max: int = 10_000,
        cache_bytes_max: int = 64 * 2**20,
        cache_age: float = 60.0,
        message_bytes_max: int = 1024 * 1024,
        busy_wait: float = transports.BUSY_WAIT_US / 1e6,
        security: "Security | None" = None,
    ) -> None:
        # loop only
        self._slots = tasks_max
        # threads only
        # self._slots = threads
        # both
        self._configure(
            endpoint, handlers, pending_max, cache_max, cache_bytes_max, cache_age,
            message_bytes_max, type, types, busy_wait, security,
        )  # fmt: skip

    def start(self) -> Self:
        """Answer requests from now on, in the event loop or in a background thread; return this.

        Raises:
            ClosedError: the responder is closed.
            RuntimeError: it was made in another event loop.

        """
        return self._start()

    async def serve(self) -> None:
        """Answer requests until `close` is called by another task or thread, or this is ended.

        Raises:
            ClosedError: the responder is closed, or another thread serves it already.
            SystemExit, KeyboardInterrupt: a handler raised it; the requester has its answer, and
                the responder goes on where this is called again.
            RuntimeError: it was made in another event loop.

        """
        await self._serve()

    async def close(self, timeout: float | None = None) -> None:
        """Stop answering: what is at work is finished and answered first.

        Args:
            timeout: how long to wait for that, in seconds; then, or where this is cancelled, the
                tasks at work are cancelled, and threads at work are left alone. Default None:
                without end.

        """
        if timeout is not None:
            timeout = time_to_wait("timeout", timeout)
        await self._close(timeout)
