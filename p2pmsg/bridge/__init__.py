"""Bridges between p2pmsg and plain ZeroMQ programs; see the README of this package."""

from p2pmsg.bridge.bridge import Bridge
from p2pmsg.bridge.config import BridgeConfig
from p2pmsg.bridge.stats import BridgeStats

__all__ = ["Bridge", "BridgeConfig", "BridgeStats"]
