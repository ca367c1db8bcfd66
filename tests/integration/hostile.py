"""Raw ZeroMQ and TCP peers that do not keep to the protocol, or only as far as it serves them."""

import random
import socket
import struct
import threading

import zmq

from p2pmsg import control, wire
from p2pmsg.wire import HEADER, Kind, control_frame

GOOD = struct.Struct("!2sBBBBQQIIq")


def frame(topic, kind, session, sequence, count, body, **changes):
    """Return a frame with fields that need not fit together."""
    fields = {
        "magic": b"p2", "version": 1, "kind": kind, "flags": 0, "compression": 0,
        "session": session, "sequence": sequence, "count": count, "length": len(body), "time": 0,
    }  # fmt: skip
    fields.update(changes)
    return topic + b"\0" + GOOD.pack(*fields.values()) + body


def data_body(values, columns=b"\xc0\xc0\xc0"):
    return b"\x94" + wire.encoder.encode(values) + columns


def malformed(topic, session, sequence=0):
    """List frames that no receiver may choke on."""
    data, body = Kind.DATA, data_body([1, 2])

    def make(count=2, body=body, **changes):
        fields = {"kind": data, "session": session, "sequence": sequence, **changes}
        return frame(topic, count=count, body=body, **fields)

    nested = b"\x94\x91" + b"\x91" * 100_000 + b"\xc0" + b"\xc0\xc0\xc0"
    whole = make()
    return [
        b"", b"\0", topic, topic + b"\0", b"\xff" * 100, b"\0" * 1000, b"a" * 10_000,
        *(whole[:length] for length in range(0, len(whole), 3)),
        whole + b"x",
        make(magic=b"P2"), make(version=0), make(version=2), make(version=255),
        make(kind=0), make(kind=3), make(kind=99), make(kind=255), make(compression=1),
        make(compression=9), make(session=session ^ 1), make(length=0), make(length=2**32 - 1),
        make(length=len(body) - 1), make(count=0), make(count=1), make(count=3),
        make(count=2**32 - 1), make(sequence=2**63 - 1), make(sequence=2**64 - 1),
        make(body=b""), make(body=b"\x94"), make(body=b"\xc1\xc1"), make(body=body[:-1]),
        make(2**32 - 1, b"\x94\xdd\xff\xff\xff\xff"),
        make(2**32 - 1, b"\x94\xdd\xff\xff\xff\xff" + b"\xc0" * 100),
        make(65_535, b"\x94\xdc\xff\xff"),
        make(body=b"\x93\x92\x01\x02\xc0\xc0"), make(body=b"\x95\x92\x01\x02\xc0\xc0\xc0\xc0"),
        frame(b"\xff\xfe", data, session, sequence, 2, body),
        frame(b"t" * 300, data, session, sequence, 2, body),
        frame(b"", data, session, sequence, 2, body),
        frame(topic, Kind.WELCOME, session, 0, 0, wire.encoder.encode(["a", "b", 1.0])),
        frame(topic, data, session, 2**63 - 2, 1_000, data_body([0] * 1_000)),
        frame(topic, Kind.HEARTBEAT, session, 0, 0, b""),
        frame(topic, Kind.HEARTBEAT, session, 0, 0, b"\x91\xc0"),
        frame(topic, Kind.HEARTBEAT, session, 0, 0, b"\x91\xff"),
        frame(topic, Kind.HEARTBEAT, session, 0, 0, nested),
        frame(b"", Kind.ECHO, 12345, 0, 0, b"\x92\xa1a\xdd\xff\xff\xff\xff"),
        frame(b"", Kind.WELCOME, session, 0, 0, b"\x93\xa1a"),
        frame(b"", Kind.WELCOME, session, 0, 0, b"\xdb\xff\xff\xff\xff"),
    ]  # fmt: skip


