"""Testing with p2pmsg: a network simulator, two peers in one thread, a TCP proxy, kernel drops.

The simulator runs the very state machines that run over real sockets, with time and chance under
control: a failing run is named by its seed, and the seed brings it back.
"""

from p2pmsg.testing.clock import ManualClock
from p2pmsg.testing.kernel_loss import lose_datagrams
from p2pmsg.testing.options import NetworkOptions
from p2pmsg.testing.proxy import TcpProxy
from p2pmsg.testing.simulated_publisher import SimulatedPublisher
from p2pmsg.testing.simulated_relay import SimulatedRelay
from p2pmsg.testing.simulated_subscriber import SimulatedSubscriber
from p2pmsg.testing.simulation import Simulation
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
    "NetworkOptions",
    "SimulatedPublisher",
    "SimulatedRelay",
    "SimulatedSubscriber",
    "Simulation",
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
