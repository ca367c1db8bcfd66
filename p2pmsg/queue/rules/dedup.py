"""Which message ids were seen within the window."""

from collections import OrderedDict

from recovery._checks import ms_to_ns


class DedupWindow:
    """Remembers message ids for a time, and not more of them than a number.

    Attributes:
        forgotten: ids that were forgotten before their time, for want of room.

    """

    __slots__ = ("_ids", "_ids_max", "_window_ns", "forgotten")

    def __init__(self, window_ms: float, ids_max: int) -> None:
        self._window_ns = ms_to_ns(window_ms)
        self._ids_max = ids_max
        self._ids: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self.forgotten = 0

    def find(self, message_id: str, *, now_ns: int) -> int | None:
        """Return the sequence under which the id was seen, or None."""
        self.expire(now_ns=now_ns)
        seen = self._ids.get(message_id)
        return seen[0] if seen is not None else None

    def add(self, message_id: str, sequence: int, *, now_ns: int) -> None:
        """Remember an id that was not known."""
        if len(self._ids) >= self._ids_max:
            self._ids.popitem(last=False)
            self.forgotten += 1
        self._ids[message_id] = (sequence, now_ns)

    def expire(self, *, now_ns: int) -> None:
        """Forget what is out of the window."""
        ids = self._ids
        while ids:
            message_id = next(iter(ids))
            if now_ns - ids[message_id][1] < self._window_ns:
                return
            del ids[message_id]

    def items(self) -> list[tuple[str, int, int]]:
        """Return the ids with sequence and time, oldest first."""
        return [(name, sequence, at_ns) for name, (sequence, at_ns) in self._ids.items()]

    def __len__(self) -> int:
        return len(self._ids)
