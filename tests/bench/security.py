"""What keys cost: the same publishers and subscribers with CURVE and without, and against pyzmq."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import zmq

import p2pmsg
import transports
from p2pmsg.security import KeyPair, KnownPeers
from p2pmsg.security.access_watch import prefixes_allowed
from tests.bench.groups import GroupReceiver, GroupSender, Namespaces, Wire, over
from tests.bench.harness import Contender, Plan, measure_ping_pong, measure_throughput
from tests.bench.loads import LARGE_BYTES, TrialError
from tests.bench.ours import OURS, REPLAY_BYTES, TOPIC, OursReceiver, OursSender
from tests.bench.peers import ZmqReceiver, ZmqSender
from tests.bench.report import Goal, Row, rate_goal
from transports.curve import CurveClient, CurveServer

AREA = "security"
SUBSCRIPTIONS = 20_000
MEGABYTE = 1e6
ACCESS = '[[rule]]\nwho = ["*"]\nsubscribe = ["topic*", "other*"]\n'
# Keys for the bench only: each process makes the same ones.
SERVER, CLIENT = (KeyPair.of_secret(bytes([at]) * 32) for at in (1, 2))


def security(own: KeyPair, folder: str, access: str | None = None) -> p2pmsg.Security:
    return p2pmsg.Security(own, Path(folder, "known_peers"), access)


class SecureSender(OursSender):
    """`publish` once a message, to subscribers with keys."""

    def __init__(self, folder: str) -> None:
        self._publisher = p2pmsg.Publisher(
            "tcp://127.0.0.1:0",
            name="bench",
            replay_bytes=REPLAY_BYTES,
            security=security(SERVER, folder),
        )
        self.endpoint = f"{self._publisher.endpoint}?key={SERVER.public_text}"


class SecureReceiver(OursReceiver):
    """Messages iterated one by one, from a publisher with a key."""

    def __init__(self, folder: str, endpoint: str) -> None:
        self._subscriber = p2pmsg.Subscriber(
            endpoint, topics=[TOPIC], start="latest", security=security(CLIENT, folder)
        )
        self._messages = iter(self._subscriber)


class CurveZmqSender(ZmqSender):
    """One frame a message, with CURVE, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self._socket.unbind(self.endpoint)
        public, secret = z85(SERVER)
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = public, secret
        self._socket.bind("tcp://127.0.0.1:*")
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)


class CurveZmqReceiver(ZmqReceiver):
    def __init__(self, endpoint: str) -> None:
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.curve_publickey, self._socket.curve_secretkey = z85(CLIENT)
        self._socket.curve_serverkey = z85(SERVER)[0]
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.RCVTIMEO, 20_000)
        self._socket.connect(endpoint)
        self.receive_one = self._socket.recv


def z85(keys: KeyPair) -> tuple[bytes, bytes]:
    return zmq.utils.z85.encode(keys.public), zmq.utils.z85.encode(keys.secret)


CURVE_ZMQ = Contender("pyzmq with CURVE", CurveZmqSender, CurveZmqReceiver)
_rate = partial(rate_goal, AREA)
ONE_BY_ONE = _rate("publish one by one, 128 B, CURVE against plain", 0.6, 0.8)
LARGE = _rate("64 KiB values, CURVE against plain", 0.35, 0.5, unit="MB/s")
BY_HAND = _rate("the same, one by one, against pyzmq with CURVE, one frame a message", 2, 4)
FOUR = _rate("one publisher to four subscribers, CURVE against plain", 0.5, 0.8)
PING_PONG = Goal(AREA, "ping-pong, median of RTT/2, CURVE against plain", "µs", 1.15, 1.05,
                 lower_is_better=True)  # fmt: skip
SUBSCRIBE = Goal(AREA, "a subscription, with rights by topic against without", "µs", 8, 3,
                 lower_is_better=True)  # fmt: skip
