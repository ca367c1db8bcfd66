"""Replies that were given, and requests that are at work."""

from collections import OrderedDict
from collections.abc import Collection
from typing import Final

_OF_CONNECTION: Final = b"\0"
"""How ZeroMQ's own routing ids begin, of which each connection has another one."""
_PENDING_NS: Final = 30_000_000_000
"""How long a reply may be on its way."""
NEVER_NS: Final = 2**63
"""When one stops waiting that waits without limit."""
Number = tuple[int, int, str, str]
"""The requester's id, the request's number, and with keys the user id and the topic.

So the answer to one user's request is no other's, and it is known who may have it."""


class ReplyCache:
    """Replies by request, so that one that comes again does not do the work again.

    Bounded by number, bytes and age.

    Attributes:
        bytes: of the replies kept.
        hits: requests that were answered from it, or were being worked on.

    """

    def __init__(self, count_max: int, bytes_max: int, age_ns: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._age_ns = age_ns
        self._replies: OrderedDict[Number, tuple[bytes, int]] = OrderedDict()
        self._pending: dict[Number, tuple[bytes, int]] = {}
        self._sent: dict[Number, tuple[bytes, int]] = {}
        self.bytes = 0
        self.hits = 0

    def find(self, request: Number) -> bytes | None:
        """Return the reply to a request that came before, or None."""
        known = self._replies.get(request)
        if known is None:
            return None
        self.hits += 1
        return known[0]

    def keep(self, request: Number, reply: bytes, *, now_ns: int) -> None:
        """Keep a reply."""
        replies = self._replies
        replies[request] = (reply, now_ns)
        self.bytes += len(reply)
        while replies:
            oldest, at_ns = next(iter(replies.values()))
            full = len(replies) > self._count_max or self.bytes > self._bytes_max
            if not full and now_ns - at_ns < self._age_ns:
                return
            self._sent.pop(replies.popitem(last=False)[0], None)
            self.bytes -= len(oldest)

    def on_sent(self, request: Number, where: bytes, *, now_ns: int) -> None:
        """Note that the reply was sent over a connection; of one that is not kept, nothing."""
        if request in self._replies:
            self._sent[request] = where, now_ns

    def is_pending(self, request: Number, where: bytes, *, now_ns: int) -> bool:
        """Whether the reply was sent over this connection, which loses nothing while it lasts.

        Over a slow network that takes longer than a requester waits until it asks again. Sent once
        more, it would delay what comes next, which is asked for again, too, and so on.
        """
        sent = self._sent.get(request)
        if sent is None or sent[0] != where or not where.startswith(_OF_CONNECTION):
            return False
        return now_ns - sent[1] < _PENDING_NS

    def begin(
        self, request: Number, where: bytes, until_ns: int = NEVER_NS
    ) -> tuple[bool, bytes | None]:
        """Note that a request came; return whether it is new, and its reply if any.

        Args:
            request: which one.
            where: it came from; it is answered where it was asked last.
            until_ns: when its requester stops waiting; asked again, it may wait longer.

        """
        reply = self.find(request)
        if reply is not None:
            return False, reply
        known = self._pending.get(request)
        if known is not None:
            self.hits += 1
            until_ns = max(until_ns, known[1])
        self._pending[request] = where, until_ns
        return known is None, None

    def is_over(self, request: Number, now_ns: int) -> bool:
        """Whether nobody waits any more for what was begun; any thread may ask."""
        known = self._pending.get(request)
        return known is not None and known[1] <= now_ns

    def end(self, request: Number, reply: bytes, *, now_ns: int) -> bytes | None:
        """Keep the reply to what was begun; return where it is to go."""
        self.keep(request, reply, now_ns=now_ns)
        return self._pending.pop(request, (None, 0))[0]

    def drop(self, request: Number) -> None:
        """Forget what was begun and will not be done: asked again, it is new."""
        self._pending.pop(request, None)

    def resync(self, begun: Collection[Number]) -> None:
        """Put it right after an exception; `begun` is what waits or is at work."""
        self._pending = {each: found for each, found in self._pending.items() if each in begun}
        self.bytes = sum(len(reply) for reply, _ in self._replies.values())
