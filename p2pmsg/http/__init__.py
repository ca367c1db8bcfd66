"""HTTP and the browser: streams as Server-Sent Events, and requests that publish (`Gateway`)."""

from p2pmsg.http.app import Gateway, GatewayConfig, GatewayStats

__all__ = ["Gateway", "GatewayConfig", "GatewayStats"]
