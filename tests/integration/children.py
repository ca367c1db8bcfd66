"""What child processes of the tests do: `python -m tests.integration.children ROLE …`."""

import gc
import itertools
import json
import os
import resource
import signal
import sys
import threading
import time

import p2pmsg
from p2pmsg import Publisher, Subscriber

TOPIC = "trades"


def say(*words):
    print(*words, flush=True)


def report(subscriber):
    """Print the ledger as one line of JSON."""
    stats = subscriber.stats()
    say(
        json.dumps(
            {
                "balanced": stats.balanced,
                "published": stats.published,
                "delivered": stats.delivered,
                "outstanding": stats.outstanding,
                "lost": stats.lost,
                "losses": [(loss.start, loss.stop, loss.reason.value) for loss in stats.losses],
            }
        )
    )


def subscribe(endpoint, stop):
    """Receive up to the message `stop`, all in order, then print the ledger."""
    stop = int(stop)
    with Subscriber(endpoint, start=0) as subscriber:
        expected = 0
        for message in subscriber:
            lost = subscriber.stats().losses if message.sequence != expected else []
            assert message.sequence == expected or lost[-1].stop == message.sequence
            expected = message.sequence + 1
            if message.sequence % 1000 == 0:
                say("at", message.sequence)
            if message.sequence == stop:
                break
        report(subscriber)
        sys.stdin.readline()


def publish(endpoint, count, frame_bytes="1024"):
    """Publish `count` messages once somebody is there, then wait to be killed."""
    config = p2pmsg.PublisherConfig(frame_bytes=int(frame_bytes))
    with Publisher(endpoint, config=config) as publisher:
        say(publisher.endpoint, publisher.session)
        publisher.wait_for_subscribers(1, timeout=20)
        for n in range(int(count)):
            publisher.publish(TOPIC, n)
        publisher.flush()
        say("published")
        sys.stdin.readline()


def publish_without_end(endpoint):
    with Publisher(endpoint) as publisher:
        say(publisher.endpoint, publisher.session)
        publisher.wait_for_subscribers(1, timeout=20)
        for n in itertools.count():
            publisher.publish(TOPIC, n)
            if n % 100 == 0:
                time.sleep(0.001)


def flood(*topics):
    """Publish faster than anybody reads, until killed; say so when nobody is there any more."""
    config = p2pmsg.PublisherConfig(subscriber_timeout_ms=1000)
    with Publisher("tcp://127.0.0.1:0", config=config) as publisher:
        say(publisher.endpoint)
        publisher.wait_for_subscribers(1, timeout=30)
        for topic in itertools.cycle(topics):
            publisher.publish_many(topic, [bytes(128)] * 1000)
            if not publisher.stats().subscribers:
                say("alone")


def publish_and_exit(endpoint, count, how):
    """Publish and end at once, in one of the ways in which a program ends."""
    publisher = Publisher(endpoint)
    say(publisher.endpoint)
    publisher.wait_for_subscribers(1, timeout=20)
    if how == "with":
        with publisher:
            for n in range(int(count)):
                publisher.publish(TOPIC, n)
        return
    for n in range(int(count)):
        publisher.publish(TOPIC, n)
    if how == "close":
        publisher.close()
    elif how == "raise":
        with publisher:
            raise SystemExit(3)
    elif how == "interrupt":
        with publisher:
            raise KeyboardInterrupt


def leave_open(endpoint, how):
    """End with open peers: dropped, held, or in a cycle."""
    publisher = Publisher(endpoint)
    subscriber = Subscriber(publisher.endpoint)
    publisher.wait_for_subscribers(1, timeout=20)
    for n in range(100_000):
        publisher.publish(TOPIC, n)
    subscriber.receive(10)
    if how == "dropped":
        del publisher, subscriber
        gc.collect()
    elif how == "cycle":
        publisher.itself = [publisher, subscriber]
        del publisher, subscriber
    elif how == "blocked":
        threading.Thread(target=lambda: list(subscriber), daemon=True).start()
    say("done")


def idle(seconds):
    """Print the share of one core that an idle publisher and subscriber take, in percent."""
    with Publisher("tcp://127.0.0.1:0") as publisher, Subscriber(publisher.endpoint) as subscriber:
        publisher.wait_for_subscribers(1, timeout=20)
        for topic in ("a", "b", "c"):
            publisher.publish(topic, 0)
            subscriber.receive(10)
        shares = []
        for how in ("nobody receives", "receiving"):
            begun, begun_cpu = time.monotonic(), time.process_time()
            if how == "receiving":
                try:
                    subscriber.receive(float(seconds))
                except TimeoutError:
                    pass
            else:
                time.sleep(float(seconds))
            used = time.process_time() - begun_cpu
            shares.append(100 * used / (time.monotonic() - begun))
        say(*shares)


