"""Many subscribers in one process: the real cores over real ZeroMQ sockets, in one thread."""

import os
import resource
import sys
import time
from random import Random

import zmq

import transports
from p2pmsg.config import SubscriberConfig
from p2pmsg.peers.lines import make_receiver
from p2pmsg.start import Start
from p2pmsg.subscriber.core import SubscriberCore

_TIMERS_NS = 25_000_000
FILES_EACH = 5
"""Descriptors that one of them takes: two sockets, each with a connection, and some at the peer."""


def can_open(count):
    """Raise the limit of open files for `count` of them; False where the system does not let us."""
    wanted = count * FILES_EACH + 500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return True
    if hard != resource.RLIM_INFINITY and hard < wanted:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return True


class Joiner:
    """One subscriber.

    Attributes:
        core: the real one.
        probes: how many probes it has sent.
        echoes: how many echoes reached it, its own and others'.
        delivered: how many messages came.

    """

    def __init__(self, endpoint, number, topics=()):
        self.core = SubscriberCore(
            topics=list(topics), lines=1, start=Start("latest"), subscriber=number,
            name=f"joiner {number}", config=SubscriberConfig(),
            rng=Random(number), now_ns=time.monotonic_ns(),
        )  # fmt: skip
        self.receiver = make_receiver(
            transports.parse_endpoint(endpoint), list(topics), self.core.config
        )
        self.clients = {}
        self.probes = self.echoes = self.delivered = 0
        self.receiver.connect()

    @property
    def joined(self):
        return any(peer.joined for peer in self.core.peers.values())

    def turn(self, now_ns):
        """Do one round of I/O."""
        core = self.core
        for _ in range(64):
            data = self.receiver.receive()
            if data is None:
                break
            self.echoes += data[:1] == b"\0" and data[4] == 18
            core.receive_frame(0, data, now_ns=now_ns)
        for session, client in self.clients.items():
            while (reply := client.receive()) is not None:
                core.receive_reply(session, reply, now_ns=now_ns)
        while (ready := core.ready.pop()) is not None:
            self.delivered += ready[1].count
        if now_ns >= core.next_deadline_ns():
            core.handle_timer(now_ns=now_ns)
        while core.commands:
            self._do(core.commands.popleft())
        while core.requests:
            session, frame = core.requests.popleft()
            self.probes += frame[4] == 17
            if session in self.clients:
                self.clients[session].send(frame)

    def _do(self, command):
        if command.what == "connect":
            client = transports.ZmqRecoveryClient(command.endpoint, context=transports.context())
            client.connect()
            self.clients[command.session] = client
        elif command.what == "subscribe":
            self.receiver.subscribe(command.prefix)
        elif command.what == "unsubscribe":
            self.receiver.unsubscribe(command.prefix)

    def sockets(self):
        return [self.receiver.socket, *(client.socket for client in self.clients.values())]

    def close(self):
        self.receiver.close()
        for client in self.clients.values():
            client.close()


def join_all(endpoint, count, deadline_s, topics=(), first=1):
    """Let `count` subscribers join at the same time; return them, and how long that took in s."""
    joiners = [Joiner(endpoint, number, topics) for number in range(first, first + count)]
    begun = time.monotonic()
    turn_until(joiners, lambda: all(joiner.joined for joiner in joiners), deadline_s)
    return joiners, time.monotonic() - begun


def turn_until(joiners, is_done, deadline_s):
    """Let all of them work until something is so; returns whether it came to be in time."""
    deadline = time.monotonic() + deadline_s
    poller, owners, due_ns = zmq.Poller(), {}, 0
    while not is_done():
        now_ns = time.monotonic_ns()
        if now_ns > deadline * 1e9:
            return False
        if now_ns > due_ns:
            due_ns = now_ns + _TIMERS_NS
            for joiner in joiners:
                joiner.turn(now_ns)
                for one in joiner.sockets():
                    if one not in owners:
                        owners[one] = joiner
                        poller.register(one, zmq.POLLIN)
        for one, _ in poller.poll(10):
            owners[one].turn(time.monotonic_ns())
    return True


if __name__ == "__main__":  # a process of them: endpoint, how many, number of the first, deadline
    _endpoint, _count, _first, _deadline_s = sys.argv[1:]
    assert can_open(int(_count))
    _joiners, _took_s = join_all(_endpoint, int(_count), float(_deadline_s), first=int(_first))
    print(
        sum(joiner.joined for joiner in _joiners),
        sum(joiner.echoes for joiner in _joiners),
        sum(joiner.probes for joiner in _joiners),
        f"{_took_s:.1f}",
        flush=True,
    )
    turn_until(_joiners, lambda: False, 2.0)  # they are counted meanwhile
    os._exit(0)
