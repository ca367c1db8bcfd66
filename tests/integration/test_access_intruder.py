"""A peer with a valid key that asks pushers and responders in every way the protocol has."""

import pytest

from p2pmsg import Puller, Pusher, Requester, Responder, wire
from p2pmsg.queue import frames as queue
from p2pmsg.requests import frames as requests
from p2pmsg.wire import Frame, Kind
from tests.integration.inside import identity_of
from tests.integration.peers import LOOPBACK, eventually
from transports import ZmqRecoveryClient, context, parse_endpoint
from transports.curve import CurveClient
from transports.zmq_plain import ZmqPlainSocket

TIMEOUT = 60.0
SECRET = "what-nobody-else-may-read"
ANN = "[[rule]]\nwho = ['ann']\npull = ['jobs']\nrequest = ['price']\nadmin = ['jobs']\n"
BOB = "[[rule]]\nwho = ['bob']\npull = ['others', 'job']\nrequest = ['load']\nadmin = ['others']\n"


@pytest.fixture
def server(peers, tmp_path):
    path = tmp_path / "access.toml"
    path.write_text(ANN + BOB)
    return peers.security("server", "ann", "bob", access=path)


class Intruder:
    """Holds bob's key, and speaks over a socket of its own."""

    def __init__(self, peers, endpoint):
        self.curve = CurveClient(peers.keys["bob"], peers.keys["server"].public)
        self._client = ZmqRecoveryClient(endpoint, context=context(), curve=self.curve)
        self._client.connect()
        self.received = []

    def send(self, kind, session, body=None, **header):
        self.send_raw(wire.control_frame(kind, session, body, **header))

    def send_raw(self, frame):
        eventually(lambda: self._client.send(frame))

    def kinds(self):
        while (data := self._client.receive()) is not None:
            self.received.append(data)
        return {Frame(data).kind for data in self.received}

    def close(self):
        self._client.close()


@pytest.fixture
def intrude(peers):
    made = []

    def make(endpoint):
        made.append(Intruder(peers, endpoint))
        return made[-1]

    peers.security("bob")
    yield make
    for one in made:
        one.close()


@pytest.mark.internal
def test_an_intruder_gets_no_job_by_the_batch(peers, server, intrude):
    with Pusher(LOOPBACK, name="jobs", security=server, acknowledge="batch") as pusher:
        where = peers.pinned(pusher.endpoint, "server")
        with Puller(where, security=peers.security("ann"), acknowledge="batch") as ann:
            eventually(lambda: ann.connected)
            (worker,) = pusher._peer.jobs.core._users
            intruder = intrude(pusher.endpoint)
            place = parse_endpoint(pusher._peer._push_sockets._sockets[worker].endpoint)
            pull = ZmqPlainSocket(
                "pull", place, binds=False, context=context(), curve=intruder.curve,
                queue_messages=10, message_bytes_max=2**20,
            )  # fmt: skip
            pull.open()
            for number in range(200):
                pusher.push(f"{SECRET}{number}")
                if number == 100:
                    hello = queue.Hello("bob", "", 0, 0, 64, 2, 0, [], [], 64, 2**24, True)
                    for at in (worker, 7):
                        intruder.send(Kind.QUEUE_HELLO, at, hello)
                        report = queue.Report([(0, 2**62)])
                        intruder.send(Kind.QUEUE_REPORT, at, report, sequence=1)
                        intruder.send(Kind.QUEUE_LEAVE, at)
                    for kind in Kind:
                        intruder.send(kind, worker)
            assert sorted(ann.receive(TIMEOUT).value for _ in range(200)) == sorted(
                f"{SECRET}{number}" for number in range(200)
            )
            ann.commit()
            pusher.join(TIMEOUT)
            eventually(lambda: Kind.DENIED in intruder.kinds())
            assert intruder.kinds() == {Kind.DENIED}
            assert pull.receive_singles(100)[0] == []
            assert not any(SECRET.encode() in data for data in intruder.received)
            stats = pusher.stats()
            assert (stats.done, stats.taken_back, stats.recalled) == (200, 0, 0)
            assert stats.denied
            pull.close()


def test_an_intruder_reaches_no_handler_and_reads_no_kept_answer(peers, server, intrude):
    asked = []

    def price(value):
        asked.append(value)
        return SECRET

    handlers = {"price": price, "load": lambda _: 1}
    with Responder(LOOPBACK, handlers, security=server) as responder:
        where = peers.pinned(responder.endpoint, "server")
        with Requester(where, security=peers.security("ann")) as ann:
            assert ann.request("price", 1, timeout=TIMEOUT) == SECRET
            intruder = intrude(responder.endpoint)
            for number in range(5):
                for topic in (b"price", b"none", b"load\xff", b"*", b"", b"pri*"):
                    for who in (identity_of(ann), 7):
                        frame = requests.request_frame(topic, who, number, 1000, b"\x01")
                        intruder.send_raw(frame)
            for kind in Kind:
                intruder.send(kind, identity_of(ann))
            intruder.send_raw(requests.request_frame(b"load", 7, 99, 1000, b"\x01"))

            def statuses():
                intruder.kinds()
                return {Frame(data).count for data in intruder.received}

            eventually(lambda: 0 in statuses())
            assert statuses() == {0, 3}
            assert asked == [1]
            assert not any(SECRET.encode() in data for data in intruder.received)
            assert responder.stats().denied >= 30
            assert ann.request("price", 2, timeout=TIMEOUT) == SECRET
