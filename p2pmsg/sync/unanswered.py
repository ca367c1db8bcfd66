"""Says what is at endpoints from which no welcome comes: nobody, or somebody who is no p2pmsg peer.

::

    5 s without a welcome ──▶ one connection of its own, in a thread ──▶ a warning, and `stats()`
          └──── again each minute: another warning where something else is found, or after an hour
"""

import logging
import threading
from collections.abc import Sequence
from typing import Final

import transports

FIRST_NS: Final = 5_000_000_000
"""How long a welcome is waited for until it is said that none has come: a start of both programs by
hand, or by one supervisor, takes less."""
AGAIN_NS: Final = 60_000_000_000
"""How often is looked again, while there is none."""
_LOUD_NS: Final = 3_600_000_000_000
_log = logging.getLogger("p2pmsg")


class Unanswered:
    """Watches endpoints until they have answered once; from then on silence is told otherwise.

    Args:
        expected: what should be there, for people, such as "publisher".
        endpoints: where it connects to.

    Attributes:
        found: what was found, by endpoint; "" where all is well, or nothing is known.

    """

    def __init__(
        self, expected: str, endpoints: Sequence[transports.Endpoint], *, now_ns: int
    ) -> None:
        self._expected = expected
        self._endpoints = list(endpoints)
        self._waiting = {
            index: now_ns + FIRST_NS
            for index, endpoint in enumerate(endpoints)
            if endpoint.scheme in ("tcp", "ipc")
        }
        self._loud_ns = [0] * len(self._endpoints)
        self._since_ns = now_ns
        self.found = [""] * len(self._endpoints)
        self.next_ns = now_ns + FIRST_NS if self._waiting else 2**63

    def look(self, answered: Sequence[bool], strange: Sequence[int], now_ns: int) -> None:
        """Look at the endpoints that have not answered; called when `next_ns` has come.

        `strange` is how many frames came from each that are not p2pmsg's.
        """
        for index, due_ns in list(self._waiting.items()):
            if answered[index]:
                del self._waiting[index]
                self.found[index] = ""
            elif now_ns >= due_ns:
                self._waiting[index] = now_ns + AGAIN_NS
                thread = threading.Thread(
                    target=self._find_out, args=(index, strange[index], now_ns),
                    name="p2pmsg-diagnosis", daemon=True,
                )  # fmt: skip
                try:
                    thread.start()
                except RuntimeError:  # the interpreter ends, or there are too many threads
                    return
        # An endpoint that answers is noted within a second.
        self.next_ns = now_ns + 1_000_000_000 if self._waiting else 2**63

    def _find_out(self, index: int, strange: int, now_ns: int) -> None:
        endpoint = self._endpoints[index]
        found = transports.describe_peer(endpoint) or "nothing is known of who is there"
        if strange:
            found = f"frames that are not p2pmsg's come from it; {found}"
        if index not in self._waiting:
            return  # it has answered meanwhile
        changed, self.found[index] = found != self.found[index], found
        if changed or now_ns - self._loud_ns[index] >= _LOUD_NS:
            self._loud_ns[index] = now_ns
            _log.warning(
                "no p2pmsg %s has answered at %s for %.0f s: %s. It is waited for",
                self._expected, endpoint, (now_ns - self._since_ns) / 1e9, found,
            )  # fmt: skip
