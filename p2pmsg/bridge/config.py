"""The settings of a bridge."""

from dataclasses import dataclass
from typing import Final, Literal

from p2pmsg.toolkit import check_fields

TopicAt = Literal["part", "prefix", "none"]
Codec = Literal["bytes", "json", "msgpack"]
COMMIT_INTERVAL_S: Final = 0.1
"""With a cursor: how often it is written. So much comes again after a SIGKILL."""
PREFETCH: Final = 64
"""With a queue as the source: how many jobs the bridge has in flight at each pusher."""
IN_FLIGHT_MAX: Final = 1000
"""With a queue as the target: so many jobs may be accepted and not done; further ones stay with the
plain PUSH."""
ANSWER_S: Final = 5.0
"""With requests: how long an answer may take, as of a `Requester`."""
SURVEY_S: Final = 0.5
"""With `sp+surveyor`: how long respondents may answer; it ends before that when as many have
answered as are connected. Half of what `request_all` waits."""
_QUEUE_MAX: Final = 2**31 - 1
_PART_BYTES_MAX: Final = 2**63 - 1
"""ZeroMQ takes these as an int and as an int64."""


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    """The settings of a bridge that few programs change.

    Raises:
        ConfigError: a value is out of its limits; it names the field, the limit and the value.

    """

    single_parts: bool = False
    """Whether every message of the plain sender has one part, so that reading takes a third of the
    time. Where the first message that is waiting has several, the bridge notices and warns; it then
    reads as without this, but parts that came before may have become messages of their own. Not
    with `topic_at="part"`. Default False."""

    queue_messages: int = 10_000
    """The high-water mark of the plain socket: so many messages wait at each peer's connection.
    Default 10,000, ten times ZeroMQ's own: a PUB drops what finds no space there. At most
    2,147,483,647, which is ZeroMQ's limit."""

    part_bytes_max: int = 16 * 2**20
    """The largest part of a message that is taken, in bytes. ZeroMQ ends the connection of a peer
    that sends a larger one. Default 16 MiB; at most 2**63 - 1."""

    stall_timeout: float = 1.0
    """How long a plain PUB may hold up the bridge, in seconds. A SUB whose queue is full: then
    messages are dropped for it, and counted, until it has space again. No SUB that has subscribed,
    at the start and when all have left: then messages are for nobody, and counted, until one comes;
    a large value waits. Default 1.0, as of a `Publisher`, and enough for a SUB that connects
    again."""

    def __post_init__(self) -> None:
        check_fields(self, queue_messages=(1, _QUEUE_MAX), part_bytes_max=(1, _PART_BYTES_MAX))
