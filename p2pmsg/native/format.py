"""What every frame begins with, and how a body of DATA begins and ends."""

import enum
from typing import Final

MAGIC: Final = b"p2"
VERSION: Final = 1
TOPIC_BYTES_MAX: Final = 255
SEQUENCE_MAX: Final = 2**63 - 1
ARRAY4: Final = 0x94
NO_COLUMNS: Final = b"\xc0\xc0\xc0"
"""How a body ends that has values only."""


class Kind(enum.IntEnum):
    """What a frame is. The values up to 15 are for the data channel."""

    DATA = 1
    HEARTBEAT = 2
    FRAGMENT = 3
    """A part of a frame that is larger than a datagram; see `p2pmsg.multicast.datagram`."""
    MARK = 4
    """In a multicast: its sequence is how many bytes were sent before it."""
    PARITY = 5
    """In a multicast: what helps to work out lost frames; see `p2pmsg.multicast.parity`."""
    WELCOME = 16
    PROBE = 17
    ECHO = 18
    JOINED = 19
    NACK = 20
    REFUSED = 21
    HEADS_REQUEST = 22
    HEADS = 23
    LEAVE = 24
    MARKED = 25
    """Subscriber to publisher, by UDP: I have come to this mark."""
    ADMITTED = 26
    """Multicast publisher to a subscriber that joined: its token for requests by UDP."""
    DENIED = 27
    """Publisher or relay to who asks: you may not have this."""
    KEYS = 28
    """Publisher of a sealed multicast to a subscriber: keys; see `p2pmsg.multicast.keys`."""
    KEYS_HELD = 29
    SETTLED = 30
    """Subscriber to publisher: what is below this of a stream needs to be kept for me no more."""
    JOBS = 32
    QUEUE_HELLO = 33
    QUEUE_WELCOME = 34
    QUEUE_CHALLENGE = 35
    QUEUE_REPORT = 36
    QUEUE_CONFIRM = 37
    QUEUE_RECALL = 38
    QUEUE_LEAVE = 39
    QUEUE_ADMIN = 40
    QUEUE_ANSWER = 41
    REQUEST = 48
    REPLY = 49
    SESSIONS_REQUEST = 64
    """Subscriber to relay: whose streams do you serve?"""
    SESSIONS = 65


class FrameError(Exception):
    """A frame off the wire is not one; its argument is a short reason, for counting."""
