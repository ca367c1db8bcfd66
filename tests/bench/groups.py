"""Multicast contenders, and the wire between them: two network namespaces, or loopback."""

import ctypes
import importlib.util
import os
import random
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import p2pmsg
from p2pmsg.testing.kernel_loss import lose_datagrams
from tests.bench.harness import Contender, Receiver, Sender
from tests.bench.loads import TrialError
from tests.bench.ours import READY_SECONDS, REPLAY_BYTES, TIMEOUT_SECONDS, TOPIC, receive_rest
from tests.bench.peers import TIMEOUT_MS

SENDER_ADDRESS, RECEIVER_ADDRESS = "10.77.0.1", "10.77.0.2"
WINDOW_COUNT = 2048
ACK_COUNT = 128
_RECEIVE_BYTES = 16 << 20
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Wire:
    """Where the two ends are; pids of processes that hold the namespaces open, 0 for none."""

    sender_pid: int = 0
    receiver_pid: int = 0

    @property
    def sender_address(self) -> str:
        return SENDER_ADDRESS if self.sender_pid else "127.0.0.1"

    @property
    def receiver_address(self) -> str:
        return RECEIVER_ADDRESS if self.receiver_pid else "127.0.0.1"

    @property
    def sender_interface(self) -> str:
        return "va" if self.sender_pid else "lo"

    @property
    def receiver_interface(self) -> str:
        return "vb" if self.receiver_pid else "lo"


class Namespaces:
    """Two namespaces joined by veth, gone at the end; without privilege the wire is loopback."""

    def __enter__(self) -> Wire:
        self._holders: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(2):
                self._holders.append(subprocess.Popen(["unshare", "--net", "sleep", "3600"]))
            time.sleep(0.2)
            one, two = (holder.pid for holder in self._holders)
            self._run(one, f"ip link add va type veth peer name vb netns {two}")
            for pid, name, address in ((one, "va", SENDER_ADDRESS), (two, "vb", RECEIVER_ADDRESS)):
                self._run(pid, "ip link set lo up")
                self._run(pid, f"ip addr add {address}/24 dev {name}")
                self._run(pid, f"ip link set {name} up")
                self._run(pid, f"ip route add 224.0.0.0/4 dev {name}")
        except (OSError, subprocess.CalledProcessError):
            self.__exit__()
            return Wire()
        return Wire(one, two)

    def __exit__(self, *_: object) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()
        self._holders = []

    def _run(self, pid: int, command: str) -> None:
        whole = ["nsenter", "-t", str(pid), "-n", *command.split()]
        subprocess.run(whole, check=True, capture_output=True, timeout=10)


def enter(pid: int) -> None:
    """Go into the namespace of a process; to be called before there are threads and sockets."""
    if not pid:
        return
    with open(f"/proc/{pid}/ns/net") as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), _CLONE_NEWNET):
            raise TrialError(f"setns: {os.strerror(ctypes.get_errno())}")


def pick_port() -> int:
    return random.randrange(20_000, 30_000)


# ----------------------------------------------------------------------------------------- ours


class GroupSender(Sender):
    def __init__(
        self,
        wire: Wire,
        port: int,
        security: Callable[[], p2pmsg.Security] | None = None,
    ) -> None:
        enter(wire.sender_pid)
        self.endpoint = str(port)
        place = f"udp://239.255.3.1:{port}?interface={wire.sender_address}"
        self.publisher = p2pmsg.Publisher(
            place, name="bench", replay_bytes=REPLAY_BYTES, security=security and security()
        )

    def wait_ready(self, subscriber_count: int) -> None:
        self.publisher.wait_for_subscribers(subscriber_count, timeout=READY_SECONDS)

    def send(self, values: list[Any]) -> None:
        self.publisher.publish_many(TOPIC, values)

    def send_one(self, value: Any) -> None:
        self.publisher.publish(TOPIC, value)

    def finish(self) -> None:
        self.publisher.flush()

    def close(self) -> None:
        self.publisher.close()


class GroupReceiver:
    def __init__(
        self,
        wire: Wire,
        port: int | str,
        loss: float = 0.0,
        security: Callable[[], p2pmsg.Security] | None = None,
        key: str = "",
    ) -> None:
        enter(wire.receiver_pid)
        place = f"udp://239.255.3.1:{port}?interface={wire.receiver_address}"
        self.subscriber = p2pmsg.Subscriber(
            f"{place}&key={key}" if key else place,
            topics=[TOPIC],
            security=security and security(),
        )
        if loss:
            lose_datagrams(self.subscriber, loss)

    def receive(self, count: int) -> list[Any]:
        return self.subscriber.receive_many(65_536, TIMEOUT_SECONDS).values

    def receive_one(self) -> Any:
        return self.subscriber.receive(TIMEOUT_SECONDS).value

    def receive_rest(self, seconds: float) -> int:
        stats = self.subscriber.stats()
        if stats.lost or not stats.balanced:
            raise TrialError(f"{stats.lost} messages were reported lost")
        return receive_rest(self.subscriber, seconds)

    def close(self) -> None:
        self.subscriber.close()


# ---------------------------------------------------------------------------------------- peers


