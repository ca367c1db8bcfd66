"""Publishing a MoldUDP64 feed. To read one, subscribe to `mold://GROUP:PORT`."""

from p2pmsg.peers.mold_publisher import MoldPublisherStats
from p2pmsg.peers.threads.mold_publisher import MoldPublisher

__all__ = ["MoldPublisher", "MoldPublisherStats"]
