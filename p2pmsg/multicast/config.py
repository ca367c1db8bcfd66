"""Settings of multicast peers, with the reason for each default."""

from dataclasses import dataclass, field

from p2pmsg.checks import at_least, check, of_kind, whole
from recovery import FeedbackConfig, GroupRepairConfig, ReassemblyConfig

__all__ = ["MulticastPublisherConfig", "MulticastSubscriberConfig"]


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
    """Size of a datagram, UDP and IP headers aside. None: what the interface carries in one packet,
    at most 1452, for Ethernet."""

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
    order, and whoever asks in vain has asked for one datagram too many."""

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
