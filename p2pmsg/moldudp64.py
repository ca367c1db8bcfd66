"""Publishing a MoldUDP64 feed. To read one, subscribe to `mold://GROUP:PORT`."""

from p2pmsg.sync.mold_publisher import MoldPublisher, MoldPublisherStats

__all__ = ["MoldPublisher", "MoldPublisherStats"]
