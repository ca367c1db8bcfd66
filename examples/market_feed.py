"""A market feed over UDP multicast: one publisher, two subscribers, datagrams lost on the way.

Run it: `python examples/market_feed.py [ENDPOINT]`. The kernel drops a tenth of each subscriber's
datagrams; what is missing is asked for and repaired, so that both get every trade, in order.
"""

import ctrl_c

import multiprocessing

from arguments import optional

import p2pmsg
from p2pmsg.testing import lose_datagrams

COUNT = 20_000
LOSS = 0.1


def publish(publisher: p2pmsg.Publisher) -> None:
    """Publish trades in bursts, as markets do."""
    with publisher:
        publisher.wait_for_subscribers(2, timeout=10.0)
        for start in range(0, COUNT, 100):
            prices = [60_000 + (number * 7919) % 500 for number in range(start, start + 100)]
            publisher.publish_many("trades", prices, keys=["BTCUSDT"] * len(prices))
    stats = publisher.stats().multicast
    print(f"publisher: {stats.nacks} NACKs, {stats.messages_repaired} messages sent again")


def subscribe(name: str, endpoint: str) -> None:
    """Follow the feed, and report the result."""
    with p2pmsg.Subscriber(endpoint, topics=["trades"], name=name) as subscriber:
        lose_datagrams(subscriber, LOSS)
        volume = 0
        for message in subscriber:
            volume += message.value
            if message.sequence == COUNT - 1:
                break
        stats = subscriber.stats()
    line = stats.lines[0]
    print(
        f"{name}: {stats.delivered} of {stats.published} delivered, {stats.lost} lost, "
        f"{sum(stats.repaired.values())} repaired; {line.kernel_drops} drops by the kernel",
        flush=True,
    )


def main(place: str) -> int:
    """Do all three."""
    publisher = p2pmsg.Publisher(place, name="market")
    context = multiprocessing.get_context("spawn")
    readers = [
        context.Process(target=subscribe, args=(name, place), daemon=True)
        for name in ("screen", "archive")
    ]
    with ctrl_c.held():
        for reader in readers:
            reader.start()
    publish(publisher)
    for reader in readers:
        reader.join()
    return max(reader.exitcode or 0 for reader in readers)


if __name__ == "__main__":
    default = "udp://239.255.1.1:5560?interface=127.0.0.1"
    ctrl_c.run(main, optional(__doc__, "ENDPOINT", default))
