"""A bridge's counters."""

from dataclasses import dataclass
from typing import Any

from p2pmsg.stats import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeStats(Stats):
    """A bridge's counters since it was made.

    `received = passed_on + refused + without_subscriber + unsent`, and what is on its way at the
    moment.

    Attributes:
        source, target: the two ends; a bound one with its port.
        received, received_bytes: messages that came from the source, and their bytes. From a plain
            socket: what was read of it, without those of topics that are not wanted.
        passed_on: messages that the target has taken; see `dropped`.
        refused: messages that can never be passed on, such as too large ones, or values that are no
            bytes where no codec is set; jobs among them became dead letters.
        dropped: of those passed on, messages that a plain SUB with a full queue did not get.
        without_subscriber: messages to a plain PUB that nobody had subscribed to, for longer than
            `stall_timeout`. Where anybody has subscribed to any topic, messages of other topics
            count as passed on, as with any PUB.
        unsent: messages that were read, and not passed on since the bridge was closed. Messages of
            a stream with a cursor, and jobs, come again.
        without_topic: messages in which no topic was found; they got the bridge's.
        undecoded: messages, or parts of one, that are not what the codec says; they stay bytes.
        gaps, missing: with `sequence_at`: how often numbers were missing, and how many in all.
        back: with `sequence_at`: how often the sender went back, as after a restart.
        unnumbered: with `sequence_at`: messages in which there is no number.
        overruns: how often as many messages as the plain socket's high-water mark were read without
            finding its queue empty once. Where it grows, the sender is faster than the bridge; what
            a plain PUB drops then is in `missing`, or cannot be known.
        reconnected: how often a plain connection that the bridge makes ended, and was made again:
            the peer has gone, sent a part above `part_bytes_max`, or speaks another protocol. 0
            where the bridge binds, as peers come and go there.
        unanswered: what is where a plain socket connects, if nobody has answered there for 2 s, or
            why it refuses the connection; else "".
        connections_refused: those that a plain socket with keys refused: an unknown key, or none.
        ours: the counters of the bridge's own peer: `PublisherStats`, `SubscriberStats`,
            `PusherStats` or `PullerStats`; None where both ends are plain.

    """

    source: str
    target: str
    received: int
    received_bytes: int
    passed_on: int
    refused: int
    dropped: int
    without_subscriber: int
    unsent: int
    without_topic: int
    undecoded: int
    gaps: int
    missing: int
    back: int
    unnumbered: int
    overruns: int
    reconnected: int
    unanswered: str
    connections_refused: int
    ours: Any
