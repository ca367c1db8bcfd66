"""A publisher and a subscriber: the two programs of the README, each in a process of its own.

Run it: `python examples/quickstart.py [ENDPOINT]`
"""

import multiprocessing
import sys

import p2pmsg

COUNT = 5


def publish(endpoint: str) -> None:
    """Publish a few trades, once somebody listens."""
    with p2pmsg.Publisher(endpoint, name="quickstart") as publisher:
        publisher.wait_for_subscribers(1, timeout=4.0)
        for number in range(COUNT):
            trade = {"price": 60_000 + number, "size": 0.5}
            sequence = publisher.publish("trades", trade, key="BTCUSDT")
            print(f"published {sequence}: {trade}", flush=True)


def subscribe(endpoint: str) -> None:
    """Print what comes, and the ledger at the end."""
    with p2pmsg.Subscriber(endpoint, topics=["trades"]) as subscriber:
        for message in subscriber:
            print(f"received  {message.sequence}: {message.key} {message.value}", flush=True)
            if message.sequence == COUNT - 1:
                break
        stats = subscriber.stats()
    print(f"delivered {stats.delivered} of {stats.published}, lost {stats.lost}", flush=True)


if __name__ == "__main__":
    endpoint = sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:5556"
    reader = multiprocessing.Process(target=subscribe, args=(endpoint,), daemon=True)
    reader.start()
    publish(endpoint)
    reader.join()
    sys.exit(reader.exitcode)
