"""Requests and replies: ask one of several, or all."""

from importlib import import_module
from typing import Any

from p2pmsg.requests.answers import Answers

__all__ = ["Answers", "Requester", "Responder"]


def __getattr__(name: str) -> Any:
    """Import a peer, which knows this package, when it is first named.

    Raises:
        AttributeError: there is no such name.

    """
    if name not in ("Requester", "Responder"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"p2pmsg.peers.threads.{name.lower()}"), name)
    return value