def rss():
    """Return the resident memory now, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def grow(endpoint, replay_bytes, total_bytes, frame_bytes=128 * 1024):
    """Publish to subscribers that may not read; print how much memory that took, in bytes."""
    config = p2pmsg.PublisherConfig(frame_bytes=int(frame_bytes))
    with Publisher(
        endpoint, replay_bytes=int(replay_bytes), stall_ms=100, config=config
    ) as publisher:
        say(publisher.endpoint)
        publisher.wait_for_subscribers(1, timeout=20)
        value, before = bytes(1000), rss()
        count, held = int(total_bytes) // 1000, 0
        for n in range(count):
            publisher.publish(TOPIC, value)
            if n % 10_000 == 0:
                held = max(held, publisher.stats().replay_bytes)
        say(rss() - before, held)
        sys.stdin.readline()


def hold(endpoint, receive_bytes):
    """Join and never read; print memory and bytes held when told to."""
    with Subscriber(endpoint, receive_bytes=int(receive_bytes)) as subscriber:
        before, held = rss(), 0
        say("joining")
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
        while not ended.wait(0.01):
            stats = subscriber.stats()
            assert stats.balanced
            held = max(held, stats.bytes_held)
        say(rss() - before, held)


class Interrupts:
    """Raises KeyboardInterrupt in the main thread at random moments."""

    def __init__(self, seed):
        self.step = int(seed)
        signal.signal(signal.SIGALRM, signal.default_int_handler)

    def next(self, count):
        """Let one come within 3 ms, at a moment that differs from the others."""
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + (count * 7919 + self.step) % 3000 / 1e6)


def publish_interrupted(endpoint, times, seed):
    """Publish in a tight loop that is interrupted again and again; print what was accepted."""
    config = p2pmsg.PublisherConfig(frame_bytes=1024)
    with Publisher(endpoint, config=config) as publisher:
        say(publisher.endpoint)
        publisher.wait_for_subscribers(1, timeout=20)
        interrupts, returned, seen, n = Interrupts(seed), {}, 0, 0
        while seen < int(times):
            try:
                interrupts.next(seen)
                while True:
                    n += 1
                    if n % 1000 == 0:
                        first, last = publisher.publish_many(TOPIC, [n] * 50)
                        returned.update(dict.fromkeys(range(first, last + 1), n))
                    elif n % 500 == 0:
                        publisher.flush()
                    elif n % 300 == 0:
                        publisher.stats()
                    else:
                        returned[publisher.publish(TOPIC, n, key=str(n) if n % 3 else None)] = n
            except KeyboardInterrupt:
                seen += 1  # the next one is armed in the try again
        last = publisher.publish(TOPIC, -1)
        say(last)
        publisher.close(timeout=20)
        assert publisher.stats().undelivered == 0
        say(json.dumps(list(returned.items())))


def receive_interrupted(endpoint, times, seed, last):
    """Receive by one iterator that is interrupted again and again; all must come, once."""
    subscriber = Subscriber(endpoint, start=0)
    interrupts, seen, expected, last = Interrupts(seed), 0, 0, int(last)
    iterator = iter(subscriber)
    while expected <= last:
        try:
            if seen < int(times):
                interrupts.next(seen)
            for message in iterator:
                sequence = message.sequence
                if sequence != expected:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    say(f"{sequence} instead of {expected}: {subscriber.stats()}")
                    os._exit(1)
                expected = sequence + 1
                if sequence == last:
                    break
            else:
                signal.setitimer(signal.ITIMER_REAL, 0)
                say(f"the iterator ended at {expected} after {seen} interrupts")
                os._exit(1)
        except KeyboardInterrupt:
            seen += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    say("interrupts", seen)
    report(subscriber)
    subscriber.close()


def fork(endpoint):
    """Use the parent's peers in a forked child."""
    with Publisher(endpoint) as publisher, Subscriber(publisher.endpoint) as subscriber:
        publisher.wait_for_subscribers(1, timeout=20)
        for n in range(1000):
            publisher.publish(TOPIC, n)
        first = subscriber.receive(10).value
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(use_inherited(publisher, subscriber))
        values = [first] + [subscriber.receive(10).value for _ in range(999)]
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        for n in range(1000, 2000):
            publisher.publish(TOPIC, n)
        values += [subscriber.receive(10).value for _ in range(1000)]
        say(values == list(range(2000)))


def use_inherited(publisher, subscriber):
    calls = [
        lambda: publisher.publish(TOPIC, 0),
        lambda: publisher.publish_many(TOPIC, [0]),
        publisher.flush,
        lambda: publisher.wait_for_subscribers(5),
        lambda: subscriber.receive(1),
        lambda: subscriber.receive_many(timeout=1),
    ]
    for number, call in enumerate(calls):
        try:
            call()
            return 10 + number
        except p2pmsg.ClosedError:
            pass
    if list(subscriber):
        return 2
    publisher.stats()
    subscriber.stats()
    publisher.close()
    subscriber.close()
    with Publisher("tcp://127.0.0.1:0") as own, Subscriber(own.endpoint) as reader:
        own.wait_for_subscribers(1, timeout=10)
        own.publish(TOPIC, "own")
        return 0 if reader.receive(10).value == "own" else 3


ROLES = {
    role.__name__: role
    for role in (
        subscribe, publish, publish_without_end, publish_and_exit, leave_open, idle, grow, hold,
        publish_interrupted, receive_interrupted, fork, flood,
    )
}  # fmt: skip

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
