"""The metrics client for asyncio."""

from p2pmsg.metrics.loop.client import Client

__all__ = ["Client"]
