"""Testing with p2pmsg: a network in memory, a clock moved by hand, a TCP proxy, kernel drops.

Peers there are the very ones that run over real sockets, with time and chance under control: the
same seed and the same calls give the same run.
"""

from p2pmsg.testing.clock import ManualClock
from p2pmsg.testing.kernel_loss import lose_datagrams
from p2pmsg.testing.proxy import TcpProxy
from p2pmsg.testing.virtual import VirtualNetwork
from p2pmsg.testing.virtual_peers import (
    VirtualAioPublisher,
    VirtualAioSubscriber,
    VirtualProcess,
    VirtualPublisher,
    VirtualRelay,
    VirtualSubscriber,
)

__all__ = [
    "ManualClock",
    "TcpProxy",
    "VirtualAioPublisher",
    "VirtualAioSubscriber",
    "VirtualNetwork",
    "VirtualProcess",
    "VirtualPublisher",
    "VirtualRelay",
    "VirtualSubscriber",
    "lose_datagrams",
]