class Acks:
    """Keeps a sender without flow control within its receivers' buffers, so nothing is lost."""

    def __init__(self, address: str, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, port))
        self._socket.settimeout(TIMEOUT_MS / 1e3)
        self._counts: dict[Any, int] = {}
        self._receivers = 0
        self.sent = 0

    def wait_ready(self, receivers: int) -> None:
        self._receivers = receivers
        while len(self._counts) < receivers:
            self._take()

    def pace(self) -> None:
        self.sent += 1
        while self.sent - min(self._counts.values()) >= WINDOW_COUNT:
            self._take()

    def _take(self) -> None:
        data, who = self._socket.recvfrom(64)
        self._counts[who] = max(self._counts.get(who, 0), int(data))

    def close(self) -> None:
        self._socket.close()


class Acker:
    def __init__(self, address: str, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._to = (address, port)
        self._count = 0
        self._socket.sendto(b"0", self._to)

    def note(self, count: int) -> None:
        before = self._count // ACK_COUNT
        self._count += count
        if self._count // ACK_COUNT > before:
            self._socket.sendto(b"%d" % self._count, self._to)

    def close(self) -> None:
        self._socket.close()


class PacedByAcks(Sender):
    """What both senders without flow control share."""

    def __init__(self, wire: Wire, port: int) -> None:
        enter(wire.sender_pid)
        self.endpoint = str(port)
        self._acks = Acks(wire.sender_address, port + 1)

    def wait_ready(self, subscriber_count: int) -> None:
        self._acks.wait_ready(subscriber_count)

    def close(self) -> None:
        self._acks.close()


class RawUdpSender(PacedByAcks):
    def __init__(self, wire: Wire, port: int) -> None:
        super().__init__(wire, port)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        interface = socket.inet_aton(wire.sender_address)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
        self._socket.connect(("239.255.3.2", port))
        self.send_one = self._socket.send

    def send(self, values: list[Any]) -> None:
        send, pace = self._socket.send, self._acks.pace
        for value in values:
            send(value)
            pace()

    def close(self) -> None:
        self._socket.close()
        super().close()


class RawUdpReceiver:
    def __init__(self, wire: Wire, endpoint: str) -> None:
        enter(wire.receiver_pid)
        port = int(endpoint)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        self._socket.bind(("239.255.3.2", port))
        group = socket.inet_aton("239.255.3.2") + socket.inet_aton(wire.receiver_address)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
        self._socket.settimeout(TIMEOUT_MS / 1e3)
        self._acker = Acker(wire.sender_address, port + 1)
        recv = self._socket.recv
        self.receive_one = lambda: recv(2048)

    def receive(self, count: int) -> list[Any]:
        recv = self._socket.recv
        values = [recv(2048) for _ in range(min(count, ACK_COUNT))]
        self._acker.note(len(values))
        return values

    def receive_rest(self, seconds: float) -> int:
        self._socket.settimeout(seconds)
        try:
            self._socket.recv(2048)
        except TimeoutError:
            return 0
        return 1

    def close(self) -> None:
        self._socket.close()
        self._acker.close()


class LcmSender(PacedByAcks):
    def __init__(self, wire: Wire, port: int) -> None:
        import lcm

        super().__init__(wire, port)
        ttl = 1 if wire.sender_pid else 0
        self._lcm = lcm.LCM(f"udpm://239.255.76.67:{port}?ttl={ttl}")

    def send(self, values: list[Any]) -> None:
        publish, pace = self._lcm.publish, self._acks.pace
        for value in values:
            publish(TOPIC, value)
            pace()


class LcmReceiver:
    def __init__(self, wire: Wire, endpoint: str) -> None:
        import lcm

        enter(wire.receiver_pid)
        port = int(endpoint)
        ttl = 1 if wire.sender_pid else 0
        self._lcm = lcm.LCM(f"udpm://239.255.76.67:{port}?ttl={ttl}&recv_buf_size={_RECEIVE_BYTES}")
        self._values: deque[bytes] = deque()
        handle = self._lcm.subscribe(TOPIC, lambda _, data: self._values.append(data))
        handle.set_queue_capacity(0)
        self._acker = Acker(wire.sender_address, port + 1)

    def receive(self, count: int) -> list[Any]:
        wanted = min(count, ACK_COUNT)
        values, handle = self._values, self._lcm.handle_timeout
        while len(values) < wanted:
            if not handle(TIMEOUT_MS):
                raise TrialError("LCM: nothing came")
        found = [values.popleft() for _ in range(wanted)]
        self._acker.note(wanted)
        return found

    def receive_rest(self, seconds: float) -> int:
        return len(self._values) + bool(self._lcm.handle_timeout(int(seconds * 1e3)))

    def close(self) -> None:
        self._acker.close()


def over(
    wire: Wire, name: str, sender: type[Sender], receiver: type[Receiver], **options: Any
) -> Contender:
    """Return a way of sending over the wire, at a port of its own; `options` are the receiver's."""
    return Contender(name, partial(sender, wire, pick_port()), partial(receiver, wire, **options))


def why_not(package: str) -> str | None:
    """Return why a peer cannot be measured, or None."""
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    return None
