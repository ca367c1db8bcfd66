"""A stranger in the simulator: forges frames of every kind and never joins."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from random import Random
from typing import Final

from p2pmsg import control, wire
from p2pmsg.multicast import datagram
from p2pmsg.multicast.parity import Parity
from p2pmsg.multicast.run import is_sealed
from p2pmsg.multicast.seal import CIPHERS, OpeningKey, SealingKey, make_secret
from p2pmsg.multicast.signing import BlockSigner, SignedSealingKey
from p2pmsg.wire import FrameError, Kind
from p2pmsg.wire import control_frame as _frame
from tests.simulation.simulator import SimulatedPublisher, Simulation
from transports import TransportError
from transports.memory import Link, MemoryRecoveryClient

_PORT_BYTES: Final = 4
_HEARD_MAX: Final = 256
_OVERTAKEN_S: Final = 0.03
_BURST_MAX: Final = 20
_FAR: Final = (100_000, 10**9, 2**62)
"""How far ahead of a stream forged data are."""
_ENDLESS: Final = 2**62
_NOWHERE: Final = "memory://nowhere"


class Stranger:
    """Forges frames in a simulation, `rate` bursts a second, until it is healed.

    It hears what is sent to the groups: sessions, names, topics and where streams stand, and most
    of its datagrams have the publisher's address. It does not know what goes from one peer to
    another alone, such as tokens and probes. Data with the next sequences of a stream are among
    what it forges in sealed groups only: without keys those are believed.

    Attributes:
        forged: how many frames it sent, by kind.

    """

    def __init__(self, simulation: Simulation, rate: float) -> None:
        self._simulation, self._network = simulation, simulation.network
        self._rng = Random(simulation.options.seed ^ 0x5757)
        self._client: MemoryRecoveryClient | None = None
        self._recovery = ""
        self._topics = 0
        self._heard: defaultdict[tuple[str, bool], deque[bytes]]
        self._heard = defaultdict(lambda: deque(maxlen=_HEARD_MAX))
        self.forged: Counter[str] = Counter()
        self._to_group: list[Callable[[SimulatedPublisher], bytes]] = [
            self._heartbeat, self._data_ahead, self._welcome, self._part, self._parity, self._mark,
            self._refused, self._echo, self._joined, self._nack, self._garbage, self._data_next,
        ]  # fmt: skip
        self._to_publisher: list[Callable[[SimulatedPublisher], bytes]] = [
            self._nack, self._nack_parts, self._marked, self._joined, self._leave, self._refused,
            self._welcome, self._garbage,
        ]  # fmt: skip
        self._to_recovery: list[Callable[[SimulatedPublisher], bytes]] = [
            self._nack, self._joined, self._leave, self._heads_request, self._marked,
            self._heartbeat, self._data_ahead, self._refused, self._garbage,
        ]  # fmt: skip
        self._network.watchers.append(self._hear)
        simulation.at_rate(rate, self.act)

    def _hear(self, link: Link, frame: bytes) -> bool:
        if link.kind == "data":
            self._heard[self._network.name_of(link.source), True].append(frame[:-_PORT_BYTES])
        elif ".answers" in link.target:  # what it sends again comes after the first one
            heard = self._heard[self._network.name_of(link.target), False]
            later = self._network.options.delay[1] + _OVERTAKEN_S
            self._network.after(later, heard.append, frame[:-_PORT_BYTES])
        return False

    def act(self) -> None:
        """Send a few forged frames of one kind."""
        publisher = self._rng.choice(self._simulation.publishers)
        if publisher.core is None:
            return
        if self._network.options.multicast in ("sealed", "signed"):
            self._attack_sealed(publisher)
            self._check(publisher)
            return
        if not self._network.options.multicast or self._rng.random() < 0.1:
            self._ask(publisher)
        else:
            make = self._rng.choice(self._to_publisher)
            for _ in range(self._burst()):
                publisher.take_forged(self._sealed(make(publisher)))
        self._check(publisher)

    def _attack_sealed(self, publisher: SimulatedPublisher) -> None:
        """Send datagrams to a sealed group, or to its publisher, without a key of either."""
        to_publisher = self._rng.random() < 0.3
        spoofed = self._rng.random() < 0.8
        by_member = self._network.options.multicast == "signed" and self._rng.random() < 0.5
        for _ in range(self._burst()):
            if by_member and not to_publisher:
                data = self._by_member(publisher)
            else:
                data = self._without_key(publisher, to_publisher)
            if to_publisher:
                publisher.take_forged(data)
                continue
            for subscriber in self._simulation.subscribers:
                subscriber.take_forged(publisher, data, spoofed=spoofed)

    def _without_key(self, publisher: SimulatedPublisher, to_publisher: bool) -> bytes:
        """Return a datagram that was heard, perhaps changed or cut, or one with a forged frame."""
        rng = self._rng
        heard = self._heard[publisher.name, to_publisher == (rng.random() < 0.2)]
        data = rng.choice(heard) if heard else b""
        way = rng.choice(("replayed", "changed", "cut", "forged", "readable", "readable"))
        frame = rng.choice(self._to_publisher if to_publisher else self._to_group)(publisher)
        self.forged[way] += 1
        self._network.note(f"a stranger sends {way}")
        if way == "readable" or not is_sealed(data):
            return datagram.with_checksum(self._made(frame))
        if way == "replayed":
            return data
        if way == "changed":
            at = rng.randrange(len(data))
            return data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]
        if way == "cut":
            return data[: rng.randrange(len(data))]
        counter = int.from_bytes(data[8:16], "big") + rng.randrange(1000)
        secret = make_secret(CIPHERS[0], rng)._replace(id=data[4:8])
        return SealingKey(secret, counter).seal(frame)

    def _by_member(self, publisher: SimulatedPublisher) -> bytes:
        """Return a datagram sealed with the group's key, which its publisher has not signed."""
        rng, multicast = self._rng, publisher.multicast
        assert multicast is not None
        group = multicast.keys
        assert group is not None
        secret = group.group.secret
        counter = rng.choice((group.group.counter + rng.randrange(100), rng.randrange(2**62)))
        way = rng.choice(("unsigned", "own signature", "its signature", "sealed again"))
        self.forged[way] += 1
        self._network.note(f"a member sends {way}")
        frame = rng.choice(self._to_group)(publisher)
        if way == "own signature":
            signer = BlockSigner(rng.randbytes(32))
            return SignedSealingKey(secret, signer, counter).seal(frame)
        heard = [data for data in self._heard[publisher.name, True] if data[4:8] == secret.id]
        if heard and way != "unsigned":
            data = rng.choice(heard)
            content = OpeningKey(secret, 0, first=0).open(data)
            proof = content[-1] * 16 + 66
            frame = content if way == "sealed again" else frame + content[-proof:]
        return SealingKey(secret, counter).seal(frame)

    def _data_next(self, publisher: SimulatedPublisher) -> bytes:
        session, topic, following = self._stream(publisher)
        return self._data(session, topic, following, self._rng.choice((0, wire.FLAG_PLAIN)))

    def _burst(self) -> int:
        return self._rng.randrange(1, _BURST_MAX)

    def _sealed(self, frame: bytes) -> bytes:
        return datagram.with_checksum(self._made(frame))

    def _made(self, frame: bytes) -> bytes:
        try:
            kind = Kind(frame[frame.index(b"\0") + 4]).name
        except (ValueError, IndexError):
            kind = "garbage"
        self.forged[kind] += 1
        self._network.note(f"a stranger sends {kind}")
        return frame

    def _ask(self, publisher: SimulatedPublisher) -> None:
        """Send requests over a connection of its own, as anybody may."""
        if self._client is None or self._recovery != publisher.recovery:
            if self._client is not None:
                self._client.close()
            self._recovery = publisher.recovery
            self._client = MemoryRecoveryClient(
                publisher.recovery, network=self._network.sockets, name="stranger"
            )
            self._client.connect()
        try:
            while self._client.receive() is not None:
                pass
            make = self._rng.choice(self._to_recovery)
            for _ in range(self._burst()):
                self._client.send(self._made(make(publisher)))
        except (TransportError, FrameError):
            self._client = None

    def _check(self, publisher: SimulatedPublisher) -> None:
        """Complain of what no stranger may bring about."""
        network, multicast = self._network, publisher.multicast
        if network.answered_bytes:
            self._simulation.complain(f"a stranger got {network.answered_bytes} bytes for nothing")
            network.answered_bytes = 0
        if multicast is not None:
            subscribers = self._simulation.subscribers
            known = len(subscribers) * (1 + max(one.crashes for one in subscribers))
            if multicast.window.receivers > known:
                self._simulation.complain(f"{publisher.name} waits for receivers that never joined")

    def _stream(self, publisher: SimulatedPublisher) -> tuple[int, str, int]:
        """Return (session, topic, next sequence) of a real stream."""
        core = publisher.core
        assert core is not None
        heads = core.heads() or {publisher.topics[0]: (0, 0)}
        topic = self._rng.choice(sorted(heads))
        return core.session, topic, heads[topic][1]

    def _new_topic(self) -> str:
        self._topics += 1
        return f"forged-{self._topics}"

    def _heartbeat(self, publisher: SimulatedPublisher) -> bytes:
        session, topic, following = self._stream(publisher)
        ahead = following + self._rng.choice((0, self._rng.randrange(1, 50), *_FAR))
        earliest = self._rng.choice((0, following, ahead))
        topic = self._rng.choice((topic, topic, self._new_topic()))
        sequence, body = min(ahead, 2**63 - 1), control.Heartbeat(earliest)
        return _frame(Kind.HEARTBEAT, session, body, sequence=sequence, topic=topic.encode())

    def _data(self, session: int, topic: str, sequence: int, flags: int = 0) -> bytes:
        body = b"\x94\x91\xa6forged\xc0\xc0\xc0"
        rest = wire.REST.pack(min(sequence, 2**63 - 2), 1, len(body), 0)
        return wire.stream_prefix(topic, session, flags) + rest + body

    def _data_ahead(self, publisher: SimulatedPublisher) -> bytes:
        session, topic, following = self._stream(publisher)
        topic = self._rng.choice((topic, topic, self._new_topic()))
        flags = self._rng.choice((0, wire.FLAG_PLAIN, wire.FLAG_RETRANSMISSION))
        return self._data(session, topic, following + self._rng.choice(_FAR), flags)

    def _welcome(self, publisher: SimulatedPublisher) -> bytes:
        """Announce another session, another recovery channel, other settings, or the end."""
        session = self._rng.choice((self._stream(publisher)[0], self._rng.getrandbits(64)))
        recovery = self._rng.choice((_NOWHERE, publisher.recovery))
        flags = self._rng.choice((0, 0, wire.FLAG_CLOSING))
        if self._rng.random() < 0.5:
            flags |= wire.FLAG_SEALED
        receivers, incarnation = self._rng.choice((0, 1, 2**31)), self._rng.getrandbits(64)
        body = control.Welcome(publisher.name, recovery, 1000.0, receivers, 0.0, incarnation)
        return _frame(Kind.WELCOME, session, body, flags=flags)

    def _part(self, publisher: SimulatedPublisher) -> bytes:
        session, topic, following = self._stream(publisher)
        session = self._rng.choice((session, self._rng.getrandbits(64)))
        topic = self._rng.choice((topic, self._new_topic()))
        sequence = following + self._rng.choice((self._rng.randrange(1, 50), 2**62))
        frame = self._data(session, topic, sequence) + bytes(1000)
        return self._rng.choice(datagram.fragments(frame, 400))

    def _parity(self, publisher: SimulatedPublisher) -> bytes:
        session, topic, following = self._stream(publisher)
        sequence = following + self._rng.choice(_FAR)
        data = self._data(session, topic, sequence)
        body = Parity(1, 1, 0, [topic], [(0, min(sequence, 2**63 - 2), len(data))], data)
        number = self._rng.choice((1, self._rng.getrandbits(62)))
        return _frame(Kind.PARITY, session, body, sequence=number)

    def _mark(self, publisher: SimulatedPublisher) -> bytes:
        session = self._stream(publisher)[0]
        return _frame(Kind.MARK, session, sequence=self._rng.getrandbits(62))

    def _refused(self, publisher: SimulatedPublisher) -> bytes:
        session, topic, following = self._stream(publisher)
        reason = self._rng.choice(("evicted", "crash", "budget"))
        body = control.Refused(topic, [(0, following + 1000)], reason)
        return _frame(Kind.REFUSED, session, body)

    def _echo(self, publisher: SimulatedPublisher) -> bytes:
        _, topic, following = self._stream(publisher)
        head = control.Head(topic, following + 5, following + 9, 0)
        body = control.Heads(publisher.name, [head])
        return _frame(Kind.ECHO, self._rng.getrandbits(64), body)

    def _nack(self, publisher: SimulatedPublisher) -> bytes:
        session, topic, _ = self._stream(publisher)
        attempt = self._rng.choice((1, 5, 1000))
        body = control.Nack(topic, [(0, self._rng.choice((1, _ENDLESS)))], attempt)
        return _frame(Kind.NACK, session, body)

    def _nack_parts(self, publisher: SimulatedPublisher) -> bytes:
        session, topic, following = self._stream(publisher)
        body = control.Nack(topic, [(0, 1000)], 1, self._rng.randrange(following + 1))
        return _frame(Kind.NACK, session, body)

    def _marked(self, publisher: SimulatedPublisher) -> bytes:
        session = self._stream(publisher)[0]
        return _frame(Kind.MARKED, session, control.Marked(self._rng.getrandbits(64), 0, 1))

    def _joined(self, publisher: SimulatedPublisher) -> bytes:
        session = self._stream(publisher)[0]
        body = control.Joined(self._rng.getrandbits(64), "stranger", True)
        return _frame(Kind.JOINED, session, body)

    def _leave(self, publisher: SimulatedPublisher) -> bytes:
        session = self._stream(publisher)[0]
        return _frame(Kind.LEAVE, session, control.Joined(self._rng.getrandbits(64), "stranger"))

    def _heads_request(self, publisher: SimulatedPublisher) -> bytes:
        session = self._stream(publisher)[0]
        return _frame(Kind.HEADS_REQUEST, session, sequence=self._rng.getrandbits(62))

    def _garbage(self, publisher: SimulatedPublisher) -> bytes:
        session = self._stream(publisher)[0]
        kind = self._rng.choice(list(Kind))
        noise = bytearray(_frame(kind, session) + self._rng.randbytes(20))
        noise[5 + self._rng.randrange(len(noise) - 5)] ^= 1 + self._rng.randrange(255)
        return bytes(noise)
