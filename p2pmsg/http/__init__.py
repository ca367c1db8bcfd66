"""HTTP and the browser: streams as Server-Sent Events, and requests that publish (`Gateway`).

Each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2pmsg.http.app import Gateway as Gateway
    from p2pmsg.http.app import GatewayConfig as GatewayConfig
    from p2pmsg.http.app import GatewayStats as GatewayStats

__all__ = ["Gateway", "GatewayConfig", "GatewayStats"]


def __getattr__(name: str) -> Any:
    """Import what is first named here.

    Raises:
        AttributeError: there is no such name.

    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.app"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
