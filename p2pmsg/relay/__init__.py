"""A relay: it receives streams and serves them on, under their own sessions and sequences.

::

    upstreams ──▶ SubscriberCore ──Transfer──▶ RelayCore ──▶ replay buffer, log, outbox
                                               │
                 a RelayedSession a session: its heads, heartbeats, probes, NACKs
"""

from p2pmsg.relay.stats import RelayedSessionStats, RelayStats

__all__ = ["RelayStats", "RelayedSessionStats"]
