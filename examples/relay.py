"""A publisher dies and does not come back, and nothing that its relay received is missing.

`python examples/relay.py` starts a publisher in a process of its own, a relay with a log, and kills
the publisher with SIGKILL in the middle. A subscriber that was there all the time carries on, and
one that comes only afterwards gets everything from the beginning, from the relay.
"""

import ctrl_c

import argparse
import subprocess
import sys
import tempfile
import time

from arguments import parser

import p2pmsg


def publish() -> None:
    """Publish prices without end."""
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="prices") as publisher:
        print(publisher.endpoint, flush=True)
        number = 0
        while True:
            publisher.publish("trades.BTCUSD", {"number": number, "price": 60_000 + number % 100})
            number += 1
            if number % 100 == 0:
                time.sleep(0.005)


def open_relay(upstream: str, folder: str) -> p2pmsg.Relay:
    """Relay what `upstream` publishes, and keep it in a log."""
    log = p2pmsg.LogConfig(folder)
    return p2pmsg.Relay(upstream, "tcp://127.0.0.1:0", name="the relay", log=log)


def read_all(subscriber: p2pmsg.Subscriber) -> int:
    """Read until nothing more comes, and return how many messages there were."""
    count = 0
    try:
        while True:
            message = subscriber.receive(timeout=1.0)
            assert message.value["number"] == message.sequence == count
            count += 1
    except TimeoutError:
        return count


def main() -> int:
    """Publish, relay, kill, count."""
    with ctrl_c.held():
        child = subprocess.Popen(
            [sys.executable, __file__, "publish"], stdout=subprocess.PIPE, text=True
        )
    try:
        assert child.stdout is not None
        endpoint = child.stdout.readline().strip()
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            open_relay(endpoint, folder) as relay,
            p2pmsg.Subscriber([endpoint, relay.endpoint], start="earliest") as early,
        ):
            relay.wait_for_streams(timeout=10)
            time.sleep(1.0)
            child.kill()  # it cannot say goodbye, and does not come back
            child.wait()
            first = read_all(early)
            with p2pmsg.Subscriber(relay.endpoint, start="earliest") as late:
                second = read_all(late)
                ledger = late.stats()
            received = relay.stats().received
            print(f"{relay.name} has {received}, who was there got {first}, who came late {second}")
            print(f"lost {ledger.lost}; the publisher is gone, {relay.name} serves on")
            return 0 if received == second <= first else 1
    finally:
        child.kill()
        child.wait()


if __name__ == "__main__":
    made = parser(__doc__)
    made.add_argument("role", nargs="?", choices=["publish"], help=argparse.SUPPRESS)
    ctrl_c.run(publish if made.parse_args().role else main)
