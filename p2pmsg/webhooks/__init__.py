"""Webhooks: streams to HTTP endpoints (`Sender`), and HTTP requests into a stream (`receive`).

`receive` needs no package but p2pmsg.
"""

from p2pmsg.webhooks.endpoint import Endpoint
from p2pmsg.webhooks.intake import receive
from p2pmsg.webhooks.letters import Letter
from p2pmsg.webhooks.sender import Sender
from p2pmsg.webhooks.stats import EndpointStats, HookEvent, SenderStats

__all__ = [
    "Endpoint",
    "EndpointStats",
    "HookEvent",
    "Letter",
    "Sender",
    "SenderStats",
    "receive",
]
