"""Requests and replies: ask one of several, or all.

A handler returns `LEFT` to leave a request unanswered, so that another responder is asked, and
`EXPIRED` where it had to wait while its requester stopped waiting; `is_wanted` says whether it did.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from p2pmsg.requests.answers import Answer

if TYPE_CHECKING:
    from p2pmsg.peers.handling import is_wanted
    from p2pmsg.peers.threads.requester import Requester
    from p2pmsg.peers.threads.responder import Responder
    from p2pmsg.requests.responder_engine import EXPIRED, LEFT

__all__ = ["EXPIRED", "LEFT", "Answer", "Requester", "Responder", "is_wanted"]

_HOMES = {
    "EXPIRED": "p2pmsg.requests.responder_engine",
    "LEFT": "p2pmsg.requests.responder_engine",
    "Requester": "p2pmsg.peers.threads.requester",
    "Responder": "p2pmsg.peers.threads.responder",
    "is_wanted": "p2pmsg.peers.handling",
}


def __getattr__(name: str) -> Any:
    """Import what is made of this package, or by few needed, when it is first named.

    Raises:
        AttributeError: there is no such name.

    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