def unreadable_bodies(topic, session, sequence):
    """List frames of one message each that look right until the body is read."""
    bodies = [
        b"\x94\x91\xc1\xc0\xc0\xc0",  # an opcode that msgpack does not have
        b"\x94\x91" + b"\x91" * 50_000 + b"\xc0\xc0\xc0\xc0",  # nested too deep
        b"\x94\x91\xc6\xff\xff\xff\xff\xc0\xc0\xc0",  # 4 GiB of bytes that are not there
        b"\x94\x91\xdf\xff\xff\xff\xff\xc0\xc0\xc0",
        b"\x94\x91\xa2\xff\xfe\xc0\xc0\xc0",  # not UTF-8
        b"\x94\x91\x01\x92\x01\x02\xc0\xc0",  # two timestamps
        b"\x94\x91\x01\x90\xc0\xc0",
        b"\x94\x91\x01\xc0\x91\x01\xc0",  # a key that is a number
        b"\x94\x91\x01\xc0\xc0\x91\x01",
        b"\x94\x91\x01\xc0\xc0\xc0\xc0",  # something after it
        b"\x94\x91\x01\xc0\xc0",
        b"\x94\x91\x01\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xc0",
        b"\x94\x91\x81\x90\x01\xc0\x05\xc0",
        b"\x94\x91\xc7\x0c\xff" + b"\xff" * 12 + b"\xc0\xc0\xc0",  # a time out of range
    ]
    return [frame(topic, 1, session, sequence + n, 1, body) for n, body in enumerate(bodies)]


class HostilePublisher:
    """An XPUB with a ROUTER that says the right things until asked otherwise."""

    def __init__(self, session=7, name="hostile", stall_ms=100.0, recovery=None):
        self.context = zmq.Context()
        self.session = session
        self.data = self.context.socket(zmq.XPUB)
        self.requests = self.context.socket(zmq.ROUTER)
        for used in (self.data, self.requests):
            used.linger = 0
            used.sndhwm = used.rcvhwm = 100_000
        port = self.requests.bind_to_random_port("tcp://127.0.0.1")
        self.recovery = recovery or f"tcp://127.0.0.1:{port}"
        self.welcome = control_frame(
            Kind.WELCOME, session, control.Welcome(name, self.recovery, stall_ms)
        )
        self.data.set(zmq.XPUB_WELCOME_MSG, self.welcome)
        self.endpoint = "tcp://127.0.0.1:" + str(self.data.bind_to_random_port("tcp://127.0.0.1"))
        self.heads = []
        self.asked = []
        self.joined = threading.Event()
        self._calls = []
        self._ends = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def send(self, *frames):
        """Send over the data path; returns when they are in the queue."""
        done = threading.Event()
        self._calls.append((frames, None, done))
        assert done.wait(60)

    def reply(self, *frames):
        """Send over the recovery channel to the peer that asked last."""
        done = threading.Event()
        self._calls.append((frames, self.requester, done))
        assert done.wait(60)

    def _run(self):
        poller = zmq.Poller()
        poller.register(self.data, zmq.POLLIN)
        poller.register(self.requests, zmq.POLLIN)
        while not self._ends.is_set():
            ready = dict(poller.poll(2))
            if self.data in ready:
                self.data.recv()
            if self.requests in ready:
                self._answer(*self.requests.recv_multipart())
            while self._calls:
                frames, requester, done = self._calls.pop(0)
                for data in frames:
                    if requester is None:
                        self.data.send(data)
                    else:
                        self.requests.send_multipart([requester, data])
                done.set()

    def _answer(self, requester, data):
        self.requester = requester
        kind = data[4]
        self.asked.append(kind)
        if kind == Kind.PROBE:
            probe = control.read_body(wire.Frame(data), control.Probe).probe
            body = control.Heads("hostile", self.heads)
            self.data.send(control_frame(Kind.ECHO, probe, body))
        if kind == Kind.JOINED:
            self.joined.set()

    def close(self):
        self._ends.set()
        self.thread.join()
        self.context.destroy(linger=0)


def throw_bytes(endpoint, rng, count):
    """Connect to a TCP endpoint and send random bytes, some after a ZMTP greeting."""
    host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\0" + bytes(31)
    for number in range(count):
        with socket.create_connection((host, int(port)), 10) as used:
            used.settimeout(60)
            try:
                if number % 2:
                    used.sendall(greeting)
                if number % 4 == 3:
                    used.sendall(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\3SUB")
                used.sendall(rng.randbytes(rng.choice([1, 10, 64, 1000, 100_000])))
            except OSError:
                pass  # it hung up, as it should


def noise(seed=1):
    return random.Random(seed)


assert HEADER.size == GOOD.size
