"""What the simulated network does to frames, and the processes to themselves."""

from dataclasses import dataclass, field

from p2pmsg.config import PublisherConfig, SubscriberConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """The circumstances of a simulation: by default each frame arrives once, in order, within 1 ms.

    Partitions, cut connections and crashes are calls: `simulation.at_rate(2.0, fault)` has them at
    random times.
    """

    seed: int = 0
    """All that is random comes from it: the same options give the same run."""
    loss: float = 0.0
    """Part of the frames that are lost on both channels, as by full queues and cut connections."""
    duplication: float = 0.0
    reordering: float = 0.0
    """Part of the frames that others may overtake, on both channels."""
    delay: tuple[float, float] = (0.0001, 0.001)
    """Shortest and longest time that a frame takes, in seconds, reordering aside."""
    bytes_per_s: float = 0.0
    """How many bytes a path between two carries a second, each way; what is sent sooner waits in
    front of it, in order. 0: any number."""
    log: bool = False
    """Whether publishers have a local log."""
    cursor: bool = False
    """Whether subscribers have a cursor. They commit 50 times a second on average, everything or a
    part."""
    system_crashes: float = 0.0
    """Part of the crashes that are the operating system's: what was written and not yet synced is
    gone. It matters with `log` and `cursor` only."""
    fsync: str = "interval"
    """When a log is synced, and a cursor: with `interval` every other commit."""
    read_time: float = 0.0
    """How long an application takes for a frame that it received, in seconds."""
    messages_per_s: float = 200.0
    """How many messages each publisher sends a second, on average."""
    bytes_max: int = 64
    """Largest value, in bytes; sizes are spread evenly up to it."""
    topics: int = 2
    """How many topics each publisher has; each message belongs to one of them by chance."""
    multicast: str = ""
    """Whether publishers send datagrams to a group each: `open`, `sealed` with the group's key, or
    `signed` by their publisher, too. Default: connections."""
    publisher: PublisherConfig = field(default_factory=lambda: PublisherConfig(frame_bytes=1024))
    subscriber: SubscriberConfig = field(default_factory=SubscriberConfig)
