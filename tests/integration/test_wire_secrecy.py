"""What who listens on the wire sees, by a raw socket: all packets of loopback."""

import contextlib
import secrets
import socket
import threading

import pytest

from p2pmsg import LogConfig
from tests.endpoints import free_port
from tests.integration.peers import take

pytest.importorskip("cryptography")

ALL_PROTOCOLS = 3
PARTS = ("VALUE", "TOPIC", "KEY", "HEADER")


class Wire:
    """Keeps what goes over loopback until it is closed."""

    def __init__(self):
        try:
            self._raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        except (AttributeError, PermissionError):
            pytest.skip("raw sockets need Linux and CAP_NET_RAW")
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self._raw.bind(("lo", ALL_PROTOCOLS))
        self._raw.settimeout(0.1)
        self._end = secrets.token_bytes(16)
        self._packets = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._packets or self._end not in self._packets[-1]:
            with contextlib.suppress(TimeoutError):
                self._packets.append(self._raw.recv(1 << 17))

    def close(self):
        """End once a datagram of ours was seen, which comes after all else; return what was."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while self._thread.is_alive():
                sender.sendto(self._end, ("127.0.0.1", 9))
                self._thread.join(0.1)
        self._raw.close()
        return b"".join(self._packets)


@pytest.mark.parametrize("scheme", ["tcp", "udp"])
@pytest.mark.parametrize("secured", [False, True], ids=["open", "secured"])
def test_nothing_that_was_published_stands_on_the_wire(
    make_publisher, make_subscriber, peers, tmp_path, scheme, secured
):
    """Live, out of the log and in repairs; without keys all of it does, which shows that we see."""
    place = "tcp://127.0.0.1:0"
    if scheme == "udp":
        place = f"udp://239.255.11.{1 + secured}:{free_port()}?interface=127.0.0.1"
    ours = peers.security("pub", "sub") if secured else None
    publisher = make_publisher(place, log=LogConfig(tmp_path / "log"), security=ours)
    theirs, endpoint = None, publisher.endpoint
    if secured:
        theirs = peers.security("sub")
        mark = "&" if "?" in endpoint else "?"
        endpoint = f"{endpoint}{mark}key={peers.text('pub')}"
    # Other tests may run at the same time, and what they publish is on the same wire.
    marks = [f"{part}-{secrets.token_hex(8)}" for part in PARTS]
    text, topic, key, header = marks
    wire = Wire()
    try:
        for half in range(2):
            for number in range(20):
                publisher.publish(topic, f"{text} {number}" * 20, key=key, headers={header: 1})
            if not half:
                publisher.flush()
                subscriber = make_subscriber(endpoint, start="earliest", security=theirs)
        assert len(take(subscriber, 40)) == 40
    finally:
        seen = wire.close()
    found = [mark for mark in marks if mark.encode() in seen]
    assert found == ([] if secured else marks)
