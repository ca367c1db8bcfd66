"""Pusher and puller over a proxy that ends the connection at frames above a size."""

import p2pmsg
from tests.integration.inside import core_of
from tests.integration.peers import CuttingProxy, eventually
from tests.queues import with_limits

CONFIG = p2pmsg.PusherConfig(deliveries_max=2, retry_delay=0.001, ack_timeout=60)
# Where a connection is made again late, nothing is done twice.
LIMITS = {"unproven_max": 16, "grace": 60, "retry_max": 0.01}
COUNT, LARGE = 60, 25


def is_large(prefix):
    return len(prefix) == 512  # what a proxy shows of a message at the most


def test_a_job_at_which_the_connection_ends_is_found_and_the_others_are_done(
    make_pusher, make_puller, opened, caplog
):
    pusher = make_pusher(config=CONFIG)
    with_limits(core_of(pusher).queue, **LIMITS)
    proxy = opened.enter_context(CuttingProxy(pusher.endpoint, is_large))
    puller = make_puller(proxy.endpoint, prefetch=8)
    for number in range(COUNT):
        value = [number, "x" * 70_000 * (number == LARGE)]
        pusher.push(value, key=f"k{number % 7}" if number % 2 else None)
    done = []
    for _ in range(COUNT - 1):
        with puller.receive(timeout=60) as job:
            done.append(job.value[0])
    pusher.join(timeout=60)

    assert sorted(done) == [number for number in range(COUNT) if number != LARGE]
    for key in range(7):
        order = [number for number in done if number % 2 and number % 7 == key]
        assert order == sorted(order)
    (dead,) = pusher.dead_letters()
    assert (dead.value[0], dead.why) == (LARGE, "deliveries_max")
    stats = pusher.stats()
    assert (stats.done, stats.dead, stats.balanced) == (COUNT - 1, 1, True)
    assert proxy.cuts >= 2
    assert "connection ended" in dead.reason
    eventually(lambda: f"never got job {dead.sequence}, which was sent alone" in caplog.text)
