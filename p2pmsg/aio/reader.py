"""Reading exact ranges and heads of streams in an event loop, without subscribing."""

from p2pmsg.peers.loop.heads_watch import HeadsWatch
from p2pmsg.peers.loop.range_reader import RangeReader

__all__ = ["HeadsWatch", "RangeReader"]
