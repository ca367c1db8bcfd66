"""Webhooks: streams to HTTP endpoints (`Sender`), and HTTP requests into a stream (`receive`).

`receive` needs no package but p2pmsg.
"""

from p2pmsg.webhooks.endpoint import ORDERS, Endpoint, EndpointStats, HookEvent, SenderStats
from p2pmsg.webhooks.events import message_bytes_of
from p2pmsg.webhooks.formats import FORMATS
from p2pmsg.webhooks.intake import receive
from p2pmsg.webhooks.letters import Letter, Letters, folders
from p2pmsg.webhooks.sender import Sender
from p2pmsg.webhooks.signatures import OUT_SCHEMES, SCHEMES

__all__ = [
    "FORMATS",
    "ORDERS",
    "OUT_SCHEMES",
    "SCHEMES",
    "Endpoint",
    "EndpointStats",
    "HookEvent",
    "Letter",
    "Letters",
    "Sender",
    "SenderStats",
    "folders",
    "message_bytes_of",
    "receive",
]