SEALED = _rate("publish_many + receive_many, sealed multicast against plain multicast", 0.7, 0.9)


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows of the area as they are measured."""
    with TemporaryDirectory() as folder:
        known = KnownPeers(Path(folder, "known_peers"))
        known.add("server", SERVER.public_text)
        known.add("client", CLIENT.public_text)
        secured = Contender(
            "p2pmsg, CURVE", partial(SecureSender, folder), partial(SecureReceiver, folder)
        )
        races = (
            (ONE_BY_ONE, OURS, "small", 1, 1.0),
            (LARGE, OURS, "large", 1, LARGE_BYTES / MEGABYTE),
            (BY_HAND, CURVE_ZMQ, "small", 1, 1.0),
            (FOUR, OURS, "small", 4, 1.0),
        )
        for goal, peer, load, count, scale in races:
            yield goal.guarded(
                lambda goal=goal, peer=peer, load=load, count=count, scale=scale: goal.raced(
                    secured, peer, plan, load=load, subscribers=count, scale=scale
                )
            )
        yield PING_PONG.guarded(
            lambda: PING_PONG.compared(
                lambda: measure_ping_pong(secured, plan),
                lambda: measure_ping_pong(OURS, plan),
                plan.run_count,
            )
        )
        with Namespaces() as wire:
            yield SEALED.guarded(lambda: run_sealed(wire, folder, plan))
        access = Path(folder, "access.toml")
        access.write_text(ACCESS)
        yield SUBSCRIBE.guarded(
            lambda: SUBSCRIBE.compared(
                lambda: subscription_us(folder, str(access)),
                lambda: subscription_us(folder, None),
                plan.run_count,
                f"{SUBSCRIPTIONS:,} topics of one subscriber; processor time of the publisher",
            )
        )


def run_sealed(wire: Wire, folder: str, plan: Plan) -> Row:
    """Compare the rates of a multicast whose datagrams are sealed, and of one whose are not."""
    sealing, opening = partial(security, SERVER, folder), partial(security, CLIENT, folder)
    sender: Any = partial(GroupSender, security=sealing)

    def sealed() -> float:
        ours = over(wire, "p2pmsg, sealed multicast", sender, GroupReceiver,
                    security=opening, key=SERVER.public_text)  # fmt: skip
        return measure_throughput(ours, "small", 1, plan)

    def plain() -> float:
        peer = over(wire, "p2pmsg, multicast", GroupSender, GroupReceiver)
        return measure_throughput(peer, "small", 1, plan)

    note = "veth between two namespaces" if wire.sender_pid else "loopback: no privilege"
    return SEALED.compared(sealed, plain, plan.run_count, note)


def subscription_us(folder: str, access: str | None) -> float:
    """Return what taking up a subscription costs the publisher's thread, in µs."""
    own = security(SERVER, folder, access)
    allows: Any = None if own.access_rules is None else prefixes_allowed(own.access_rules)
    context = transports.context()
    sender = transports.ZmqSender(
        "tcp://127.0.0.1:0",
        context=context,
        curve=CurveServer(own.keys, own.admits),
        allows=allows,
    )
    receiver = transports.ZmqReceiver(
        sender.endpoint, context=context, curve=CurveClient(CLIENT, SERVER.public)
    )
    try:
        for at in range(SUBSCRIPTIONS):
            receiver.subscribe(b"topic%d\0" % at)
        receiver.connect()
        taken, spent_ns, end = 0, 0, time.monotonic() + 30
        while taken < SUBSCRIPTIONS:
            if time.monotonic() > end:
                raise TrialError(f"{taken} of {SUBSCRIPTIONS} subscriptions came within 30 s")
            receiver.receive()
            began_ns = time.thread_time_ns()
            found = sender.take_subscriptions()
            if found:
                spent_ns += time.thread_time_ns() - began_ns
                taken += found
            else:
                time.sleep(0.0005)
        return spent_ns / taken / 1e3
    finally:
        receiver.close()
        sender.close()
