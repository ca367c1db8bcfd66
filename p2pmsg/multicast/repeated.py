"""Notices that more is sent to a group again than for the first time. No I/O.

Where a network, or its receivers, take less than is sent, repairs are lost as well, and are asked
for again: nine tenths of what a publisher sends may be repairs, and nobody would see it.
"""

from typing import Final

from p2pmsg.trouble import Rarely

_MS: Final = 1_000_000
PERIOD_NS: Final = 2_000 * _MS
"""So long is counted; a burst that is repaired within less is none of it."""
LEAST_BYTES: Final = 2**20
"""Fewer repairs in that time are no burden."""


class RepeatedShare:
    """Compares what was sent again with all that was sent, a period at a time.

    Args:
        rate_limit: of the publisher, in bytes a second; what is said names it.

    """

    def __init__(self, rate_limit: int) -> None:
        self._rate_limit = rate_limit
        self._since_ns: int | None = None
        self._sent = self._repaired = 0
        self._rarely = Rarely()

    def check(self, sent: int, repaired: int, now_ns: int) -> str | None:
        """Return what is to be said now; called after repairs.

        Args:
            sent: all bytes that were sent so far, repairs included.
            repaired: the bytes of repairs among them.
            now_ns: the time.

        """
        since_ns = self._since_ns
        if since_ns is not None and now_ns - since_ns < PERIOD_NS:
            return None
        sent_now, repaired_now = sent - self._sent, repaired - self._repaired
        self._since_ns, self._sent, self._repaired = now_ns, sent, repaired
        if since_ns is None or repaired_now < LEAST_BYTES or 2 * repaired_now < sent_now:
            return None
        if not self._rarely.is_due(now_ns):
            return None
        return (
            f"{repaired_now / 1e6:.1f} of the {sent_now / 1e6:.1f} MB that were sent in the last "
            f"{(now_ns - since_ns) / 1e9:.1f} s had been sent before: the network carries less "
            f"than is sent, or a receiver takes less. MulticastPublisherConfig("
            f"rate_limit_bytes_s=…), {self._rate_limit:,} here, says how fast data leave"
        )
