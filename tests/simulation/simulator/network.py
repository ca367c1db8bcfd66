"""The simulator's network: it is watched, hashed, slow, or dead on one channel where that is so."""

import math
import zlib
from collections import Counter, deque
from contextlib import suppress
from hashlib import blake2b

from p2pmsg.multicast.run import is_sealed
from p2pmsg.multicast.seal import OpeningKey, key_id
from p2pmsg.security import Security
from p2pmsg.testing.network import FaultyNetwork
from p2pmsg.wire import FrameError, Kind
from recovery.checks import to_ns
from transports.curve import CurveKeys

MS = 1_000_000
_NAMES = {kind.value: kind.name for kind in Kind}
_NOBODY = "no file of known peers"
_SEAL_HEADER_BYTES = 16
_PORT_BYTES = 4
"""What follows each datagram; see `p2pmsg.testing.memory_group`."""


class SimulatedNetwork(FaultyNetwork):
    """A network of which everything is noted.

    Attributes:
        options: the circumstances.
        step: called with a frame's kind and its two sockets, right before it arrives and right
            after its receiver has worked on it; None after `heal`.
        watchers: called with the link and the bytes of each frame that is not lost otherwise; it
            is lost where one returns True. `heal` ends them.
        security: of all peers, where groups are sealed; their connections have no keys here.
        secrets: return with which keys publishers seal, so that kinds of frames are known.
        kinds: frames put on the way, by kind.
        answered_bytes: what was sent to strangers, or to all because of them.

    """

    def __init__(self, options, log):
        super().__init__(
            options.seed,
            loss=options.loss,
            duplication=options.duplication,
            reordering=options.reordering,
            delay=options.delay,
        )
        self.options = options
        if options.bytes_per_s:
            self.keeps_replies, self.carry = True, self._queue_up
        self.step = None
        self.watchers = []
        self.security = None
        if options.multicast in ("sealed", "signed"):
            self.security = Security(CurveKeys.new(), _NOBODY)
        self.secrets = []
        self.kinds = Counter()
        self.answered_bytes = 0
        self._log = log
        self._sealed_kinds, self._opening = {}, {}
        self._slow = {}
        self._one_way = {}
        self._hash = blake2b(digest_size=16)

    @property
    def trace(self):
        """A hash of everything that has happened."""
        return self._hash.copy().hexdigest()

    def note(self, what):
        """Put `what` into the trace."""
        now_ns = self.clock.now_ns
        self._hash.update(f"{now_ns} {what}".encode())
        if self._log is not None:
            self._log(f"{now_ns / MS:.6f} {what}")

    def after_chance(self, rate, action, *args):
        """Let `action(*args)` happen after a random time, at `rate` a second on average."""
        self.after(self.rng.expovariate(rate), action, *args)

    def deafen(self, publisher, subscriber, seconds):
        """Let nothing pass over the data path between two for a while; `inf`: also after `heal`."""
        until = math.inf if math.isinf(seconds) else self.clock.now_ns + to_ns(seconds)
        ends = publisher, subscriber
        self._one_way[ends] = max(until, self._one_way.get(ends, 0))

    def is_one_way(self, publisher, subscriber):
        """Whether nothing passes over the data path between two."""
        return self._one_way.get((publisher, subscriber), 0) > self.clock.now_ns

    def heal(self):
        super().heal()
        self.step = None
        self.watchers.clear()
        self._one_way = {ends: until for ends, until in self._one_way.items() if math.isinf(until)}

    def deliver(self, link, frame):
        kind = self.kind_of(frame)
        self.kinds[kind] += 1
        self.note(f"{link.source}>{link.target} {kind} {zlib.crc32(frame):x}")
        super().deliver(link, frame)

    def is_lost(self, link, frame):
        is_lost = super().is_lost(link, frame)
        if not is_lost and self._one_way and link.kind == "data":
            is_lost = self.is_one_way(*self.ends_of(link))
        for watcher in self.watchers:
            is_lost = is_lost or watcher(link, frame)
        if is_lost and self._log is not None:
            self._log("    lost")
        return is_lost

    def _queue_up(self, link, frame):
        """Have it wait in front of a slow path, in order."""
        path = self.name_of(link.source), self.name_of(link.target)
        waiting = self._slow.setdefault(path, deque())
        waiting.append((link, frame))
        if len(waiting) == 1:
            self._carry_next(waiting)

    def _carry_next(self, waiting):
        while waiting:
            link, frame = waiting[0]
            if link.connected:
                self.after(len(frame) / self.options.bytes_per_s, self._carried, waiting)
                return
            waiting.popleft()  # what a cut link had takes no time

    def _carried(self, waiting):
        FaultyNetwork.carry(self, *waiting.popleft())
        self._carry_next(waiting)

    def arrive(self, link, frame):
        if self.step is None:
            super().arrive(link, frame)
            return
        if link.connected:
            self.step(self.kind_of(frame), link.source, link.target)
        is_taken = link.connected and link.target in self.receivers
        super().arrive(link, frame)
        if is_taken and self.step is not None:
            self.step(self.kind_of(frame), link.source, link.target)

    def kind_of(self, frame):
        """Return the name of a frame's kind; of one that a receiver has sealed, `SEALED`."""
        if not is_sealed(frame):
            return kind_of(frame)
        header = frame[:_SEAL_HEADER_BYTES]
        if (kind := self._sealed_kinds.get(header)) is None:
            kind = self._sealed_kinds[header] = self._kind_of_sealed(frame[:-_PORT_BYTES])
        return kind

    def _kind_of_sealed(self, datagram):
        key = key_id(datagram) or b""
        if key not in self._opening:
            secrets = (secret() for secret in self.secrets)
            self._opening |= {one.id: OpeningKey(one, 0) for one in secrets}
        with suppress(FrameError):
            if (opening := self._opening.get(key)) is not None:
                return kind_of(opening.open(datagram))
        return "SEALED"


def kind_of(frame):
    """Return the name of a frame's kind."""
    return _NAMES[frame[frame.index(b"\0") + 4]]
