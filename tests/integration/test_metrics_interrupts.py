"""Ctrl-C and signal handlers in what counts: nothing is lost by them, or counted twice."""

import asyncio
import contextlib
import itertools
import signal
import socket

import pytest

import p2pmsg
from p2pmsg import metrics
from p2pmsg.aio import metrics as aio_metrics
from p2pmsg.errors import ReentrantCallError
from p2pmsg.metrics import client as client_module
from p2pmsg.metrics import deltas, gathering, sinks
from p2pmsg.publisher import batch, core, kept_batch
from p2pmsg.sync import lock, publisher, publishing, sending
from recovery import replay_buffer
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.statsd_tools import collecting
from tests.integration.strikes import Strike, handling
from transports import zmq_pubsub

CLIENT = (
    client_module, deltas, gathering, sinks, batch, core, kept_batch, lock, publisher, publishing,
    sending, replay_buffer, zmq_pubsub,
)  # fmt: skip
COUNTING = (client_module, deltas, gathering)


def strikes(modules=CLIENT, least=15, most=250):
    """Yield one strike after the other, each one place later, until one finds no place."""
    found = 0
    for number in range(1, most):
        strike = Strike(modules, number, starts=True)
        yield strike
        found += strike.struck
        if strike.left > 0:
            break
    assert found >= least


def struck_flushes(client):
    """Flush, struck at each place in turn; yield how much was counted so far."""
    for number, strike in enumerate(strikes(), 1):
        client.increment("a", 7)
        with strike:
            client.flush()
        yield 7 * number


@pytest.mark.parametrize("is_logged", [False, True], ids=["no log", "log"])
def test_what_a_flush_sends_that_ctrl_c_ended_counts_once(tmp_path, is_logged):
    log = p2pmsg.LogConfig(tmp_path) if is_logged else None
    with metrics.Client(LOOPBACK, interval=3600, log=log) as client:
        with collecting(exact=client.endpoint) as (collector, _):
            client.wait_for_collectors(timeout=60)
            *_, counted = struck_flushes(client)
            client.close(60)
            assert client.undelivered == 0
            assert collector.totals().counters == {"a": counted}
            eventually(lambda: collector.totals().is_exact)
            assert client.sent == client._sink.publisher.stats().published


def test_what_a_flush_in_a_loop_sends_that_ctrl_c_ended_counts_once():
    async def main(collected):
        client = aio_metrics.Client(LOOPBACK, interval=3600)
        collector, _ = collected.enter_context(collecting(exact=client.endpoint))
        await client.wait_for_collectors(timeout=60)
        counts = []
        for count in struck_flushes(client):
            counts.append(count)
            await asyncio.sleep(0)
        await client.close(60)
        assert client.undelivered == 0
        assert collector.totals().counters == {"a": counts[-1]}
        assert collector.totals().is_exact

    loop = asyncio.new_event_loop()  # `asyncio.run` would have Ctrl-C cancel a task
    try:
        with contextlib.ExitStack() as collected:
            loop.run_until_complete(asyncio.wait_for(main(collected), 60))
    finally:
        loop.close()


def test_a_call_that_sends_at_once_counts_at_most_once_though_ctrl_c_ends_it():
    with metrics.Client(LOOPBACK, interval=0) as client:
        with collecting(exact=client.endpoint) as (collector, _):
            client.wait_for_collectors(timeout=60)
            begun = returned = 0
            for strike in strikes():
                begun += 1
                with strike:
                    client.increment("a")
                    returned += 1
            client.close(60)
            totals = collector.totals()
            assert returned <= totals.counters["a"] <= begun
            assert totals.is_exact


def test_a_close_that_ctrl_c_ended_goes_on_at_the_next_call():
    for number in itertools.count(1, 3):
        client = metrics.Client(LOOPBACK, interval=3600)
        with collecting(exact=client.endpoint) as (collector, _):
            client.wait_for_collectors(timeout=60)
            client.increment("a")
            strike = Strike(COUNTING, number, starts=True)
            with strike:
                client.close(60)
            client.close(60)
            if collector.totals().counters != {"a": 1}:  # the publisher was closed already
                assert client.undelivered == 1
        if not strike.struck:
            break
    assert number > 10


@pytest.mark.parametrize("scheme", ["tcp", "udp"])
@pytest.mark.parametrize("interval", [0, 3600])
def test_what_a_handler_counts_is_counted_wherever_it_came(scheme, interval):
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    place = LOOPBACK if scheme == "tcp" else f"udp://127.0.0.1:{receiver.getsockname()[1]}"
    client = metrics.Client(place, interval=interval, close_timeout=0)
    taken = []
    send = client._sink.send
    client._sink.send = lambda found: (taken.append(found.message()), send(found))[1]
    came = 0

    def count():
        nonlocal came
        came += 1
        client.increment("handler")
        client.increment("own", 100)
        client.timing("took", 1.0)
        client.gauge("depth", 1, delta=True)
        client.set_add("who", str(came))

    with handling(signal.SIGUSR1, count):
        for number in range(1, 40):
            strike = Strike(COUNTING, number, signal.SIGUSR1, starts=True)
            with strike:
                client.increment("own")
                client.flush()
    client.close()
    receiver.close()
    total = {}
    for found in taken:
        for key, value in found.get("c", {}).items():
            total[key] = total.get(key, 0) + value
    assert came > 20
    assert total == {"handler": came, "own": 39 + 100 * came}
    assert sum(len(found.get("ms", {}).get("took", [])) for found in taken) == came
    assert sum(found.get("g", {}).get("depth", [None, 0])[1] for found in taken) == came
    assert sum(len(found.get("s", {}).get("who", [])) for found in taken) == came


def test_a_handler_that_flushes_or_closes_within_a_call_is_refused_and_never_waits():
    refused = finished = 0

    def close():
        nonlocal refused, finished
        for call in (client.flush, client.close):
            try:
                call()
                finished += 1
            except ReentrantCallError:
                refused += 1

    with handling(signal.SIGUSR1, close):
        for number in range(1, 40):
            client = metrics.Client(LOOPBACK, interval=3600, close_timeout=0)
            strike = Strike(COUNTING, number, signal.SIGUSR1, starts=True)
            with contextlib.suppress(p2pmsg.ClosedError), strike:
                client.increment("own")
                client.flush()
            client.close()
    assert refused > 5
    assert finished > 5


def test_what_a_handler_counts_within_one_call_is_bounded(monkeypatch):
    monkeypatch.setattr(gathering, "_ASIDE_MAX", 3)
    refused = []

    def count():
        for _ in range(4):
            client.increment("handler")

    add = deltas.Deltas.increment

    def struck(found, key, value):
        if key == "own":
            try:
                count()
            except ReentrantCallError as error:
                refused.append(error)
        return add(found, key, value)

    with metrics.Client(LOOPBACK, interval=3600, close_timeout=0) as client:
        monkeypatch.setattr(deltas.Deltas, "increment", struck)
        client.increment("own")
        assert len(refused) == 1
        assert not client._aside  # it was sent
        assert client.sent == 1
