"""A network between a group's publisher and its subscribers that does what networks do."""

import random
import select
import socket
import threading

from transports.udp import UdpReceiver, UdpSender


class FaultyWay:
    """Carries the datagrams of one group on to another one, and answers back.

    Args:
        source: the group that is listened to.
        target: the group that they go on to.
        seed: of all that is random.
        burst: probability that a burst of losses begins with a datagram; `burst_datagrams` are
            lost then.
        duplication: part that is sent twice.
        reordering: part that others overtake, by at most 16 datagrams.
        carries_back: whether what receivers answer comes through.

    """

    def __init__(
        self, source, target, *, seed=1, burst=0.0, burst_datagrams=30, duplication=0.0,
        reordering=0.0, carries_back=True,
    ):  # fmt: skip
        self.rng = random.Random(seed)
        self.burst, self.burst_datagrams = burst, burst_datagrams
        self.duplication, self.reordering = duplication, reordering
        self.lost = self.doubled = self.overtaken = self.answers = 0
        self._in = UdpReceiver(source)
        self._in.connect()
        self._out = UdpSender(target)
        self._carries_back = carries_back
        self._losing = 0
        self._late = []  # [how many overtake it yet, datagram]
        self._publisher = None
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self):
        self._stop.close()
        self._thread.join()
        for one in (self._in, self._out, self._stopped):
            one.close()

    def _run(self):
        poll = select.poll()
        for one in (self._in.socket, self._in.back, self._stopped):
            poll.register(one.fileno(), select.POLLIN)
        poll.register(self._out.fileno(), select.POLLIN)
        while True:
            ready = {number for number, _ in poll.poll(5)}
            if self._stopped.fileno() in ready:
                return
            while (received := self._in.receive()) is not None:
                data, segment, self._publisher = received
                for at in range(0, len(data), segment):
                    self._carry(bytes(data[at : at + segment]))
            while (answer := self._out.receive()) is not None:
                self.answers += 1
                if self._publisher is not None and self._carries_back:
                    self._in.send(bytes(answer[0]), self._publisher)
            if not ready:
                for _, datagram in self._late:
                    self._out.send(datagram)
                self._late.clear()

    def _carry(self, datagram):
        if not self._losing and self.rng.random() < self.burst:
            self._losing = self.burst_datagrams
        if self._losing:
            self._losing -= 1
            self.lost += 1
            return
        if self.rng.random() < self.reordering:
            self.overtaken += 1
            self._late.append([self.rng.randint(1, 16), datagram])
            return
        self._out.send(datagram)
        if self.rng.random() < self.duplication:
            self.doubled += 1
            self._out.send(datagram)
        for entry in list(self._late):
            entry[0] -= 1
            if not entry[0]:
                self._late.remove(entry)
                self._out.send(entry[1])
