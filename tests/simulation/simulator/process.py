"""What simulated publishers, relays and subscribers have in common: a peer that lives and dies."""

from collections import deque
from functools import partial

import transports
from p2pmsg.driver.verbs import Done, Steps
from p2pmsg.driver.virtual import VirtualDriver
from p2pmsg.testing.host import Host, place_of
from p2pmsg.testing.memory_group import PORT, MemoryGroupReceiver, MemoryGroupSender
from transports.memory import MemoryReceiver, MemoryRecoveryClient

STRANGER = "a stranger"
"""The address of a peer that never joined."""
_FORGED_MAX = 4096


class SimulatedDriver(VirtualDriver):
    """The virtual driver, for a simulated application: it waits for nothing, and sees each turn."""

    may_wait = False

    def __init__(self, peer, network, on_turn):
        super().__init__(peer, network, network.turns)
        self._on_turn = on_turn
        self._frozen_until_ns = 0

    def freeze(self, until_ns):
        """Take no turns until a time, as a process that is stopped."""
        self._frozen_until_ns = max(self._frozen_until_ns, until_ns)
        self._expect(self._frozen_until_ns)

    def thaw(self):
        """End what `freeze` has begun."""
        self._frozen_until_ns = 0

    def begin(self, verb, on_end=bool):
        """Begin a verb, which goes on after turns; `on_end` gets what it returns."""
        self._go_on(Steps(verb), on_end)

    def _go_on(self, steps, on_end):
        request = self.go_on(steps, partial(self._go_on, steps, on_end))
        if isinstance(request, Done):
            on_end(request.value)

    def arrived(self):
        if not self._frozen_until_ns or self.now_ns() >= self._frozen_until_ns:
            super().arrived()

    def _on_time(self, due_ns):
        if not self._frozen_until_ns or self.now_ns() >= self._frozen_until_ns:
            super()._on_time(due_ns)
        elif due_ns == self._expected_ns and not self.stopping:
            self._expected_ns = 0
            self._expect(self._frozen_until_ns)

    def _take_turn(self):
        super()._take_turn()
        if not self.stopping:
            self._on_turn()


class _GroupSender(MemoryGroupSender):
    """A publisher's end of a multicast, to which strangers send."""

    def __init__(self, network, *arguments):
        super().__init__(network, *arguments)
        self._network, self.forged = network, deque(maxlen=_FORGED_MAX)

    def send(self, datagram, address=None):
        if address == STRANGER:
            self._network.answered_bytes += len(datagram)
            return True
        return super().send(datagram, address)

    def receive(self):
        return (self.forged.popleft(), STRANGER) if self.forged else super().receive()


class _GroupReceiver(MemoryGroupReceiver):
    """A subscriber's end of a multicast, to which strangers send, as if they were its publisher."""

    def __init__(self, network, endpoint, name, **options):
        super().__init__(network, endpoint, name, **options)
        self._network, self.forged = network, deque(maxlen=_FORGED_MAX)
        self.ports[f"{endpoint}/1"] = PORT.pack(1)

    def send(self, datagram, address):
        if address == STRANGER:
            self._network.answered_bytes += len(datagram)
        else:
            super().send(datagram, address)

    def receive(self):
        if self.forged:
            data, address = self.forged.popleft()
            return memoryview(data), len(data) or 1, address
        return super().receive()


class SimulatedHost(Host):
    """The host of one peer, whose application sees each of its turns.

    Attributes:
        driver: of the peer; None while it is dead.

    """

    driver = None
    group_sender_type, group_receiver_type = _GroupSender, _GroupReceiver

    def __init__(self, network, name, on_turn):
        super().__init__(network, name)
        self._on_turn = on_turn

    def thread_driver(self, peer):
        self.driver = self.drive(SimulatedDriver(peer, self.network, self._on_turn))
        return self.driver

    def kill(self):
        self.driver = None
        return super().kill()

    def publishing_endpoint(self, *, multicast):
        """Return where a publisher on this host publishes."""
        place = f"memory://{self.name}"
        if not multicast:
            return place
        owners, security = self.network.owners, self.network.security
        group = transports.parse_endpoint(f"udp://239.0.0.{1 + len(owners)}:5000")
        owners[place_of(group)] = self.name
        return str(group) if security is None else f"{group}?key={security.keys.public_text}"

    def take_forged(self, data, *, spoofed=False, endpoint=""):
        """Have the sockets of a multicast, of `endpoint`'s alone, take a stranger's datagram."""
        place = place_of(transports.parse_endpoint(endpoint)) if endpoint else ""
        for one in self.opened:
            if isinstance(one, _GroupSender):
                one.forged.append(data)
            elif isinstance(one, _GroupReceiver) and one.endpoint == place:
                newest = next(reversed(one.ports))
                one.forged.append((data, newest if spoofed else STRANGER))

    def cut(self, line, *, recovery):
        """Cut a connection of the data path, and the recovery channels too; they come back."""
        lines = [
            one for one in self.opened if isinstance(one, MemoryReceiver | MemoryGroupReceiver)
        ]
        lines[line].reconnect()
        for one in self.opened if recovery else ():
            if isinstance(one, MemoryRecoveryClient) and not one.closed:
                one.reconnect()


class SimulatedProcess:
    """A process, through all its incarnations.

    Attributes:
        name: of the process.
        host: its sockets, clock, chance and disk, and its peer.
        is_gone: whether it ended and will not return.

    """

    def __init__(self, name, network, history):
        self.name = name
        self.host = SimulatedHost(network, name, self._on_turn)
        self.is_gone = False
        self._network = network
        self._history = history

    @property
    def peer(self):
        """The real one, or None while it is dead."""
        return None if self.host.driver is None else self.host.driver.peer

    @property
    def crashes(self):
        """How often it died."""
        return self.host.incarnation

    def leave_for_good(self):
        """Crash, never to come back."""
        self.crash()
        self.is_gone = True

    def crash(self):
        """Crash; what was on its way is lost."""
        if self.host.driver is not None:
            self.host.kill()

    def pump(self):
        """Have a turn taken now."""
        if self.host.driver is not None:
            self.host.driver.arrived()

    def hears(self, publisher):
        """Whether the data path from a publisher, or a relay, works."""
        return not self._network.is_one_way(publisher.name, self.name)

    def peer_of(self, publisher):
        """Return what is known of the publisher's current incarnation."""
        if self.core is None or publisher.session is None:
            return None
        return self.core.peers.get(publisher.session)

    def _on_turn(self):
        """Look at the peer after one of its turns."""
