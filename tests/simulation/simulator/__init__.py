"""The network simulator: real peers, applications that publish and read at random, an oracle."""

from tests.simulation.simulator.options import NetworkOptions
from tests.simulation.simulator.publisher import SimulatedPublisher
from tests.simulation.simulator.relay import SimulatedRelay
from tests.simulation.simulator.simulation import Simulation
from tests.simulation.simulator.subscriber import SimulatedSubscriber

__all__ = [
    "NetworkOptions",
    "SimulatedPublisher",
    "SimulatedRelay",
    "SimulatedSubscriber",
    "Simulation",
]
