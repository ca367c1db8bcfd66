"""What the simulated network does to frames, and the processes to themselves."""

from dataclasses import dataclass
from typing import Literal

from p2pmsg.checks import at_least, check_fields
from p2pmsg.config import OnFull


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """The circumstances of a simulation. `ConfigError` for a value out of its limits.

    The defaults are a clean network: every frame arrives once, in order, within a millisecond.
    """

    seed: int = 0
    """All that is random comes from it: the same options give the same run."""

    loss: float = 0.0
    """Part of the frames on the data path that are lost, 0 to 1, welcome messages included. TCP
    itself loses none; full queues and cut connections do."""

    recovery_loss: float | None = None
    """Part of the requests and replies on the recovery channel that are lost. None: as `loss`."""

    duplication: float = 0.0
    """Part of the frames that arrive twice, on both channels. TCP does not do that."""

    reordering: float = 0.0
    """Part of the frames that others may overtake, on both channels: they take up to
    `reordering_delay` longer. TCP keeps the order within a connection."""

    reordering_delay: float = 0.01
    """How much longer a frame takes at most that others may overtake, in seconds."""

    delay_min: float = 0.0001
    """Shortest time that a frame takes, in seconds."""

    delay_max: float = 0.001
    """Longest time that a frame takes, in seconds, reordering aside."""

    bytes_per_s: float = 0.0
    """How many bytes a path between two carries a second, each way; what is sent sooner waits in
    front of it, in order. 0: any number."""

    partitions_per_s: float = 0.0
    """How often a publisher and a subscriber are cut off from one another, on average. Frames
    between them are lost for `partition_time`, and no connection notices."""

    partition_time: float = 0.3
    """How long a partition lasts on average, in seconds."""

    one_way_paths_per_s: float = 0.0
    """How often the data path from a publisher to a subscriber goes dead, on average. What is sent
    there is lost for `one_way_time`, and no connection notices; the recovery channel works on."""

    one_way_time: float = 6.0
    """How long a data path is dead on average, in seconds."""

    narrow_paths_per_s: float = 0.0
    """In a multicast, how often the path between a publisher and a subscriber comes to carry small
    datagrams only, on average: larger ones are lost for `narrow_time`, in both directions."""

    narrow_time: float = 6.0
    """How long a path is narrow on average, in seconds."""

    narrow_bytes: int = 200
    """The largest datagrams that a narrow path carries, in bytes; publishers make 400 at most."""

    cuts_per_s: float = 0.0
    """How often a connection of the data path is cut and made again, on average; every other time
    the recovery channel is cut, too. What was on its way is lost."""

    publisher_crashes_per_s: float = 0.0
    """How often a publisher dies, on average. It comes back as a new session, or with a log in the
    same one."""

    log: bool = False
    """Whether publishers have a local log."""

    system_crashes: float = 0.0
    """Part of the crashes that are the operating system's, 0 to 1: what was written and not yet
    synced is gone. It matters with `log` and `cursor` only."""

    fsync: Literal["never", "interval", "always"] = "interval"
    """When a log is synced, and a cursor: with `interval` every other commit."""

    subscriber_crashes_per_s: float = 0.0
    """How often a subscriber dies, on average. It comes back as a new subscriber, or with a cursor
    where it was."""

    cursor: bool = False
    """Whether subscribers have a cursor."""

    commits_per_s: float = 50.0
    """How often a subscriber with a cursor commits, on average: everything, or a part."""

    join_kills: float = 0.0
    """Part of the steps of a join, 0 to 1, at which one of the two processes dies: right before or
    right after a WELCOME, PROBE, ECHO or JOINED arrives, or data of a session that is not joined
    yet, or a cursor notes a session. The process comes back after about `restart_delay`."""

    gone_for_good: float = 0.0
    """Part of the publishers killed by `join_kills` that never come back, 0 to 1."""

    restart_delay: float = 0.2
    """How long a process that died stays away on average, in seconds."""

    read_time: float = 0.0
    """How long an application takes for a frame that it received, in seconds. 0: no time at all."""

    read_stops_per_s: float = 0.0
    """How often an application stops reading, on average."""

    read_stop_time: float = 0.5
    """How long it stops on average, in seconds."""

    process_stops_per_s: float = 0.0
    """How often a subscriber's whole process stops, on average, as by SIGSTOP: it reads nothing,
    asks for nothing and answers nothing; what comes waits in its queue, or is lost."""

    process_stop_time: float = 0.5
    """How long it stops on average, in seconds."""

    buffer_datagrams: int = 4096
    """In a multicast, how many datagrams a receive buffer holds; more are lost silently."""

    datagram_time: float = 0.0
    """In a multicast, how long a subscriber takes to read a datagram, in seconds. 0: no time."""

    queue_frames: int = 64
    """Bound of each queue of frames, at both ends together."""

    on_full: OnFull = "block"
    """What a publisher does when a queue is full; see `PublisherConfig.on_full`."""

    stall_timeout: float = 1.0
    """How long a slow subscriber may hold up a publisher, in seconds."""

    replay_bytes: int = 64 * 2**20
    """Bound of a publisher's replay buffer, in bytes."""

    receive_bytes: int = 16 * 2**20
    """Bound on what waits at a subscriber, in bytes; at least 64 KiB."""

    repair_timeout: float = 10.0
    """How long a gap is waited for without progress, in seconds."""

    messages_per_s: float = 200.0
    """How many messages each publisher sends a second, on average."""

    bytes_max: int = 64
    """Largest value, in bytes; sizes are spread evenly up to it."""

    topics: int = 2
    """How many topics each publisher has; each message belongs to one of them by chance."""

    multicast: bool = False
    """Whether publishers send datagrams to a group each, which no queue holds up and no connection
    carries; NACKs and their answers go by datagram too, before the recovery channel is asked."""

    shared_loss: float = 0.0
    """In a multicast, part of the datagrams that all subscribers lose, 0 to 1: what a link
    does that is common to them."""

    answers_loss: float = 0.0
    """In a multicast, part of the datagrams to a publisher that are lost, 0 to 1. 1: as where a
    firewall lets only the group's port through."""

    parity: int = 0
    """In a multicast, how many datagrams of parity follow four of data. 0: none."""

    forged_per_s: float = 0.0
    """How often a stranger sends a burst of forged frames of one kind, on average: to the groups
    and to the publishers in a multicast, and over a recovery channel of its own. Data with the next
    sequences of a stream are not among them: without keys those are believed."""

    sealed: bool = False
    """In a multicast, whether datagrams are sealed. The stranger then hears them all and knows no
    key: it forges, cuts, changes, delays and repeats them, and has no recovery channel."""

    signed: bool = False
    """Where datagrams are sealed, whether publishers sign them, too. Half of what the stranger
    sends is then sealed with the group's key, as a member could do it."""

    rotations_per_s: float = 0.0
    """Where datagrams are sealed, how often a publisher begins to use another key, on average."""

    heartbeats_per_s: float = 400.0
    """How many heartbeats idle streams of a publisher have together a second."""

    heartbeats: bool = True
    """Whether publishers send heartbeats. Without, a lost tail of a stream goes unnoticed: that is
    what shows that the checks find something."""

    def __post_init__(self) -> None:
        shares = dict.fromkeys((
            "loss", "recovery_loss", "shared_loss", "answers_loss", "duplication", "reordering",
            "system_crashes", "join_kills", "gone_for_good",
        ), (0, 1))  # fmt: skip
        check_fields(self, **shares, topics=1, buffer_datagrams=1)
        at_least("delay_max", self.delay_max, self.delay_min)
