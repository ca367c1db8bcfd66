"""What a responder has answered, so that a request that comes again does not do the work again."""

from collections import OrderedDict

Request = tuple[int, int]
"""The requester's id, and the request's number."""


class ReplyCache:
    """Replies by request, bounded by number, bytes and age; pure.

    Attributes:
        bytes: of the replies kept.
        hits: requests that were answered from it, or were at work already.

    """

    __slots__ = ("_age_ns", "_bytes_max", "_count_max", "_pending", "_replies", "bytes", "hits")

    def __init__(self, count_max: int, bytes_max: int, age_ns: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._age_ns = age_ns
        self._replies: OrderedDict[Request, tuple[bytes, int]] = OrderedDict()
        self._pending: dict[Request, bytes] = {}
        self.bytes = 0
        self.hits = 0

    def find(self, request: Request) -> bytes | None:
        """Return the reply to a request that came before, or None."""
        known = self._replies.get(request)
        if known is None:
            return None
        self.hits += 1
        return known[0]

    def keep(self, request: Request, reply: bytes, *, now_ns: int) -> None:
        """Keep a reply."""
        replies = self._replies
        replies[request] = (reply, now_ns)
        self.bytes += len(reply)
        while replies:
            oldest, at_ns = next(iter(replies.values()))
            full = len(replies) > self._count_max or self.bytes > self._bytes_max
            if not full and now_ns - at_ns < self._age_ns:
                return
            replies.popitem(last=False)
            self.bytes -= len(oldest)

    def begin(self, request: Request, where: bytes) -> tuple[bool, bytes | None]:
        """Note that a request came from `where`; return whether it is new, and its reply if any."""
        reply = self.find(request)
        if reply is not None:
            return False, reply
        is_new = request not in self._pending
        self.hits += not is_new
        self._pending[request] = where  # it is answered where it was asked last
        return is_new, None

    def end(self, request: Request, reply: bytes, *, now_ns: int) -> bytes | None:
        """Keep the reply to what was begun; return where it is to go."""
        self.keep(request, reply, now_ns=now_ns)
        return self._pending.pop(request, None)

    @property
    def pending(self) -> int:
        """How many requests are at work."""
        return len(self._pending)

    def __len__(self) -> int:
        return len(self._replies)
