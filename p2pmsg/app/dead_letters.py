"""Where an app keeps what no handler could do."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

from p2pmsg.aio import Publisher, Pusher
from p2pmsg.app.events import Event
from p2pmsg.app.policy import DeadLetter
from p2pmsg.config import PublisherConfig, SubscriberConfig
from p2pmsg.queue import FRAME_BYTES_MAX, PusherConfig, reason_of

_IN_FLIGHT_MAX: Final = 100_000
_ERROR_CHARACTERS_MAX: Final = 16_384
"""Of an exception's text, which may quote the value."""
_REST_OF_FRAME: Final = 512 * 1024
"""What a frame may have besides a letter: its header, and what was gathered before."""
Keep = Callable[[Any, str | None], Awaitable[None]]


def letter_of(event: Event, error: Exception) -> dict[str, Any]:
    """Return what is kept of an event."""
    letter: dict[str, Any] = {
        "handler": event.handler,
        "error": _short(reason_of(error)),
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
        limit = letter.message_bytes_max or SubscriberConfig().frame_bytes_max - _REST_OF_FRAME
        config = PublisherConfig(message_bytes_max=limit)
        made = Publisher(letter.publish, log=letter.log, config=config)
        publisher = await stack.enter_async_context(made)

        async def publish(value: Any, key: str | None) -> None:
            publisher.publish(letter.topic, value, key)
            await publisher.drain()

        return publish
    assert letter.push is not None
    limit = letter.message_bytes_max or FRAME_BYTES_MAX - _REST_OF_FRAME
    jobs = PusherConfig(message_bytes_max=limit, in_flight_max=_IN_FLIGHT_MAX)
    pusher = await stack.enter_async_context(Pusher(letter.push, log=letter.log, config=jobs))

    async def push(value: Any, key: str | None) -> None:
        pusher.push(value, key)  # raises where it is full, so that the app stops

    return push


def _short(text: str) -> str:
    """Return a text as it can be packed, and not too long."""
    if len(text) > _ERROR_CHARACTERS_MAX:
        text = f"{text[:_ERROR_CHARACTERS_MAX]} … ({len(text)} characters)"
    return text.encode(errors="replace").decode()
