"""Metrics whose totals are exact, and the same calls for a plain StatsD server."""

from p2pmsg.metrics.threads.client import Client
from p2pmsg.statsd import ExactTotals, LostDeltas, UnfinishedClient

__all__ = ["Client", "ExactTotals", "LostDeltas", "UnfinishedClient"]
