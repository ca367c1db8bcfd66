"""Settings, with the reason for each default. Constructors take the few that most people set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from p2pmsg.checks import at_least, check, check_busy_wait, of_kind, whole
from recovery import (
    FeedbackConfig,
    GroupRepairConfig,
    HeartbeatConfig,
    NackConfig,
    ReassemblyConfig,
    ReplayConfig,
    RetransmitConfig,
)

if TYPE_CHECKING:
    from recovery import CursorConfig

OnFull = Literal["block", "drop", "raise"]
LINGER_MS_MIN: Final = 0.1
"""What `linger_ms` counts for at least, so that 0 still gathers what comes at once."""
_BULK_FRAMES: Final = 2
_FRAMES_KEPT: Final = 16
_ROOMY_BYTES: Final = 64 * 1024

__all__ = [
    "LINGER_MS_MIN",
    "CursorConfig",
    "FeedbackConfig",
    "GroupRepairConfig",
    "HeartbeatConfig",
    "MulticastPublisherConfig",
    "MulticastSubscriberConfig",
    "NackConfig",
    "OnEnd",
    "OnFull",
    "OnGap",
    "PublisherConfig",
    "ReassemblyConfig",
    "ReplayConfig",
    "RetransmitConfig",
    "SubscriberConfig",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MulticastPublisherConfig:
    """How a publisher uses `udp://`. `ConfigError` for a value out of its limits."""

    rate_limit_bytes_s: int = 1_250_000_000
    """How fast data leave, at most, in bytes a second. 10 Gbit/s; set it to what the slowest link
    to a subscriber carries."""

    burst_bytes: int = 1024 * 1024
    """How much leaves at once after a pause. 1 MiB: a sixteenth of a receive buffer."""

    flow_control: bool = True
    """Whether to wait for subscribers whose receive buffer would overflow, for `stall_ms` at most,
    where `on_full` is not `drop`. It looks at 64 subscribers; what the others miss is repaired."""

    datagram_bytes: int | None = None
    """Size of a datagram in bytes, without UDP and IP headers. None: what the interface carries in
    one packet, at most 1452, for Ethernet."""

    repair: GroupRepairConfig = field(default_factory=GroupRepairConfig)
    """How NACKs are answered, to all and to each: budgets, rates, linger."""

    announce_ms: float = 200.0
    """How often the session is announced to those who have not joined it yet. A newcomer waits half
    of that on average; 5 small datagrams a second cost nothing."""

    fec_data: int = 0
    """Forward error correction: datagrams in a block, after which parity follows. 0: none, since
    asking again takes less where a round trip takes a few ms."""

    fec_parity: int = 1
    """Parity datagrams after each block: so many of a block may be lost without asking. 1 is the
    exclusive or of the block; more need the package `zfec`."""

    def __post_init__(self) -> None:
        whole("rate_limit_bytes_s", self.rate_limit_bytes_s, 1000)
        whole("burst_bytes", self.burst_bytes, 1500)
        if self.datagram_bytes is not None:
            whole("datagram_bytes", self.datagram_bytes, 512)
        of_kind("repair", self.repair, GroupRepairConfig)
        at_least("announce_ms", self.announce_ms, 10)
        whole("fec_data", self.fec_data, 0)
        check("fec_data", self.fec_data, self.fec_data <= 64, "at most 64")
        whole("fec_parity", self.fec_parity, 1)
        check("fec_parity", self.fec_parity, self.fec_parity <= 16, "at most 16")


@dataclass(frozen=True, slots=True, kw_only=True)
class MulticastSubscriberConfig:
    """How a subscriber uses `udp://`. `ConfigError` for a value out of its limits."""

    buffer_bytes: int = 16 * 2**20
    """Wanted for the kernel's receive buffer (`SO_RCVBUF`). 16 MiB hold 20 ms of what one process
    can take in. Linux grants at most `net.core.rmem_max` without privilege; what was granted is in
    `stats()`, and a warning says when it is less."""

    feedback: FeedbackConfig = field(default_factory=FeedbackConfig)
    """How long to wait before asking, and for answers."""

    reorder_ms: float = 0.0
    """How long a datagram may be late before it counts as missing. 0: a local network keeps the
    order, and a subscriber that asks in vain has asked for one datagram too many."""

    unasked_ms: float = 20.0
    """Where nobody can be asked for what is missing (`mold://` without `request=`), how long a gap
    waits for datagrams that come out of order before it is reported lost, in ms; the wait for a
    second line comes on top. 20 ms: what a network reorders is less than 1 ms late."""

    parity_wait_ms: float = 10.0
    """Where a publisher sends parity, how long a gap waits for it before it is asked for, in ms.
    10 ms: a block is complete by then, or a heartbeat has ended it."""

    attempts_max: int = 4
    """Times that a gap is asked for by UDP; then the recovery channel, over TCP, is asked. Four in
    a row are lost once in 160,000 times at 5 % loss, and more often at 50 %."""

    history_messages: int = 65_536
    """A gap with more messages is asked for over the recovery channel at once: what one subscriber
    missed while it was away should not fill the network of all."""

    reassembly: ReassemblyConfig = field(default_factory=ReassemblyConfig)
    """Bounds on the parts of large messages."""

    def __post_init__(self) -> None:
        whole("buffer_bytes", self.buffer_bytes, 4096)
        of_kind("feedback", self.feedback, FeedbackConfig)
        at_least("reorder_ms", self.reorder_ms, 0)
        at_least("unasked_ms", self.unasked_ms, 1)
        at_least("parity_wait_ms", self.parity_wait_ms, 0)
        whole("attempts_max", self.attempts_max, 0)
        whole("history_messages", self.history_messages, 1)
        of_kind("reassembly", self.reassembly, ReassemblyConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherConfig:
    """How a publisher works. `ConfigError` for a value out of its limits."""

    frame_bytes: int = 128 * 1024
    """A frame is sent when it has this many bytes. 128 KiB: frames of that size are sent without a
    copy, and publishing takes a sixth less time than with 64 KiB; larger ones gain little, and this
    many bytes of small messages take 0.4 ms to gather at full rate. `publish_many` has its messages
    waiting and fills frames of twice as many. Both are smaller, down to 64 KiB, where the replay
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
    once. `raise` refuses the next messages with `SendQueueFullError`."""

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
    """A publisher that was silent for so long is connected to again, and what it still owes will be
    reported as `publisher_gone`: five of its slowest heartbeats."""

    streams_max: int = 65_536
    """How many streams; frames of a further one are dropped and counted."""

    keep_alive_ms: float = 5000.0
    """How often this subscriber reports to the publisher that it is there."""

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
    to others that want it. 200 µs: twice as long as an answer takes from this machine."""

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


def __getattr__(name: str) -> Any:
    """Import `CursorConfig` when it is first named; `AttributeError` for other names."""
    if name == "CursorConfig":
        from recovery import CursorConfig

        return CursorConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
