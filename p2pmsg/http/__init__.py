"""HTTP and the browser: streams as Server-Sent Events, and requests that publish (`Gateway`).

`bind`, `make_server` and `run` serve it, or `p2pmsg.webhooks.receive`, by uvicorn.
"""

from p2pmsg.http.gateway import BODY_BYTES_MAX, Gateway, GatewayConfig, GatewayStats
from p2pmsg.http.serving import bind, make_server, run

__all__ = [
    "BODY_BYTES_MAX",
    "Gateway",
    "GatewayConfig",
    "GatewayStats",
    "bind",
    "make_server",
    "run",
]
