"""Reading exact ranges and heads of streams, without subscribing."""

from p2pmsg.peers.threads.heads_watch import HeadsWatch
from p2pmsg.peers.threads.range_reader import RangeReader
from p2pmsg.ranges.heads import EndpointHeads, Heads, StreamHead
from p2pmsg.ranges.place import SessionEntry

__all__ = ["EndpointHeads", "Heads", "HeadsWatch", "RangeReader", "SessionEntry", "StreamHead"]
