"""Reports what is at endpoints from which no welcome comes: nothing, or no p2pmsg peer.

::

    1 s without a welcome ──▶ the same, and a warning only where keys are needed
    5 s without a welcome ──▶ one connection of its own, in a thread ──▶ a warning, and `stats()`
          └──── again each minute: another warning where something else is found
"""

import threading
from collections.abc import Sequence
from typing import Final

import transports
from p2pmsg.wire import VERSION
from transports.own_log import own_log as _log

FIRST_NS: Final = 5_000_000_000
"""How long a welcome is waited for until it is said that none has come: a start of both programs by
hand, or by one supervisor, takes less."""
EARLY_NS: Final = 1_000_000_000
"""When is looked for the first time: only for who needs keys, since waiting does not help there."""
_SOON_NS: Final = 100_000_000
AGAIN_NS: Final = 60_000_000_000
"""How often is looked again, while there is none."""


class Unanswered:
    """Watches endpoints until they have answered once; from then on silence is reported otherwise.

    Args:
        expected: what should be there, for people, such as "publisher".
        endpoints: where it connects to.
        now_ns: monotonic time.
        usual: the type of the ZeroMQ socket that a p2pmsg peer of this kind has.
        first_ns: how long to wait before the first look, where that is less than `FIRST_NS`.
        says_at_once: whether a warning is logged when something was found. False: `say` does it.
        datagrams: whether groups are watched, too; there is nobody to connect to.
        has_keys: whether it connects with keys; what comes of those, the connections report.
        in_memory: whether endpoints are names on a network in memory: nothing is looked at.

    Attributes:
        found: what was found, by endpoint; "" where all is well, or nothing is known.
        has_keys: as given.
        next_ns: when `look` has something to do.

    """

    def __init__(
        self,
        expected: str,
        endpoints: Sequence[transports.Endpoint],
        *,
        now_ns: int,
        usual: str = "XPUB",
        first_ns: int | None = None,
        says_at_once: bool = True,
        datagrams: bool = False,
        has_keys: bool = False,
        in_memory: bool = False,
    ) -> None:
        self._expected = expected
        self._usual = f"a ZeroMQ {usual} socket is there"
        self._endpoints = list(endpoints)
        self._says_at_once = says_at_once
        self.has_keys = has_keys
        first_ns = FIRST_NS if first_ns is None else min(first_ns, FIRST_NS)
        self._first_ns = now_ns + first_ns
        due_ns = now_ns + min(first_ns, EARLY_NS)
        self._waiting = {
            index: due_ns
            for index, endpoint in enumerate(endpoints)
            if not in_memory
            and (endpoint.scheme in ("tcp", "ipc") or (datagrams and endpoint.is_datagram))
        }
        self._early = set(self._waiting) if first_ns > EARLY_NS else set()
        self._logged = [""] * len(self._endpoints)
        self._since_ns = now_ns
        self._closed: list[tuple[str, str]] = []
        self.found = [""] * len(self._endpoints)
        self.next_ns = due_ns if self._waiting else 2**63

    def check(self, answered: Sequence[bool], strange: Sequence[int], now_ns: int) -> None:
        """Look at the endpoints that have not answered; called when `next_ns` has come.

        `strange` is how many frames came from each that are not p2pmsg's.
        """
        wait_ns = 1_000_000_000  # an endpoint that answers is noted within a second
        for index, due_ns in list(self._waiting.items()):
            if answered[index]:
                self.answered(index)
            elif now_ns >= due_ns:
                early = index in self._early
                self._early.discard(index)
                self._waiting[index] = self._first_ns if early else now_ns + AGAIN_NS
                if early and (self.has_keys or self._endpoints[index].is_datagram):
                    continue
                if early:
                    wait_ns = _SOON_NS
                thread = threading.Thread(
                    target=self._find_out, args=(index, strange[index], now_ns, early),
                    name="p2pmsg-diagnosis", daemon=True,
                )  # fmt: skip
                try:
                    thread.start()
                except RuntimeError:  # the interpreter ends, or there are too many threads
                    return
        self.next_ns = now_ns + wait_ns if self._waiting else 2**63

    def answered(self, index: int) -> None:
        """Note that an endpoint has answered: it is not looked at any more."""
        self._waiting.pop(index, None)
        self.found[index] = ""

    def by_endpoint(self) -> dict[str, str]:
        """Return what was found, where something was."""
        pairs = zip(self._endpoints, self.found, strict=True)
        return {str(endpoint): found for endpoint, found in pairs if found}

    def take_closed(self) -> list[tuple[str, str]]:
        """Return endpoints that were found to need keys since the last call, and what is there."""
        taken, self._closed = self._closed, []
        return taken

    def say(self, index: int, now_ns: int) -> None:
        """Log what was found at an endpoint, where that is new."""
        found = self.found[index]
        if not found or found == self._logged[index]:
            return
        self._logged[index] = found
        endpoint = self._endpoints[index]
        _log.warning(
            "no p2pmsg %s has answered at %s for %.1f s: %s%s"
            if not endpoint.is_datagram
            else "no %s was heard at %s for %.1f s: %s%s",
            self._expected, endpoint, (now_ns - self._since_ns) / 1e9, found,
            ". It is waited for" if self._says_at_once else "",
        )  # fmt: skip

    def _find_out(self, index: int, strange: int, now_ns: int, early: bool) -> None:
        try:
            from transports.diagnosis import NEEDS_KEYS, describe_peer

            endpoint = self._endpoints[index]
            found = describe_peer(endpoint) or "nothing is known of who is there"
        except (OSError, ImportError, LookupError):
            return  # no descriptor is left, not even to import a module: `look` tries it again
        if endpoint.is_datagram:
            found = "check that group, port and interface are those that are sent to"
            if endpoint.is_multicast:
                found += (
                    ". Where a router is in between, the publisher's endpoint needs ttl=2 or more "
                    "(the default is 1), and the router a multicast route"
                )
        needs_keys = found.startswith(NEEDS_KEYS)
        if early and not needs_keys:
            return
        if needs_keys and self.has_keys:
            found = f"{NEEDS_KEYS}: one that refuses ours, or is busy"
        if found == self._usual:
            found += f", as a {self._expected} has: one that is busy, or no p2pmsg peer"
        if strange:
            found = (
                "frames that are not p2pmsg's, or not of wire version "
                f"{VERSION}, come from it; {found}"
            )
        if index not in self._waiting:
            return  # it has answered meanwhile
        self.found[index] = found
        if index not in self._waiting:
            self.found[index] = ""  # between the two lines above
            return
        if needs_keys and not self.has_keys:
            self._closed.append((str(endpoint), found))
        if self._says_at_once:
            self.say(index, now_ns)
