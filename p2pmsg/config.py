"""Settings, with the reason for each default. Constructors take the few that most people set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from p2pmsg.checks import BUSY_WAIT, check_fields
from p2pmsg.codec import EncHook

if TYPE_CHECKING:
    from recovery import CursorConfig

OnFull = Literal["block", "drop", "raise"]
LINGER_MIN: Final = 0.0001
"""What `linger` counts for at least, so that 0 still gathers what comes at once."""
_BULK_FRAMES: Final = 2
_FRAMES_KEPT: Final = 16
_ROOMY_BYTES: Final = 64 * 1024
_INT_MAX: Final = 2**31 - 1
"""The largest high-water mark that ZeroMQ takes."""
_FRAME_BYTES_MAX: Final = 2**62

__all__ = [
    "LINGER_MIN",
    "CursorConfig",
    "MulticastPublisherConfig",
    "MulticastSubscriberConfig",
    "OnEnd",
    "OnFull",
    "OnGap",
    "PublisherConfig",
    "SubscriberConfig",
]


DATAGRAM_BYTES_MAX: Final = 1452
"""A packet of Ethernet less the headers of IPv6 and UDP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MulticastPublisherConfig:
    """How a publisher uses `udp://`. `ConfigError` for a value out of its limits."""

    rate_limit_bytes_s: int = 1_250_000_000
    """How fast data leave, at most, in bytes a second. 10 Gbit/s; set it to what the slowest link
    to a subscriber carries."""

    datagram_bytes: int | None = None
    """Size of a datagram in bytes, without UDP and IP headers: 512 to 1452, which Ethernet carries
    in one packet. Where the interface carries less, it is that. None: what the interface carries,
    at most 1452."""

    repair_rate_bytes_s: int = 128 * 2**20
    """How fast repairs leave, at most, in bytes a second; one subscriber may ask for half of that.
    128 MiB/s leave most of a fast link to what is new."""

    fec_data: int = 0
    """Forward error correction: datagrams in a block, after which parity follows. 0: none, since
    asking again takes less where a round trip takes a few ms. Messages that need more than one
    datagram have no part in it: what is lost of them is asked for."""

    fec_parity: int = 1
    """Parity datagrams after each block: so many of a block may be lost without asking. 1 is the
    exclusive or of the block; more need the package `zfec`."""

    source: Literal["group", "signed"] = "group"
    """Of a sealed multicast (`security=`), who can have sent a datagram that is taken: any member
    of the group, who all know its key, or, with "signed", the publisher alone. It then signs the
    datagrams of each train together, which takes up to 162 bytes and some µs for each."""

    def __post_init__(self) -> None:
        check_fields(
            self, rate_limit_bytes_s=1000, repair_rate_bytes_s=1000,
            datagram_bytes=(512, DATAGRAM_BYTES_MAX), fec_data=(0, 64), fec_parity=(1, 16),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MulticastSubscriberConfig:
    """How a subscriber uses `udp://`. `ConfigError` for a value out of its limits."""

    buffer_bytes: int = 16 * 2**20
    """Wanted for the kernel's receive buffer (`SO_RCVBUF`). 16 MiB hold 20 ms of what one process
    can take in. Linux grants at most `net.core.rmem_max` without privilege; what was granted is in
    `stats()`, and a warning says when it is less."""

    source: Literal["group", "signed"] = "group"
    """With "signed", datagrams are taken only of publishers that sign them: see
    `MulticastPublisherConfig.source`. Default: also of those that trust all who have their keys."""

    def __post_init__(self) -> None:
        check_fields(self, buffer_bytes=4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherConfig:
    """How a publisher works. `ConfigError` for a value out of its limits."""

    frame_bytes: int = 128 * 1024
    """A frame is sent when it has this many bytes. 128 KiB: frames of that size are sent without a
    copy, and publishing takes a sixth less time than with 64 KiB; larger ones gain little, and this
    many bytes of small messages take 0.4 ms to gather at full rate. `publish_many` has its messages
    waiting and fills frames of twice as many. Both are smaller, down to 64 KiB, where the replay
    buffer would hold fewer than 16, and never above `message_bytes_max`."""

    linger: float = 0.001
    """How long a message waits at most for others to share its frame, in seconds. Only messages of
    a stream that has more than one a microsecond wait so long; those of a slower one wait for a
    twentieth of it, or as long as two frames take, or up to a millisecond where their program
    pauses, and where they are further apart than `gather_within` not at all. Where a program
    publishes faster than frames can be made, messages share them whatever this says, for as long as
    making four takes: less would make those wait longer that come next. So 0 is no reason for a
    program to publish more slowly."""

    gather_within: float = 0.000015
    """Messages closer together than this, in seconds, are gathered. Sending a frame takes a third
    of that, and receiving it too, so a stream that is slower gains nothing from waiting. Where it
    takes longer than this, messages are gathered that come faster than frames are made, up to
    0.00004. With 0 none are."""

    message_bytes_max: int = 1024 * 1024
    """Largest message, packed, with its key and headers. 1 MiB as with Kafka and NATS; what is
    larger belongs into a file and its name into a message. Above 4 MiB subscribers need a higher
    `frame_bytes_max` first, and above 16 MiB range readers. Those of Spark and of the HTTP gateway
    stay at 16 MiB: what is larger is reported there as `too_large`."""

    queue_frames: int = 64
    """High-water mark of the send queue to each subscriber, in frames: 8 MiB of small messages,
    20 ms at full rate. The memory that a subscriber who does not read can cost."""

    on_full: OnFull = "block"
    """What `publish` does when a subscriber's queue is full. `block` waits up to `stall_timeout`,
    then sheds the slow one only, who repairs from the replay buffer when it reads again. `drop`
    sheds at once. `raise` refuses the next messages with `SendQueueFullError`."""

    stall_timeout: float = 1.0
    """How long one slow subscriber may hold up the others in all, in seconds. 1.0 outlasts a
    garbage collection or a page-in."""

    replay_bytes: int = 64 * 2**20
    """Bound of the replay buffer, in bytes. 64 MiB are half a second of a gigabit link, many times
    what a repair takes; the bookkeeping of small frames takes up to 200 MiB more."""

    replay_age: float | None = None
    """Age at which a frame leaves the replay buffer, in seconds. None: age does not matter, since
    old frames serve late joiners as long as there is space."""

    streams_max: int = 65_536
    """How many topics; a further one is refused with `ConfigError`. Bounds the heartbeats."""

    subscriber_timeout: float = 15.0
    """A subscriber that has not been heard of for so long is no longer counted, in seconds: three
    of its keep-alives."""

    multicast: MulticastPublisherConfig = field(default_factory=MulticastPublisherConfig)
    """What matters where the endpoint is `udp://`."""

    exact_types: bool | None = None
    """Whether each value is looked at for parts that msgpack has no type for. A Decimal, date,
    time, naive datetime, timedelta or UUID is sent by an extension type then, and arrives as the
    same type; an Enum is refused, for who receives it has no such class.
    Looking at a dict takes twice as long as packing it. So the default, None, looks at each value
    but those of a stream that `publish` fills at full rate: frames of 16 messages and more that
    came closer than 2 µs. Of its next frame, if it begins within 20 ms, the first value is looked
    at, and some later ones.
    Where one has such a part, all values of the topic are from then on, and a warning says so; in
    the frame before, such parts may have gone as text (an Enum as its value). With True all values
    are looked at, at any rate. With False none is.
    Of a value that is not looked at msgspec leaves out the private fields of attrs classes
    (`_name`), and those of dataclasses with `init=False` whose default only the class holds. One
    that is looked at is sent with them, and counts as one that has such a part."""

    enc_hook: EncHook | None = None
    """Gets each part of a value whose type is not known, and each int of more than 64 bits, and
    returns what goes in its place. A value that needs it takes some µs more. None: such values are
    refused."""

    def __post_init__(self) -> None:
        check_fields(
            self, frame_bytes=1024, message_bytes_max=(1024, 2**31 - 1), queue_frames=(1, _INT_MAX),
            stall_timeout=0.001, replay_age=1e-9, streams_max=1, subscriber_timeout=0.1,
        )  # fmt: skip

    @property
    def announced_bytes_max(self) -> int:
        """The largest message that subscribers are to expect, as it is announced; 0: unknown."""
        return self.message_bytes_max

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
        roomy = max(_ROOMY_BYTES, self.replay_bytes // _FRAMES_KEPT)
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
    """The largest frame, in bytes. A larger one ends the connection before it takes memory; that is
    made again, and the message is lost as `too_large`, with a warning. 4 MiB: four times the
    default limit of a message."""

    repair_timeout: float = 10.0
    """How long a gap waits for its repair without progress until it is reported lost, in seconds.
    10.0 outlast a restart of the publisher and a TCP reconnection. While other repairs come from
    its publisher it waits for ten times as long at most."""

    publisher_timeout: float = 5.0
    """A publisher that was silent for so long, in seconds, is connected to again, and what it still
    owes will be reported as `publisher_gone`: five of its slowest heartbeats. 0.2 at least: it is
    asked whether it is there after half of that, and needs some time for its answer. As often, and
    every 5 s at least, this subscriber reports to the publisher that it is there."""

    streams_max: int = 65_536
    """How many streams; frames of a further one are dropped and counted."""

    second_line_wait: float = 0.005
    """Where two lines carry the same stream, how long at least what one lost may come over the
    other before it is asked for, in seconds. 0.005: more than two ways through one building differ.
    It is longer where the later line was measured to be later, and ends once all lines are past the
    gap.
    """

    busy_wait: float = 0.0002
    """How long a wait looks for the next message before it sleeps, in seconds, at most 0.001; 0
    never looks. Being woken costs 40 µs. It looks only where this process publishes messages that
    stand alone, so where two take turns, and in one of 17 waits where that is in vain. It leaves
    its core to others that want it. 0.0002: twice as long as an answer takes from this machine."""

    multicast: MulticastSubscriberConfig = field(default_factory=MulticastSubscriberConfig)
    """What matters where an endpoint is `udp://`."""

    def __post_init__(self) -> None:
        check_fields(
            self, receive_bytes=64 * 1024, queue_frames=(1, _INT_MAX),
            frame_bytes_max=(64 * 1024, _FRAME_BYTES_MAX), repair_timeout=1e-9,
            publisher_timeout=0.2, streams_max=1, busy_wait=BUSY_WAIT,
        )  # fmt: skip


GapMode = Literal["wait", "raise", "skip", "latest"] | Callable[..., object]
OnGap = GapMode | Mapping[str, GapMode]
OnEnd = Literal["wait", "stop"] | Callable[..., object]


def __getattr__(name: str) -> Any:
    """Import `CursorConfig` when it is first named; `AttributeError` for other names."""
    if name == "CursorConfig":
        from recovery import CursorConfig

        return CursorConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
