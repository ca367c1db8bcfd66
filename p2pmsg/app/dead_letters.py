"""Where an app keeps what no handler could do."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from p2pmsg.aio.publisher import Publisher
from p2pmsg.aio.pusher import Pusher
from p2pmsg.app.events import Event
from p2pmsg.app.policy import DeadLetter
from p2pmsg.log import LogConfig
from p2pmsg.queue.running import reason_of

_IN_FLIGHT_MAX = 100_000
Keep = Callable[[Any, str | None], Awaitable[None]]


def letter_of(event: Event, error: Exception) -> dict[str, Any]:
    """Return what is kept of an event."""
    letter: dict[str, Any] = {
        "handler": event.handler,
        "error": reason_of(error),
        "attempts": event.attempt,
    }
    if event.message is not None:
        one = event.message
        letter |= {
            "topic": one.topic, "publisher": one.publisher, "session": one.session,
            "sequence": one.sequence, "key": one.key, "timestamp_ns": one.timestamp_ns,
            "headers": one.headers, "value": one.value,
        }  # fmt: skip
    elif event.job is not None:
        job = event.job
        letter |= {
            "session": job.session, "sequence": job.sequence, "key": job.key,
            "timestamp_ns": job.pushed_ns, "headers": job.headers, "value": job.value,
        }  # fmt: skip
    return letter


async def open_place(letter: DeadLetter, stack: AsyncExitStack) -> Keep:
    """Open the publisher or the pusher of dead letters, which `stack` closes."""
    if letter.publish is not None:
        log = None if letter.log is None else LogConfig(str(letter.log))
        publisher = await stack.enter_async_context(Publisher(letter.publish, log=log))

        async def publish(value: Any, key: str | None) -> None:
            publisher.publish(letter.topic, value, key)
            await publisher.drain()

        return publish
    assert letter.push is not None
    path = None if letter.log is None else str(letter.log)
    pusher = await stack.enter_async_context(
        Pusher(letter.push, log=path, in_flight_max=_IN_FLIGHT_MAX)
    )

    async def push(value: Any, key: str | None) -> None:
        pusher.push(value, key)  # raises where it is full, so that the app stops

    return push
