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

    def begin(self, request: Request, where: bytes, *, now_ns: int) -> tuple[bool, bytes | None]:
        """Note that a request came from `where`; return whether it is new, and its reply if any."""
        self._expire(now_ns)
        known = self._replies.get(request)
        if known is not None:
            self.hits += 1
            return False, known[0]
        is_new = request not in self._pending
        self.hits += not is_new
        self._pending[request] = where  # it is answered where it was asked last
        return is_new, None

    def end(self, request: Request, reply: bytes, *, now_ns: int) -> bytes | None:
        """Keep a reply; return where it is to go."""
        self._replies[request] = (reply, now_ns)
        self.bytes += len(reply)
        self._expire(now_ns)
        return self._pending.pop(request, None)

    @property
    def pending(self) -> int:
        """How many requests are at work."""
        return len(self._pending)

    def _expire(self, now_ns: int) -> None:
        replies = self._replies
        while replies:
            reply, at_ns = next(iter(replies.values()))
            full = len(replies) > self._count_max or self.bytes > self._bytes_max
            if not full and now_ns - at_ns < self._age_ns:
                return
            replies.popitem(last=False)
            self.bytes -= len(reply)

    def __len__(self) -> int:
        return len(self._replies)
