"""The peers for asyncio: the same names, arguments and protocol as the threaded ones.

All of them are imported at once, with what they import when they are first used, so that no event
loop waits for it: that takes some 0.1 s more than one of them, and 6 MB. Where an event loop runs
already, each is imported when it is first named. `import p2pmsg` imports none.
"""

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2pmsg.aio import metrics as metrics
    from p2pmsg.peers.loop.publisher import Publisher as Publisher
    from p2pmsg.peers.loop.puller import Puller as Puller
    from p2pmsg.peers.loop.pusher import Pusher as Pusher
    from p2pmsg.peers.loop.relay import Relay as Relay
    from p2pmsg.peers.loop.requester import Requester as Requester
    from p2pmsg.peers.loop.responder import Responder as Responder
    from p2pmsg.peers.loop.subscriber import Subscriber as Subscriber
    from p2pmsg.requests.answers import Answer as Answer

__all__ = [
    "Answer",
    "Publisher",
    "Puller",
    "Pusher",
    "Relay",
    "Requester",
    "Responder",
    "Subscriber",
]

_HOME = {
    "Answer": "p2pmsg.requests.answers",
    "Publisher": "p2pmsg.peers.loop.publisher",
    "Puller": "p2pmsg.peers.loop.puller",
    "Pusher": "p2pmsg.peers.loop.pusher",
    "Requester": "p2pmsg.peers.loop.requester",
    "Responder": "p2pmsg.peers.loop.responder",
    "Relay": "p2pmsg.peers.loop.relay",
    "Subscriber": "p2pmsg.peers.loop.subscriber",
}


_FIRST_USED = ("concurrent.futures.thread", "msgpack", "p2pmsg.driver.loop", "p2pmsg.peers.stats")
"""For what waits for the disk, for values that msgspec does not pack, and for `stats()`."""


def __getattr__(name: str) -> Any:
    """Import what is first named here.

    Raises:
        AttributeError: there is no such name.

    """
    if name == "metrics":
        return import_module("p2pmsg.aio.metrics")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "metrics"})


try:
    asyncio.get_running_loop()
except RuntimeError:
    for _name in (*_HOME.values(), "p2pmsg.aio.metrics", *_FIRST_USED):
        import_module(_name)
