"""Where the request servers of MoldUDP64 feeds are: addresses as they are, names looked up."""

import logging
import socket
import threading
from collections.abc import Sequence
from typing import Any, Final

from transports.endpoint import is_address, request_address

Address = tuple[Any, ...]
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
"""How long after a failure a name is looked up again, at first and at most: it doubles."""
_log = logging.getLogger("p2pmsg")


class RequestServers:
    """The request servers of a subscriber's lines.

    Looking a name up may take seconds, so a thread does it; until a name is found the other servers
    are asked. A name is looked up again when its server is silent, for it may have moved.

    Args:
        servers: each as HOST:PORT, checked.

    Attributes:
        names: the servers, each once.
        family: of the sockets that reach them all.

    """

    def __init__(self, servers: Sequence[str]) -> None:
        self.names = list(dict.fromkeys(servers))
        hosts = [request_address(name)[0] for name in self.names]
        simple = all(is_address(host) and ":" not in host for host in hosts)
        self.family = socket.AF_INET if simple or not _has_ipv6() else socket.AF_INET6
        self._found: list[Address | None] = [None] * len(self.names)
        self._wanted = threading.Event()
        self._closed = False
        self._due: set[int] = set()
        for index, host in enumerate(hosts):
            if is_address(host):
                self._found[index] = self._find(index)
            else:
                self._due.add(index)
        self._has_names = bool(self._due)
        if self._has_names:
            threading.Thread(target=self._run, name="p2pmsg-mold-names", daemon=True).start()

    def address(self, index: int) -> Address | None:
        """Return where a server is; None: it is not known."""
        return self._found[index]

    def reachable(self) -> list[int]:
        """Return the servers whose addresses are known."""
        return [index for index, found in enumerate(self._found) if found is not None]

    def index_of(self, address: Address) -> int | None:
        """Return which server has an address; None: none."""
        for index, found in enumerate(self._found):
            if found is not None and found[:2] == address[:2]:
                return index
        return None

    def look_again(self, index: int) -> None:
        """Look a silent server's name up again."""
        if self._has_names and not is_address(request_address(self.names[index])[0]):
            self._due.add(index)
            self._wanted.set()

    def close(self) -> None:
        """End the thread, soon."""
        self._closed = True
        self._wanted.set()

    def _find(self, index: int) -> Address | None:
        host, port = request_address(self.names[index])
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError):  # a name with an empty or too long part is the latter
            return None
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        for family, _, _, _, address in found:
            if family == self.family:
                return address
            if family == socket.AF_INET:
                return f"::ffff:{address[0]}", port, 0, 0
        return None

    def _run(self) -> None:
        wait_s = RETRY_S
        failed: set[int] = set()
        while not self._closed:
            for index in sorted(self._due):
                found = self._find(index)
                if found is not None:
                    self._found[index] = found
                    self._due.discard(index)
                    if index in failed:
                        failed.discard(index)
                        _log.info("the request server %s is found now", self.names[index])
                elif index not in failed:
                    failed.add(index)
                    _log.warning(
                        "the request server %s is not found; the others are asked, and it is "
                        "looked up again",
                        self.names[index],
                    )
            self._wanted.clear()
            if self._closed:
                return
            wait_s = min(2 * wait_s, RETRY_MAX_S) if self._due else RETRY_S
            self._wanted.wait(wait_s / 2 if self._due else None)


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        return False
    return True
