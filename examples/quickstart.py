"""A publisher and a subscriber: the two programs of the README, each in a process of its own.

Run it: `python examples/quickstart.py [ENDPOINT]`
"""

import ctrl_c

import multiprocessing

from arguments import optional

import p2pmsg

COUNT = 5


def publish(place: str) -> None:
    """Publish a few trades, once somebody listens."""
    with p2pmsg.Publisher(place, name="quickstart") as publisher:
        publisher.wait_for_subscribers(1, timeout=4.0)
        for number in range(COUNT):
            trade = {"price": 60_000 + number, "size": 0.5}
            sequence = publisher.publish("trades", trade, key="BTCUSDT")
            print(f"published {sequence}: {trade}", flush=True)


def subscribe(place: str) -> None:
    """Print what comes, and the ledger at the end."""
    with p2pmsg.Subscriber(place, topics=["trades"]) as subscriber:
        for message in subscriber:
            print(f"received  {message.sequence}: {message.key} {message.value}", flush=True)
            if message.sequence == COUNT - 1:
                break
        stats = subscriber.stats()
    print(f"delivered {stats.delivered} of {stats.published}, lost {stats.lost}", flush=True)


def main(place: str) -> int | None:
    """Do both, and return the subscriber's exit status."""
    reader = multiprocessing.Process(target=subscribe, args=(place,), daemon=True)
    with ctrl_c.held():
        reader.start()
    publish(place)
    reader.join()
    return reader.exitcode


if __name__ == "__main__":
    ctrl_c.run(main, optional(__doc__, "ENDPOINT", "tcp://127.0.0.1:5556"))
