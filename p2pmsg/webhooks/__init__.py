"""Webhooks: streams to HTTP endpoints (`Sender`), and HTTP requests into a stream (`receive`).

Each name is imported when it is first used; `receive` needs no package but p2pmsg.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2pmsg.webhooks.endpoint import Endpoint as Endpoint
    from p2pmsg.webhooks.intake import receive as receive
    from p2pmsg.webhooks.letters import Letter as Letter
    from p2pmsg.webhooks.sender import Sender as Sender
    from p2pmsg.webhooks.stats import EndpointStats as EndpointStats
    from p2pmsg.webhooks.stats import HookEvent as HookEvent
    from p2pmsg.webhooks.stats import SenderStats as SenderStats

_HOME = {
    "Endpoint": "endpoint",
    "EndpointStats": "stats",
    "HookEvent": "stats",
    "Letter": "letters",
    "Sender": "sender",
    "SenderStats": "stats",
    "receive": "intake",
}
__all__ = [
    "Endpoint",
    "EndpointStats",
    "HookEvent",
    "Letter",
    "Sender",
    "SenderStats",
    "receive",
]


def __getattr__(name: str) -> Any:
    """Import what is first named here.

    Raises:
        AttributeError: there is no such name.

    """
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
