"""How one stream is received."""

from dataclasses import dataclass, field

from recovery._checks import at_least
from recovery.nack_config import NackConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverConfig:
    """How one stream is received. Raises `ValueError` for a value out of limits."""

    nack: NackConfig = field(default_factory=NackConfig)
    """How missing messages are asked for."""

    reorder_bytes_max: int = 16 * 2**20
    """Bound on the bytes that wait for something before them. 16 MiB hold 100 ms of a gigabit
    link, several times what a repair takes. What does not fit is dropped and asked for again."""

    reorder_frames_max: int = 4096
    """Bound on the frames that wait, so that tiny frames cannot cost more in bookkeeping than in
    bytes. 4096, as many as there may be gaps."""

    wait_for_repair: bool = True
    """Whether to wait for missing messages. False reports them lost at once, reason `SKIPPED`,
    for streams in which only the newest matters."""

    losses_max: int = 1024
    """Bound on the length of `lost_ranges`, and on the losses that wait for their place in the
    order before different reasons are merged. 1024 cost some 200 KiB."""

    def __post_init__(self) -> None:
        at_least("reorder_bytes_max", self.reorder_bytes_max, 0)
        at_least("reorder_frames_max", self.reorder_frames_max, 0)
        at_least("losses_max", self.losses_max, 1)
