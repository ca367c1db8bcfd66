"""What the simulated network does to frames, and the processes to themselves."""

from dataclasses import dataclass, field
from typing import Literal

from p2pmsg.config import PublisherConfig, SubscriberConfig
from p2pmsg.toolkit import at_least, check_fields


def _small_frames() -> PublisherConfig:
    return PublisherConfig(frame_bytes=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """The circumstances of a simulation. `ConfigError` for a value out of its limits.

    Partitions, cut connections and crashes are calls: `simulation.at_rate(2.0, fault)` has them at
    random times.

    The defaults are a clean network: every frame arrives once, in order, within a millisecond.
    """

    seed: int = 0
    """All that is random comes from it: the same options give the same run."""

    loss: float = 0.0
    """Part of the frames that are lost, 0 to 1, on both channels. TCP itself loses none; full
    queues and cut connections do."""

    duplication: float = 0.0
    """Part of the frames that arrive twice, on both channels. TCP does not do that."""

    reordering: float = 0.0
    """Part of the frames that others may overtake, on both channels: they take up to 10 ms
    longer. TCP keeps the order within a connection."""

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
    """Part of the crashes that are the operating system's, 0 to 1: what was written and not yet
    synced is gone. It matters with `log` and `cursor` only."""

    fsync: Literal["never", "interval", "always"] = "interval"
    """When a log is synced, and a cursor: with `interval` every other commit."""

    read_time: float = 0.0
    """How long an application takes for a frame that it received, in seconds. 0: no time at all."""

    messages_per_s: float = 200.0
    """How many messages each publisher sends a second, on average."""

    bytes_max: int = 64
    """Largest value, in bytes; sizes are spread evenly up to it."""

    topics: int = 2
    """How many topics each publisher has; each message belongs to one of them by chance."""

    multicast: Literal["", "open", "sealed", "signed"] = ""
    """Whether publishers send datagrams to a group each, which no queue holds up and no connection
    carries; NACKs and their answers go by datagram too, before the recovery channel is asked.
    Datagrams are `open`, `sealed` with the group's key, or `signed` by their publisher, too.
    Default: connections."""

    publisher: PublisherConfig = field(default_factory=_small_frames)
    """Settings of publishers and relays, among them the bounds of queues and of the replay buffer.
    Default: frames of 1 KiB, so that few messages make several frames."""

    subscriber: SubscriberConfig = field(default_factory=SubscriberConfig)
    """Settings of subscribers, among them the bounds of their memory and `repair_timeout`."""

    def __post_init__(self) -> None:
        shares = dict.fromkeys(("loss", "duplication", "reordering", "system_crashes"), (0, 1))
        check_fields(self, **shares, topics=1)
        at_least("delay", self.delay[1], self.delay[0])
