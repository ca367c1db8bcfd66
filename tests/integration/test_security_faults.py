"""The table of faults of keys: each kind of peer, by each fault, on real sockets.

Each fault is tried at all kinds at once, since all of them wait for the same: that it is reported,
by an exception or by a warning that names the endpoint. What a faulty client must not have never
comes to it, the others get everything, and where trust is corrected it heals.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from functools import partial

import pytest

from p2pmsg import Publisher, Puller, Pusher, Relay, Requester, Responder, Subscriber, aio, metrics
from p2pmsg.aio.metrics import Client as AioMetricsClient
from p2pmsg.errors import AccessDeniedError, AuthenticationError, SecurityError
from p2pmsg.reader import HeadsWatch, RangeReader
from p2pmsg.statsd import Collector
from tests.integration.secure import Peers
from tests.places import lasting_place
from tests.unit.transports.sockets import eventually

LOOPBACK = "tcp://127.0.0.1:0"
TIMEOUT = 60.0
SHORT_S = 0.02
ASK_S = 0.5


class Published:
    """A publisher and a subscriber."""

    raises = True

    def serve(self, endpoint, security):
        return Publisher(endpoint, security=security)

    def connect(self, place, security):
        return Subscriber(place, start="earliest", security=security)

    def send(self, server, number):
        server.publish("t", number)
        server.flush()

    def take(self, client):
        """Return some of what has come; `TimeoutError` where nothing has."""
        return [client.receive(SHORT_S).value]

    def deliver(self, server, client, numbers, take):
        """Send numbers and take them by one client, which may be given what was sent before."""
        for number in numbers:
            self.send(server, number)
        got = []
        while not set(numbers) <= set(got):
            got += take(client)
        # What a worker that was refused had comes again, after others.
        assert sorted(number for number in got if number in numbers) == numbers
        return got

    def revoke(self, server, security, name):
        """Have a server, or who can, admit a peer no more."""
        getattr(server, "revoke", security.revoke)(name)

    def close(self, peer):
        if isinstance(peer, Publisher):
            peer.close(0)
        else:
            peer.close()


class Jobs(Published):
    """A pusher and a puller."""

    mode = "queue"

    def serve(self, endpoint, security):
        return Pusher(endpoint, security=security, mode=self.mode)

    def connect(self, place, security):
        return Puller(place, security=security, mode=self.mode)

    def send(self, server, number):
        server.push(number)

    def take(self, client):
        job = client.receive(SHORT_S)
        if self.mode == "pipeline":
            client.commit()
        else:
            job.ack()
        return [job.value]

    def close(self, peer):
        if isinstance(peer, Pusher):
            peer.close(0)
        else:
            peer.close()


class Pipeline(Jobs):
    mode = "pipeline"


class Requests(Published):
    """A responder and a requester."""

    def serve(self, endpoint, security):
        methods = {"double": lambda number: 2 * number}
        return Responder(endpoint, methods, security=security).__enter__()

    def connect(self, place, security):
        return Requester(place, security=security)

    def take(self, client):
        return [client.request("double", 21, timeout=ASK_S)]

    def deliver(self, server, client, numbers, take):
        assert take(client) == [42]
        answers = [client.request("double", number, timeout=TIMEOUT) for number in numbers]
        assert answers == [2 * number for number in numbers]
        return answers

    def close(self, peer):
        peer.close()


class Relayed(Published):
    """A publisher and a relay, which has nobody to raise anything to."""

    raises = False

    def connect(self, place, security):
        return Relay(place, LOOPBACK, security=security)

    def take(self, client):
        received = client.stats().received
        if not received:
            time.sleep(SHORT_S)
            raise TimeoutError
        return [received]

    def deliver(self, server, client, numbers, take):
        if numbers[0]:
            self.wait_for_stream(client)
        before = client.stats().received
        for number in numbers:
            self.send(server, number)
        eventually(lambda: client.stats().received >= before + len(numbers))
        return []

    def wait_for_stream(self, client):
        client.wait_for_streams(1, TIMEOUT)

    def close(self, peer):
        peer.close(0)


class Metrics(Published):
    """A metrics client and a collector that reads it."""

    raises = False

    def serve(self, endpoint, security):
        return metrics.Client(endpoint, security=security, interval=0, close_timeout=0)

    def connect(self, place, security):
        return Collector("udp://127.0.0.1:0", exact=place, security=security)

    def send(self, server, number):
        server.increment(f"c{number}")

    def take(self, client):
        found = list(client.totals().counters)
        if not found:
            time.sleep(SHORT_S)
            raise TimeoutError
        return found

    def deliver(self, server, client, numbers, take):
        for number in numbers:
            self.send(server, number)
        wanted = {f"c{number}" for number in numbers}
        eventually(lambda: wanted <= set(client.totals().counters))
        return []

    def close(self, peer):
        peer.close()


class Ranges(Published):
    """A publisher and a range reader."""

    def connect(self, place, security):
        return RangeReader(place, timeout=ASK_S, security=security)

    def take(self, client):
        return [client.heads().streams["t"].next]

    def deliver(self, server, client, numbers, take):
        for number in numbers:
            self.send(server, number)
        following = take(client)[-1]
        batches = client.fetch("t", following - len(numbers), following, timeout=TIMEOUT)
        assert [one for batch in batches for one in batch.values] == numbers
        return []


class Watched(Published):
    """A publisher and a heads watch."""

    raises = False

    def __init__(self):
        self.counts = Counter()

    def connect(self, place, security):
        return HeadsWatch([place], topics=["t"], security=security)

    def take(self, client):
        (heads,) = client.heads().values()
        if heads is None or "t" not in heads.streams:
            time.sleep(SHORT_S)
            raise TimeoutError
        return [heads.streams["t"].next]

    def deliver(self, server, client, numbers, take):
        for number in numbers:
            self.send(server, number)
        self.counts[server.session] += len(numbers)
        eventually(lambda: take(client) == [self.counts[server.session]])
        return []


class InLoop:
    """Peers of `p2pmsg.aio`, in an event loop of its own thread."""

    def __init__(self, kind, make):
        self.kind, self.make, self.raises = kind, make, kind.raises
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def call(self, steps):
        return asyncio.run_coroutine_threadsafe(steps, self.loop).result(TIMEOUT)

    def enter(self, place, security):
        async def enter():
            return await self.make(place, security=security).__aenter__()

        return self.call(enter())

    def serve(self, endpoint, security):
        return self.kind.serve(endpoint, security)

    def connect(self, place, security):
        return self.enter(place, security)

    def revoke(self, server, security, name):
        self.kind.revoke(server, security, name)

    def take(self, client):
        return self.call(self.take_in_loop(client))

    async def take_in_loop(self, client):
        if isinstance(client, aio.Requester):
            return [await client.request("double", 21, timeout=ASK_S)]
        got = await client.receive(SHORT_S)
        if isinstance(self.kind, Pipeline):
            client.commit()
        elif isinstance(self.kind, Jobs):
            got.ack()
        return [got.value]

    def deliver(self, server, client, numbers, take):
        if isinstance(client, aio.Requester):
            assert take(client) == [42]
            return []
        return self.kind.deliver(server, client, numbers, take)

    def close(self, peer):
        if isinstance(peer, aio.Publisher | aio.Relay | AioMetricsClient):
            self.call(peer.close(0))
        elif type(peer).__module__.startswith("p2pmsg.aio"):
            self.call(peer.__aexit__(None, None, None))
        else:
            self.kind.close(peer)

    def end(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(TIMEOUT)
        self.loop.close()


class RelayInLoop(InLoop):
    """A relay of `p2pmsg.aio` is the client."""

    def __init__(self, kind, make):
        super().__init__(kind, make)
        kind.wait_for_stream = lambda client: self.call(client.wait_for_streams(1, TIMEOUT))

    def take(self, client):
        return self.kind.take(client)


class ServedInLoop(InLoop):
    """The server is of `p2pmsg.aio`, where the client has no such form."""

    def __init__(self, kind, make):
        super().__init__(kind, make)
        self._send, kind.send = kind.send, self.send

    def serve(self, endpoint, security):
        return self.enter(endpoint, security)

    def connect(self, place, security):
        return self.kind.connect(place, security)

    def take(self, client):
        return self.kind.take(client)

    def send(self, server, number):
        async def send():
            self._send(server, number)

        self.call(send())

    def revoke(self, server, security, name):
        async def revoke():
            self.kind.revoke(server, security, name)

        self.call(revoke())


KINDS = [Published, Jobs, Pipeline, Requests, Relayed, Metrics, Ranges, Watched]
IN_LOOP = [
    (InLoop, Published, partial(aio.Subscriber, start="earliest")),
    (InLoop, Jobs, aio.Puller),
    (InLoop, Pipeline, partial(aio.Puller, mode="pipeline")),
    (InLoop, Requests, aio.Requester),
    (RelayInLoop, Relayed, lambda at, security: aio.Relay(at, LOOPBACK, security=security)),
    (ServedInLoop, Metrics, partial(AioMetricsClient, interval=0, close_timeout=0)),
    (ServedInLoop, Ranges, aio.Publisher),
    (ServedInLoop, Watched, aio.Publisher),
]


class Row:
    """One kind: a server, a client that is right, and one that is not."""

    def __init__(self, kind, name, folder, stack, caplog):
        self.kind, self.name, self.stack, self.caplog = kind, name, stack, caplog
        folder.mkdir()
        self.peers = Peers(folder)
        self.peers.security("other")
        self.server = self.security = self.good = self.bad = None
        self.sent = 0

    def serve(self, name="server", endpoint="", *, has_keys=True):
        security = self.peers.security(name, "good", "bad") if has_keys else None
        self.server = self.kind.serve(endpoint or lasting_place(), security)
        self.security = security
        self.endpoint = self.server.endpoint
        self.stack.callback(self.close, self.server)

    def connect(self, name, *, pinned="server", has_keys=True):
        place = self.peers.pinned(self.endpoint, pinned) if pinned else self.endpoint
        client = self.kind.connect(place, self.peers.security(name) if has_keys else None)
        self.stack.callback(self.close, client)
        return client

    def known_by(self, name):
        return self.peers.security(name).known

    def close(self, peer):
        self.kind.close(peer)

    def take(self, client):
        """Take, as often as it takes; errors of a fault that is over are left out."""
        end_s = time.monotonic() + TIMEOUT
        while time.monotonic() < end_s:
            with contextlib.suppress(TimeoutError, AuthenticationError, KeyError):
                return self.kind.take(client)
        raise AssertionError(f"{self.name} got nothing")

    def deliver(self, client):
        """Have a client get all that is sent from now on."""
        numbers = list(range(self.sent, self.sent + 3))
        self.sent += 3
        return self.kind.deliver(self.server, client, numbers, self.take)

    def places(self):
        """Return where its server is bound."""
        return self.endpoint, getattr(self.server, "recovery_endpoint", "")

    def await_notice(self, client, words):
        """Wait until a fault is reported, and return what came to the client until then."""
        end_s, got = time.monotonic() + TIMEOUT, []
        while time.monotonic() < end_s:
            try:
                got += self.kind.take(client)
            except AuthenticationError as error:
                assert error.endpoint in self.places(), self.name
                if words in str(error):
                    return got
            except (TimeoutError, AccessDeniedError):
                pass  # or a request came as the key was revoked
            if not self.kind.raises and self.has_warning(words):
                return got
        raise AssertionError(f"{self.name} got no report of {words!r}: {self.caplog.text}")

    def has_warning(self, words):
        texts = [one.getMessage() for one in self.caplog.records if one.levelno >= logging.WARNING]
        at = [place for place in self.places() if place]
        return any(words in text and any(place in text for place in at) for text in texts)

    def state(self, client):
        """Return what comes to a client now; None: nothing, or an error."""
        with contextlib.suppress(TimeoutError, SecurityError):
            return self.kind.take(client)


@pytest.fixture(
    params=["threads", pytest.param("asyncio", marks=pytest.mark.long)],
)
def rows(request, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "p2pmsg")
    with contextlib.ExitStack() as stack:
        made = []
        if request.param == "threads":
            kinds = [(kind(), kind.__name__) for kind in KINDS]
        else:
            kinds = [(way(kind(), make), f"{kind.__name__} in loop") for way, kind, make in IN_LOOP]
            for kind, _ in kinds:
                stack.callback(kind.end)
        for kind, name in kinds:
            made.append(Row(kind, name, tmp_path / name, stack, caplog))
        yield made


def check_bad_ones(rows, words, *, never=True):
    """Check that faults are reported, that nothing comes there, and all of it to the others."""
    for row in rows:
        got = row.await_notice(row.bad, words)
        assert not (never and got), row.name
    for row in rows:
        before = row.state(row.bad)
        row.deliver(row.good)
        assert row.state(row.bad) == before, row.name


def check_healed(rows):
    """Check that those which were refused get what is sent from now on, alone."""
    for row in rows:
        if row.good is not None:
            row.close(row.good)
        row.deliver(row.bad)


@pytest.mark.long
def test_a_wrong_key_is_pinned(rows):
    for row in rows:
        row.serve()
        row.good, row.bad = row.connect("good"), row.connect("bad", pinned="other")
        row.deliver(row.good)
    check_bad_ones(rows, "does not hold the pinned key")


@pytest.mark.long
def test_an_open_peer_at_one_with_keys(rows):
    for row in rows:
        row.serve()
        row.good = row.connect("good")
        row.bad = row.connect("bad", pinned=None, has_keys=False)
        row.deliver(row.good)
    check_bad_ones(rows, "needs keys is there: give security=")


@pytest.mark.long
def test_a_peer_with_keys_at_an_open_one(rows):
    for row in rows:
        row.peers.security("server")
        row.serve(has_keys=False)
        row.good = row.connect("good", pinned=None, has_keys=False)
        row.bad = row.connect("bad")
        row.deliver(row.good)
    check_bad_ones(rows, "has no security")


@pytest.mark.long  # the last one heals in the same way
def test_a_stale_key_among_the_known_peers_which_is_replaced(rows):
    for row in rows:
        row.serve()
        row.known_by("bad").add("server", row.peers.text("other"), [row.endpoint])
        row.good, row.bad = row.connect("good"), row.connect("bad", pinned=None)
        row.deliver(row.good)
    check_bad_ones(rows, "does not hold the pinned key")
    for row in rows:
        row.known_by("bad").add("server", row.peers.text("server"), replace=True)
    check_healed(rows)


def test_a_key_that_is_revoked_at_work(rows):
    for row in rows:
        row.serve()
        row.bad = row.connect("bad")
        row.deliver(row.bad)
        row.good = row.connect("good")
        row.kind.revoke(row.server, row.security, "bad")
    check_bad_ones(rows, "does not admit our key", never=False)


@pytest.mark.long
def test_a_clients_key_that_changes_at_work(rows):
    for row in rows:
        row.serve()
        row.bad = row.connect("bad")
        row.deliver(row.bad)
        row.good = row.connect("good")
        row.security.known.add("bad", row.peers.text("other"), replace=True)
    check_bad_ones(rows, "does not admit our key", never=False)
    for row in rows:
        row.security.known.add("bad", row.peers.text("bad"), replace=True)
    check_healed(rows)


@pytest.mark.long
def test_a_server_that_starts_again_with_another_key(rows):
    for row in rows:
        row.serve()
        row.known_by("bad").add("server", row.peers.text("server"), [row.endpoint])
        row.bad = row.connect("bad", pinned=None)
        row.deliver(row.bad)
        row.close(row.server)
        row.serve("new", row.endpoint)
    for row in rows:
        first = row.peers.security("server").fingerprint
        row.await_notice(row.bad, f"does not hold the pinned key {first}")
        known = row.known_by("bad")
        with pytest.raises(AuthenticationError) as caught:
            known.add("server", row.peers.text("new"))
        new = row.peers.security("new").fingerprint
        assert f"{first} is known, {new} is given" in caught.value.reason
        known.add("server", row.peers.text("new"), replace=True)
    check_healed(rows)
