"""`p2pmsg capacity`: how long a window a disk holds, or how much disk a window needs."""

import argparse
import math

from p2pmsg.cli.arguments import JSON, byte_count, count, rate, span
from p2pmsg.cli.command import OneOf, command, option
from p2pmsg.cli.text import bytes_text, rate_text, span_text
from p2pmsg.toolkit import to_json

_SECONDS_A_DAY = 86_400
_TOPIC_BYTES = 8
_HEADER_BYTES = 39
"""The zero byte after the topic, and the header of a frame."""
RECORD_BYTES = 48
"""What the log puts around a frame."""
_BODY_BYTES_ALONE, _BODY_BYTES = 5, 9
"""The arrays around the values, of one message and of several, and three absent columns."""


def message_bytes(size: int, per_frame: int) -> float:
    """Return what a message takes on disk: its value, msgpack's lead, and a share of the frame."""
    lead = 2 if size < 2**8 else 3 if size < 2**16 else 5
    body = _BODY_BYTES_ALONE if per_frame == 1 else _BODY_BYTES
    return size + lead + (RECORD_BYTES + _TOPIC_BYTES + _HEADER_BYTES + body) / per_frame


@command(
    "capacity",
    option("--rate", "messages a second of one topic: 50000, 50k, 1.5M", "N", rate, required=True),
    option("--size", "size of a value: 128, 4KiB", "BYTES", byte_count, required=True),
    OneOf((
        option("--disk", "how long a window do so many bytes hold: 500GB, 2TiB", "BYTES",
               byte_count),
        option("--window", "how many bytes does such a window need: 90s, 30min, 24h, 7d, 2w",
               "SPAN", span),
    ), required=True),
    option("--per-frame", "how many messages share a frame (default 1, for which the window is "
           "shortest)", "N", count(1), default=1),
    JSON,
)  # fmt: skip
def capacity(arguments: argparse.Namespace) -> int:
    """Say how long a window a disk holds, or how much disk a window needs.

    A message takes its value, what msgpack puts before it, and a share of what surrounds the
    frame that carries it: topic, header, record. Messages that follow one another closely share a
    frame, and take less: some 13 at 200,000 a second; publish_many fills frames of 256 KiB. Keys,
    timestamps of your own and headers belong to --size. For an existing log, `p2pmsg log ls`
    measures all of it.

    For example:
      p2pmsg capacity --rate 50000 --size 128 --disk 500GB
      p2pmsg capacity --rate 200k --size 1KiB --window 24h --per-frame 60
    """
    size = arguments.size
    each = message_bytes(size, arguments.per_frame)
    bytes_s = arguments.rate * each
    disk, window_s = arguments.disk, arguments.window
    if window_s is None:
        window_s = disk / bytes_s if bytes_s else math.inf
    else:
        disk = round(window_s * bytes_s)
    if arguments.json:
        result = {
            "rate_messages_s": arguments.rate,
            "size_bytes": size,
            "message_bytes": round(each, 3),
            "messages_a_frame": arguments.per_frame,
            "bytes_s": round(bytes_s, 3),
            "disk_bytes": disk,
            "window_s": window_s,
        }
        print(to_json(result))
        return 0
    load = f"{rate_text(arguments.rate)} messages/s of {bytes_text(size)}"
    if arguments.window is None:
        print(f"{bytes_text(disk)} hold {span_text(window_s)} of {load}")
    else:
        print(f"{span_text(window_s)} of {load} need {bytes_text(disk)} ({disk:,} bytes)")
    print(f"  a message takes {each:,.1f} bytes, at {arguments.per_frame:,} in a frame")
    print(f"  {bytes_text(bytes_s)} a second, {bytes_text(bytes_s * _SECONDS_A_DAY)} a day")
    return 0
