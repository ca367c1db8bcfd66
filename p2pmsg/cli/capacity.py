"""`p2pmsg capacity`: how long a window a disk holds, or how much disk a window needs."""

import argparse
import math
import random
from dataclasses import dataclass

from p2pmsg.cli.arguments import JSON, byte_count, count, rate, span
from p2pmsg.cli.command import OneOf, command, option
from p2pmsg.cli.text import bytes_text, rate_text, span_text
from p2pmsg.config import PublisherConfig
from p2pmsg.json_text import to_json

_SIZE_MAX = 2**30
_SECONDS_A_DAY = 86_400
_TOPIC_BYTES = 8
_HEADER_BYTES = 39
"""The zero byte after the topic, and the header of a frame."""
RECORD_BYTES = 48
"""What the log puts around a frame."""
_BODY_BYTES_ALONE, _BODY_BYTES = 5, 9
"""The arrays around the values, of one message and of several, and three absent columns."""
_MESSAGES_COUNTED, _BYTES_COUNTED, _FRAMES_COUNTED = 20_000, 16 * 2**20, 64
"""How much is published to count how many messages share a frame: some 0.1 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a message takes on disk, in bytes."""

    value_bytes: int
    """The value itself."""

    msgpack_bytes: int
    """The header that msgpack puts before it."""

    share_bytes: float
    """Its share of what stands around the frame, or what the user says."""

    per_frame: float
    """How many messages share a frame; 0 where the user gave the overhead."""

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return self.value_bytes + self.msgpack_bytes + self.share_bytes


def footprint(
    rate: float, size: int, *, streams: int = 1, per_frame: int | None = None
) -> Footprint:
    """Return what a message takes, with the defaults of `PublisherConfig`."""
    lead = 2 if size < 2**8 else 3 if size < 2**16 else 5
    shared = float(per_frame) if per_frame is not None else _per_frame(rate / streams, size)
    body = _BODY_BYTES_ALONE if shared == 1 else _BODY_BYTES
    around = RECORD_BYTES + _TOPIC_BYTES + _HEADER_BYTES + body
    return Footprint(
        value_bytes=size, msgpack_bytes=lead, share_bytes=around / shared, per_frame=shared
    )


def _per_frame(rate: float, value_bytes: int) -> float:
    """Return how many messages share a frame that come at random, `rate` a second on one stream.

    It is counted at the core of a publisher, since what a batch waits for depends on its messages.
    """
    from p2pmsg.publisher.core import PublisherCore
    from p2pmsg.publisher.gathering import GATHER_AFTER

    config = PublisherConfig()
    if 2 * value_bytes >= config.full_bytes:
        return 1.0
    core = PublisherCore(name="", session=1, recovery="memory://", config=config, now_ns=0)
    rng, value, now_s, frames = random.Random(1), bytes(value_bytes), 1.0, 0
    total = max(_FRAMES_COUNTED, min(_MESSAGES_COUNTED, _BYTES_COUNTED // (value_bytes + 1)))
    first = 3 * GATHER_AFTER  # the first messages of a stream go out one by one
    for number in range(first + total):
        if number == first:
            frames = 0
        now_s += rng.expovariate(rate)
        now_ns = int(now_s * 1e9)
        core.publish("t", value, None, None, None, now_ns=now_ns, wall_ns=now_ns)
        frames += len(core.outbox)
        core.outbox.clear()
    core.flush(now_ns=int(now_s * 1e9))
    return total / (frames + len(core.outbox))


def _size(text: str) -> int:
    size = byte_count(text)
    if size > _SIZE_MAX:
        raise argparse.ArgumentTypeError(f"must be at most 1GiB, not {text!r}")
    return size


@command(
    "capacity",
    option("--rate", "messages a second over all topics: 50000, 50k, 1.5M", "N", rate,
           required=True),
    option("--size", "size of a value: 128, 4KiB", "BYTES", _size, required=True),
    OneOf((
        option("--disk", "how long a window do so many bytes hold: 500GB, 2TiB", "BYTES",
               byte_count),
        option("--window", "how many bytes does such a window need: 90s, 30min, 24h, 7d, 2w",
               "SPAN", span),
    ), required=True),
    option("--streams", "over how many topics the rate is spread (default 1)", "N", count(1),
           default=1),
    option("--per-frame", "how many messages share a frame (default: computed from the rate)", "N",
           count(1)),
    option("--overhead", "what a message takes in addition to its value (default: computed)",
           "BYTES", byte_count),
    JSON,
)  # fmt: skip
def capacity(arguments: argparse.Namespace) -> int:
    """Say how long a window a disk holds, or how much disk a window needs.

    A message takes its value, what msgpack puts before it, and a share of what surrounds the
    frame that carries it: topic, header, record. How many messages share a frame depends on how
    closely they follow one another. It is computed from the rate, for messages that come one by
    one and at random; --per-frame sets it (publish_many fills frames of 256 KiB). Keys, timestamps
    of your own and headers belong to --size or --overhead. For an existing log, `p2pmsg log ls`
    measures all of it.

    For example:
      p2pmsg capacity --rate 50000 --size 128 --disk 500GB
      p2pmsg capacity --rate 200k --size 1KiB --window 24h --per-frame 60
    """
    made = footprint(
        arguments.rate, arguments.size, streams=arguments.streams, per_frame=arguments.per_frame
    )
    if arguments.overhead is not None:
        made = Footprint(
            value_bytes=arguments.size, msgpack_bytes=0, share_bytes=arguments.overhead, per_frame=0
        )
    bytes_s = arguments.rate * made.total_bytes
    disk, window_s = arguments.disk, arguments.window
    if window_s is None:
        window_s = disk / bytes_s if bytes_s else math.inf
    else:
        disk = round(window_s * bytes_s)
    if arguments.json:
        result = {
            "rate_messages_s": arguments.rate,
            "size_bytes": arguments.size,
            "message_bytes": round(made.total_bytes, 3),
            "msgpack_bytes": made.msgpack_bytes,
            "share_bytes": round(made.share_bytes, 3),
            "messages_a_frame": round(made.per_frame, 3) or None,
            "bytes_s": round(bytes_s, 3),
            "disk_bytes": disk,
            "window_s": window_s,
        }
        print(to_json(result))
        return 0
    load = f"{rate_text(arguments.rate)} messages/s of {bytes_text(arguments.size)}"
    if arguments.window is None:
        print(f"{bytes_text(disk)} hold {span_text(window_s)} of {load}")
    else:
        print(f"{span_text(window_s)} of {load} need {bytes_text(disk)} ({disk:,} bytes)")
    print(f"  a message takes {made.total_bytes:,.1f} bytes: {_parts(made)}")
    print(f"  {bytes_text(bytes_s)} a second, {bytes_text(bytes_s * _SECONDS_A_DAY)} a day")
    print("  window = disk / (rate x bytes a message)")
    return 0


def _parts(made: Footprint) -> str:
    if not made.per_frame:
        return f"{made.value_bytes:,} value + {made.share_bytes:,} overhead"
    messages = "1 message" if made.per_frame == 1 else f"{made.per_frame:.3g} messages"
    return (
        f"{made.value_bytes:,} value + {made.msgpack_bytes} msgpack + {made.share_bytes:.3g} "
        f"share of frame and record, {messages} a frame"
    )
