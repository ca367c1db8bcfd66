"""Settings, with the reason for each default. Constructors take the few that most people set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from p2pmsg.checks import at_least, check, check_busy_wait, of_kind, whole
from p2pmsg.multicast.config import MulticastPublisherConfig, MulticastSubscriberConfig
from recovery import HeartbeatConfig, NackConfig, ReplayConfig, RetransmitConfig

OnFull = Literal["block", "drop", "raise"]
LINGER_MS_MIN: Final = 0.1
"""What `linger_ms` counts for at least, so that 0 still gathers what comes at once."""
_BULK_FRAMES: Final = 2
_FRAMES_KEPT: Final = 16
_ROOMY_BYTES: Final = 64 * 1024

__all__ = [
    "LINGER_MS_MIN",
    "OnEnd",
    "OnFull",
    "PublisherConfig",
    "SubscriberConfig",
    "at_least",
    "check",
    "check_busy_wait",
    "of_kind",
    "whole",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherConfig:
    """How a publisher works. `ConfigError` for a value out of its limits."""

    frame_bytes: int = 128 * 1024
    """A frame is sent when it has this many bytes. 128 KiB: frames of that size are sent without a
    copy, and publishing takes a sixth less time than with 64 KiB; larger ones gain little, and this
    many bytes of small messages take 0.4 ms to gather at full rate. `publish_many` has its messages
    at hand and fills frames of twice as many. Both are smaller, down to 64 KiB, where the replay
    buffer would hold fewer than 16."""

    linger_ms: float = 1.0
    """How long a message waits at most for others to share its frame, while messages follow one
    another closely. A message that comes alone does not wait at all."""

    gather_us: float = 20.0
    """Messages closer together than this are gathered. Sending a frame costs about half as long, so
    a stream that is slower gains nothing from waiting."""

    message_bytes_max: int = 1024 * 1024
    """Largest message, packed, with its key and headers. 1 MiB as with Kafka and NATS; what is
    larger belongs into a file and its name into a message."""

    queue_frames: int = 64
    """High-water mark of the send queue to each subscriber, in frames: 8 MiB of small messages,
    20 ms at full rate. The memory that a subscriber who does not read can cost."""

    on_full: OnFull = "block"
    """What `publish` does when a subscriber's queue is full. `block` waits up to `stall_ms`, then
    sheds the slow one only, who repairs from the replay buffer when it reads again. `drop` sheds at
    once. `raise` refuses the next messages with `QueueFullError`."""

    stall_ms: float = 1000.0
    """How long one slow subscriber may hold up the others in all. 1 s outlasts a garbage collection
    or a page-in."""

    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Bounds of the replay buffer."""

    retransmit: RetransmitConfig = field(
        default_factory=lambda: RetransmitConfig(
            budget_bytes_s=2**32, budget_burst_bytes=128 * 2**20
        )
    )
    """Bounds on what one requester may ask for. 4 GiB/s, more than one TCP connection carries on
    one machine, so that its own queue holds a requester back: who replays, or a Spark task that
    reads history, may be as fast as who follows live, which is 2 GiB/s."""

    heartbeat: HeartbeatConfig = field(default_factory=HeartbeatConfig)
    """When a stream's head is repeated, so that a lost tail is noticed."""

    streams_max: int = 65_536
    """How many topics; a further one is refused with `ConfigError`. Bounds the heartbeats."""

    subscriber_timeout_ms: float = 15_000.0
    """A subscriber that has not been heard of for so long is no longer counted: three of its
    keep-alives."""

    multicast: MulticastPublisherConfig = field(default_factory=MulticastPublisherConfig)
    """What matters where the endpoint is `udp://`."""

    def __post_init__(self) -> None:
        whole("frame_bytes", self.frame_bytes, 1024)
        at_least("linger_ms", self.linger_ms, 0)
        at_least("gather_us", self.gather_us, 0)
        whole("message_bytes_max", self.message_bytes_max, 1024)
        whole("queue_frames", self.queue_frames, 1)
        at_least("stall_ms", self.stall_ms, 1)
        whole("streams_max", self.streams_max, 1)
        at_least("subscriber_timeout_ms", self.subscriber_timeout_ms, 100)
        of_kind("replay", self.replay, ReplayConfig)
        of_kind("retransmit", self.retransmit, RetransmitConfig)
        of_kind("heartbeat", self.heartbeat, HeartbeatConfig)
        of_kind("multicast", self.multicast, MulticastPublisherConfig)
        check(
            "message_bytes_max", self.message_bytes_max, self.message_bytes_max < 2**31, "< 2**31"
        )
        modes = ("block", "drop", "raise")
        check("on_full", self.on_full, self.on_full in modes, f"one of {modes}")

    @property
    def full_bytes(self) -> int:
        """How many bytes a frame has when it is full."""
        return min(self.frame_bytes, self._frame_bytes_max)

    @property
    def bulk_bytes(self) -> int:
        """How many bytes a full frame of `publish_many` has."""
        return min(_BULK_FRAMES * self.frame_bytes, self._frame_bytes_max)

    @property
    def _frame_bytes_max(self) -> int:
        roomy = max(_ROOMY_BYTES, self.replay.bytes_max // _FRAMES_KEPT)
        return min(roomy, self.message_bytes_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberConfig:
    """How a subscriber works. `ConfigError` for a value out of its limits."""

    receive_bytes: int = 16 * 2**20
    """Bound on the bytes of frames that wait for `receive`, in order or for a repair. 16 MiB hold
    100 ms of a gigabit link. When it is met nothing more is read from the sockets."""

    queue_frames: int = 64
    """High-water mark of the receive queue of each connection, in frames, as at the publisher."""

    frame_bytes_max: int = 4 * 2**20
    """A publisher that sends a larger frame is disconnected. 4 MiB: four times the default limit of
    a message."""

    nack: NackConfig = field(default_factory=NackConfig)
    """How gaps are asked for; `deadline_ms` is how long without progress until one is reported."""

    publisher_timeout_ms: float = 5000.0
    """A publisher that was silent for so long is connected to anew, and what it still owes will be
    reported as `publisher_gone`: five of its slowest heartbeats."""

    streams_max: int = 65_536
    """How many streams; frames of a further one are dropped and counted."""

    keep_alive_ms: float = 5000.0
    """How often the publisher is told that this subscriber is there."""

    second_line_ms: float = 5.0
    """Where two lines carry the same stream, how long at least what one lost may come over the
    other before it is asked for, in ms. 5 ms: more than two ways through one building differ. It is
    longer where the later line was measured to be later, and ends once all lines are past the gap.
    """

    second_line_max_ms: float = 100.0
    """How long at most, in ms, where it is more than `second_line_ms`; also until the second line
    brought its first frame. 100 ms: more than two ways round the earth differ."""

    busy_wait_us: float = 200.0
    """How long a wait looks for the next message before it sleeps, in µs, at most 1000; 0 never
    looks. Being woken costs 40 µs. It looks only where this process publishes messages that stand
    alone, so where two take turns, and in one of 17 waits where that is in vain. It leaves its core
    to whoever wants it. 200 µs: twice as long as an answer takes from this machine."""

    busy_wait_always: bool = False
    """Whether it looks where this process only consumes, too. Messages that come one by one at more
    than 5,000 a second arrive 20 to 40 µs sooner, for a core that is in use all the time."""

    multicast: MulticastSubscriberConfig = field(default_factory=MulticastSubscriberConfig)
    """What matters where an endpoint is `udp://`."""

    def __post_init__(self) -> None:
        whole("receive_bytes", self.receive_bytes, 64 * 1024)
        whole("queue_frames", self.queue_frames, 1)
        whole("frame_bytes_max", self.frame_bytes_max, 64 * 1024)
        at_least("publisher_timeout_ms", self.publisher_timeout_ms, 100)
        whole("streams_max", self.streams_max, 1)
        at_least("keep_alive_ms", self.keep_alive_ms, 10)
        of_kind("nack", self.nack, NackConfig)
        at_least("second_line_ms", self.second_line_ms, 0)
        at_least("second_line_max_ms", self.second_line_max_ms, 0)
        check_busy_wait(self.busy_wait_us)
        of_kind("busy_wait_always", self.busy_wait_always, bool)
        of_kind("multicast", self.multicast, MulticastSubscriberConfig)


GapMode = Literal["wait", "raise", "skip", "latest"] | Callable[..., object]
OnGap = GapMode | Mapping[str, GapMode]
OnEnd = Literal["wait", "stop"] | Callable[..., object]
