"""The single place where tests of whole peers reach into them, where nothing public will do.

A test goes by what users see, and provokes faults from outside. What is here has to strike at a
moment that nobody outside can choose, or look at a bound that nobody outside can see.
"""

import contextlib

from p2pmsg.testing.kernel_loss import lose
from p2pmsg.wire import Frame, Kind


def core_of(peer):
    """Return the state machine of a publisher, a subscriber, a relay, a pusher."""
    made = getattr(peer, "_peer", None)
    if made is None:
        return peer._core
    return made.jobs.core if hasattr(made, "jobs") else made.core


def asks_as(requester, other):
    """Have the next requests of a requester be numbers 1, 2 and so on of another one."""
    engine = requester._peer.engine
    engine.identity, engine.numbers = other._peer.engine.identity, iter(range(1, 100))


def identity_of(requester):
    """Return the number by which a requester knows its answers."""
    return requester._peer.engine.identity


def joined_ids(publisher):
    """Return the ids of the subscribers that have joined; it follows them."""
    return core_of(publisher).requests.known.by_id()


def hold_for_ever(puller):
    """Let a puller say that it lives, and never give back what it has."""
    for line in puller._peer._cores:
        line._time_out = lambda now_ns: None
        line._BY_KIND = {**line._BY_KIND, Kind.QUEUE_RECALL: lambda core, frame: None}


@contextlib.contextmanager
def held(collector):
    """Hold a collector's section: its threads wait."""
    section = collector._section
    section.lock.acquire()
    try:
        yield
    finally:
        section.lock.release()


@contextlib.contextmanager
def unheard_requests(publisher):
    """Let a publisher hear no requests, as if each were lost."""
    server = publisher._peer.server
    server.receive_some = lambda _: []
    try:
        yield
    finally:
        del server.receive_some


@contextlib.contextmanager
def without_nacks(subscriber):
    """Let a subscriber send all requests but NACKs, as if those were lost."""
    receiving, requests = subscriber._peer._io, core_of(subscriber).requests

    def send():
        while requests:
            session, frame = requests.popleft()
            if Frame(frame).kind != Kind.NACK:
                receiving._clients[session].send(frame)

    receiving._send_requests = send
    try:
        yield
    finally:
        del receiving._send_requests


def lose_on_line(subscriber, number, part):
    """Let the kernel drop `part` (0 to 1) of what comes over one line of a multicast."""
    lose(subscriber._peer.datagram_sockets()[number], part)


def lose_requests(feed, part):
    """Let the kernel drop `part` (0 to 1) of the requests to a MoldUDP64 feed."""
    lose(feed._peer._server, part)


def exact_of(collector):
    """Return what collects the deltas of exact metrics."""
    return collector._exact


def subscriber_of(collector):
    """Return the subscriber to the clients of exact metrics."""
    return exact_of(collector)._subscriber


def is_watched(peer):
    """Say whether a subscriber or relay still looks who is where nobody has answered."""
    made = peer._peer
    receiving = made._receiving if hasattr(made, "_receiving") else made._io
    return receiving._unanswered.next_ns < 2**63


def count_turns(peer):
    """Return a list that gets longer with each turn of a peer."""
    made, turns = peer._peer, []
    turn = made.turn

    def counted(now_ns):
        turns.append(now_ns)
        turn(now_ns)

    made.turn = counted
    return turns
