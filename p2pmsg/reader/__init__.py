"""Reading exact ranges and heads of streams, without subscribing."""

from p2pmsg.reader.heads_watch import HeadsWatch
from p2pmsg.reader.reader import Heads, RangeReader, SessionEntry, StreamHead

__all__ = ["Heads", "HeadsWatch", "RangeReader", "SessionEntry", "StreamHead"]
