"""The single place where tests of whole peers reach into them, where nothing public will do.

A test goes by what users see, and provokes faults from outside. What is here has to strike at a
moment that nobody outside can choose, or look at a bound that nobody outside can see.
"""

import contextlib
import time
import types
from dataclasses import replace

from p2pmsg.sync import subscriber_io
from p2pmsg.testing.kernel_loss import lose
from p2pmsg.wire import Frame, Kind


def core_of(peer):
    """Return the state machine of a publisher, a subscriber, a relay, a pusher."""
    return peer._core


def iterates_plainly(subscriber):
    """Say whether messages that are there stay what they are: none is folded or committed."""
    core = core_of(subscriber)
    return core.cursor is None and not core.policy.any_conflates


def has_active(subscriber):
    """Say whether a subscriber has decoded messages that it has not handed out."""
    return bool(subscriber._values.__length_hint__())


def joined_ids(publisher):
    """Return the ids of the subscribers that have joined; it follows them."""
    return core_of(publisher).requests.subscribers


def answers_waiting(publisher):
    """Return how many answers of a publisher's recovery channel wait."""
    return len(core_of(publisher).requests._replies)


def count_rounds(publisher, monkeypatch):
    """Return a list that grows with each whole round of a publisher's thread."""
    rounds, take = [], publisher._driver._round
    monkeypatch.setattr(publisher._driver, "_round", lambda: rounds.append(None) or take())
    return rounds


def connections_known(pusher):
    """Return how many connections a pusher knows, strangers' too."""
    return len(core_of(pusher)._connections)


def line_of(puller):
    """Return a puller's side of its only pusher."""
    return puller._cores[0]


def hold_for_ever(puller):
    """Let a puller say that it lives, and never give back what it has."""
    for line in puller._cores:
        line._time_out = lambda now_ns: None
        line._receive_recall = lambda frame: None


def prefixes_of(bridge):
    """Return what the plain SUBs of a bridge have subscribed to, so far as it has looked."""
    return set(bridge._ends.target._pub._prefixes)


@contextlib.contextmanager
def held(peer):
    """Hold a peer's lock: its threads wait."""
    with peer._lock:
        yield


@contextlib.contextmanager
def unheard_requests(publisher):
    """Let a publisher hear no requests, as if each were lost."""
    server = publisher._server
    server.receive, server.receive_some = lambda: None, lambda _: []
    try:
        yield
    finally:
        del server.receive, server.receive_some


@contextlib.contextmanager
def without_nacks(subscriber):
    """Let a subscriber send all requests but NACKs, as if those were lost."""
    driver, requests = subscriber._driver, core_of(subscriber).requests

    def send():
        while requests:
            session, frame = requests.popleft()
            if Frame(frame).kind != Kind.NACK:
                driver._clients[session].send(frame)

    with driver.io_lock:
        driver._send_requests = send
    try:
        yield
    finally:
        del driver._send_requests


def cut_recovery(subscriber, session):
    """Connect to a publisher's recovery channel again: replies under way are lost."""
    with subscriber._driver.io_lock:
        subscriber._driver._clients[session].reconnect()


def lose_on_line(subscriber, number, part):
    """Let the kernel drop `part` (0 to 1) of what comes over one line of a multicast."""
    lose(subscriber._driver._receivers[number].sockets[0], part)


def lose_requests(feed, part):
    """Let the kernel drop `part` (0 to 1) of the requests to a MoldUDP64 feed."""
    lose(feed._server, part)


def count_joined(subscriber):
    """Return a list that gets an item for each time that a publisher is asked who is there."""
    joiner, said = core_of(subscriber).joiner, []
    send_joined = joiner.send_joined
    joiner.send_joined = lambda *arguments: said.append(1) or send_joined(*arguments)
    return said


def commits_of(subscriber):
    """Return what commits positions to the cursor."""
    return subscriber._commits


def exact_of(collector):
    """Return what collects the deltas of exact metrics."""
    return collector._exact


def subscriber_of(collector):
    """Return the subscriber to the clients of exact metrics."""
    return exact_of(collector)._subscriber


def found_of(reader):
    """Return what a range reader found at its endpoint where no peer answered."""
    return reader._channel.found


def is_watched(peer):
    """Say whether a subscriber or relay still looks who is where nobody has answered."""
    names = ("_receiving", "_driver", "_io")
    receiving = next(getattr(peer, name) for name in names if hasattr(peer, name))
    return receiving._unanswered.next_ns < 2**63


def sleeps_of_a_full_round(publisher, subscriber, monkeypatch):
    """Let one message, which is all that there is space for, come as a check is due, in one round.

    Return what the round took, and for each time that it slept whether the message was ready then.
    """
    slept, sleep, core, driver = [], time.sleep, core_of(subscriber), subscriber._driver
    clock = types.SimpleNamespace(**vars(time))
    clock.sleep = lambda seconds: slept.append(bool(core.ready.entries)) or sleep(seconds)
    with driver.io_lock:
        monkeypatch.setattr(subscriber_io, "time", clock)
        core.config = replace(core.config, receive_bytes=2**16)
        core.gaps.bytes_held += 2**16 - 1  # as if it were of frames that wait for a repair
        publisher.publish("t", 1)
        publisher.flush()
        sleep(0.25)
        assert core.next_deadline_ns() < time.monotonic_ns()
        taken = driver.round(1000)
        core.gaps.bytes_held -= 2**16 - 1
    return taken, slept


def put_off_round(publisher):
    """Publish, and put off the round of a publisher whose thread has ended, by hand.

    Return the thread's driver, the core, and when the heartbeat was due that was put off.
    """
    publisher.publish("t", 0)
    driver, core = publisher._driver, publisher._core
    driver._worker.stop()
    core.control.drain()
    beat_ns = core.heartbeats.next_deadline_ns()
    driver._round_due_ns, driver._but_beats_ns = beat_ns, beat_ns + 1_000_000_000
    assert not driver._is_put_off(beat_ns)
    core.heartbeats.put_off(core.streams["t"], beat_ns - 1)
    assert driver._is_put_off(beat_ns)
    assert driver._asleep_until_ns == beat_ns + 10_000_000 - 1
    return driver, core, beat_ns
