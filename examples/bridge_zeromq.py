"""Programs that speak plain ZeroMQ, as ends of a stream and of a work queue.

    python examples/bridge_zeromq.py

A PUB program, which knows nothing of p2pmsg, numbers what it sends. A bridge makes a stream of it
that is numbered, kept and repaired. The bridge is stopped for a moment, and it shows what the PUB
dropped meanwhile. Then a PUSH program fills a work queue, and a job that fails is tried again.
"""

import ctrl_c

import multiprocessing
import multiprocessing.connection
import tempfile
import time

import zmq
from arguments import none

import p2pmsg

PRICES = 1500
JOBS = 100


def publish(place: str) -> None:
    """Be a plain PUB: send prices, each with its number in the first 8 bytes."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.bind(place)
        socket.recv()  # somebody has subscribed
        for number in range(PRICES):
            if number == PRICES * 2 // 3:  # so that the example ends however slow the machine is
                socket.recv()  # the bridge has left
                socket.recv()  # and is there again
            socket.send_multipart([b"prices", number.to_bytes(8, "big") + b"61685.99"])
            if number % 10 == 0:
                time.sleep(0.005)
        socket.recv()  # nobody is there any more


def push(place: str) -> None:
    """Be a plain PUSH."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.bind(place)
        for number in range(JOBS):
            socket.send(b"%d" % number)


def start(target, place: str) -> multiprocessing.Process:
    """Start a program that knows nothing of p2pmsg."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=[place], daemon=True)
    with ctrl_c.held():
        process.start()
    return process


def receive(subscriber: p2pmsg.Subscriber, count: int) -> list[int]:
    """Return the PUB's numbers of so many messages."""
    values = [subscriber.receive(timeout=20).value for _ in range(count)]
    return [int.from_bytes(value[:8], "big") for value in values]


def prices_become_a_stream(folder: str) -> None:
    """Bridge a PUB into a stream with a log, in two goes."""
    process = start(publish, f"ipc://{folder}/pub")
    ends = (f"zmq+sub+ipc://{folder}/pub", f"ipc://{folder}/stream")
    numbers: list[int] = []
    missing = 0
    with p2pmsg.Subscriber(ends[1], topics=["prices"], start="earliest") as subscriber:
        with p2pmsg.Bridge(*ends, log=f"{folder}/log") as bridge:
            numbers += receive(subscriber, PRICES // 3)
        numbers += receive(subscriber, bridge.stats().ours.published - len(numbers))
        time.sleep(0.2)  # nobody listens to the PUB now
        with p2pmsg.Bridge(*ends, log=f"{folder}/log", sequence_at="0:8") as bridge:
            while not numbers or numbers[-1] < PRICES - 1:
                numbers += receive(subscriber, 1)
            missing = bridge.stats().missing
        lost = subscriber.stats().lost
    process.join()
    assert numbers == sorted(set(numbers))
    print(f"the PUB sent {PRICES}, the stream has {len(numbers)}, of which {lost} were lost")
    print(f"{PRICES - len(numbers)} were dropped while no bridge was there, {missing} afterwards")


def jobs_are_done(folder: str) -> None:
    """Bridge a PUSH into a work queue."""
    process = start(push, f"ipc://{folder}/push")
    done = failed = 0
    with (
        p2pmsg.Bridge(f"zmq+pull+ipc://{folder}/push", f"ipc://{folder}/queue") as bridge,
        p2pmsg.Puller(bridge.endpoint) as puller,
    ):
        while done < JOBS:
            job = puller.receive(timeout=20)
            if job.value.endswith(b"7") and job.delivery_count == 1:
                job.reject("the first try fails", delay=0.0)
                failed += 1
            else:
                job.ack()
                done += 1
    process.join()
    print(f"{done} of {JOBS} jobs were done, {failed} of them at the second try")


def main() -> None:
    """Bridge both."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        prices_become_a_stream(folder)
        jobs_are_done(folder)


if __name__ == "__main__":
    none(__doc__)
    ctrl_c.run(main)
