"""What child processes of the tests do: `python -m tests.integration.children ROLE …`."""

import contextlib
import gc
import itertools
import json
import os
import resource
import signal
import struct
import sys
import threading
import time

import p2pmsg

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
    with p2pmsg.Subscriber(endpoint, start=0) as subscriber:
        expected = 0
        for message in subscriber:
            if message.sequence != expected:  # later messages may be known to be lost, too
                losses = subscriber.stats().losses
                assert (expected, message.sequence) in [(one.start, one.stop) for one in losses]
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
    with p2pmsg.Publisher(endpoint, config=config) as publisher:
        say(publisher.endpoint, publisher.session)
        publisher.wait_for_subscribers(1, timeout=60)
        for n in range(int(count)):
            publisher.publish(TOPIC, n)
        publisher.flush()
        say("published")
        sys.stdin.readline()


def publish_without_end(endpoint):
    with p2pmsg.Publisher(endpoint) as publisher:
        say(publisher.endpoint, publisher.session)
        publisher.wait_for_subscribers(1, timeout=60)
        for n in itertools.count():
            publisher.publish(TOPIC, n)
            if n % 100 == 0:
                time.sleep(0.001)


def flood(*topics):
    """Publish faster than anybody reads, until killed; say so when nobody is there any more."""
    config = p2pmsg.PublisherConfig(subscriber_timeout=1.0)
    with p2pmsg.Publisher("tcp://127.0.0.1:0", config=config) as publisher:
        say(publisher.endpoint)
        publisher.wait_for_subscribers(1, timeout=60)
        for topic in itertools.cycle(topics):
            publisher.publish_many(topic, [bytes(128)] * 1000)
            if not publisher.stats().subscribers:
                say("alone")


def publish_and_exit(endpoint, count, how):
    """Publish and end at once, in one of the ways in which a program ends."""
    publisher = p2pmsg.Publisher(endpoint)
    say(publisher.endpoint)
    publisher.wait_for_subscribers(1, timeout=60)
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
    publisher = p2pmsg.Publisher(endpoint)
    subscriber = p2pmsg.Subscriber(publisher.endpoint)
    publisher.wait_for_subscribers(1, timeout=60)
    for n in range(30_000):
        publisher.publish(TOPIC, n)
    subscriber.receive(60)
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
    with (
        p2pmsg.Publisher("tcp://127.0.0.1:0") as publisher,
        p2pmsg.Subscriber(publisher.endpoint) as subscriber,
    ):
        publisher.wait_for_subscribers(1, timeout=60)
        for topic in ("a", "b", "c"):
            publisher.publish(topic, 0)
            subscriber.receive(60)
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
    with p2pmsg.Publisher(
        endpoint, replay_bytes=int(replay_bytes), stall_timeout=0.1, config=config
    ) as publisher:
        say(publisher.endpoint)
        publisher.wait_for_subscribers(1, timeout=60)
        value, before = bytes(1000), rss()
        count, held = int(total_bytes) // 1000, 0
        for n in range(count):
            publisher.publish(TOPIC, value)
            if n % 10_000 == 0:
                held = max(held, publisher.stats().replay_bytes)
        say(rss() - before, held)
        sys.stdin.readline()


def hold(endpoint, receive_bytes):
    """Join and never read; print memory and bytes held when asked to."""
    with p2pmsg.Subscriber(endpoint, receive_bytes=int(receive_bytes)) as subscriber:
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
    with p2pmsg.Publisher(endpoint, config=config) as publisher:
        say(publisher.endpoint)
        publisher.wait_for_subscribers(1, timeout=60)
        publisher.stats()  # imports what it needs
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
    subscriber = p2pmsg.Subscriber(endpoint, start=0)
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
    with (
        p2pmsg.Publisher(endpoint) as publisher,
        p2pmsg.Subscriber(publisher.endpoint) as subscriber,
    ):
        publisher.wait_for_subscribers(1, timeout=60)
        for n in range(1000):
            publisher.publish(TOPIC, n)
        first = subscriber.receive(60).value
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(use_inherited(publisher, subscriber))
        values = [first] + [subscriber.receive(60).value for _ in range(999)]
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        for n in range(1000, 2000):
            publisher.publish(TOPIC, n)
        values += [subscriber.receive(60).value for _ in range(1000)]
        say(values == list(range(2000)))


def use_inherited(publisher, subscriber):
    calls = [
        lambda: publisher.publish(TOPIC, 0),
        lambda: publisher.publish_many(TOPIC, [0]),
        publisher.flush,
        lambda: publisher.wait_for_subscribers(5),
        lambda: subscriber.receive(1),
        lambda: subscriber.receive_many(timeout=1),
        lambda: list(subscriber),
    ]
    for number, call in enumerate(calls):
        try:
            call()
            return 10 + number
        except p2pmsg.ClosedError:
            pass
    publisher.stats()
    subscriber.stats()
    publisher.close()
    subscriber.close()
    with p2pmsg.Publisher("tcp://127.0.0.1:0") as own, p2pmsg.Subscriber(own.endpoint) as reader:
        own.wait_for_subscribers(1, timeout=60)
        own.publish(TOPIC, "own")
        return 0 if reader.receive(60).value == "own" else 3


def fill_log(endpoint, directory, policy):
    """Publish until the log may not grow any more, and print how that was reported."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, resource.RLIM_INFINITY))
    log = p2pmsg.LogConfig(directory, on_error=policy)
    accepted, flushed, error = 0, 0, None
    publisher = p2pmsg.Publisher(endpoint, log=log, config=p2pmsg.PublisherConfig(frame_bytes=4096))
    say(publisher.endpoint)
    sys.stdin.readline()
    try:
        for _ in range(3000):
            publisher.publish("t", accepted, headers={"padding": bytes(200)})
            accepted += 1
            publisher.flush()
            flushed += 1
    except p2pmsg.errors.LogFailedError as failure:
        error = failure
    stats = publisher.stats()
    say(
        json.dumps(
            {
                "accepted": accepted,
                "flushed": flushed,
                "error": None if error is None else str(error),
                "errno": None if error is None else error.errno,
                "failed": stats.log.failed,
                "session": publisher.session,
            }
        )
    )
    sys.stdin.readline()
    try:
        publisher.close()
    except p2pmsg.errors.LogFailedError as failure:
        assert error is not None, failure  # there is still no space for the last message


def publish_logged(endpoint, directory, fsync, pause_s=0):
    """Publish on a log for ever; say what was accepted, which is what has been flushed."""
    with p2pmsg.Publisher(endpoint, log=p2pmsg.LogConfig(directory, fsync=fsync)) as publisher:
        say(publisher.endpoint, publisher.session)
        while True:
            for _ in range(20):
                sequence = publisher.publish("t", "m")
            publisher.flush()
            say(sequence + 1)
            time.sleep(float(pause_s))


def publish_feed(endpoint, directory, count):
    """Publish `count` messages on a log (`-`: none), then more as they are asked for."""
    log = None if directory == "-" else p2pmsg.LogConfig(directory)
    with p2pmsg.Publisher(endpoint, name="feed", log=log) as publisher:
        say(publisher.endpoint, publisher.session)
        publisher.publish_many("t", list(range(int(count))))
        publisher.flush()
        say("published")
        for line in sys.stdin:
            following = publisher.publish_many("t", [None] * int(line))[1] + 1
            publisher.flush()
            say(following)


def relay(upstream, endpoint, directory, deadline_ms="30000"):
    """Relay on a log until killed; a gap is given up after `deadline_ms`."""
    with p2pmsg.Relay(
        upstream, endpoint, name="relay", log=p2pmsg.LogConfig(directory),
        intake=p2pmsg.SubscriberConfig(repair_timeout=float(deadline_ms) / 1000),
    ) as served:  # fmt: skip
        say(served.endpoint)
        sys.stdin.readline()


def forward(upstream, endpoint):
    """Relay with default settings, without a log, until killed."""
    with p2pmsg.Relay(upstream, endpoint, name="forward") as served:
        say(served.endpoint)
        sys.stdin.readline()


def publish_with_few_files(directory, files):
    """Publish on a log in a process that may open few files, as many messages as each line says."""
    log = p2pmsg.LogConfig(directory, segment_bytes=64 * 1024, fsync="always")
    make = p2pmsg.Publisher  # imported while files can be opened
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), int(files)))
    with make("tcp://127.0.0.1:0", log=log) as publisher:
        publisher.stats()  # imported before strangers come
        say(publisher.endpoint, publisher.recovery_endpoint)
        for line in sys.stdin:
            end = publisher.stats().streams.get("t", (0, 0))[1] + int(line)
            while publisher.stats().streams.get("t", (0, 0))[1] < end:
                with contextlib.suppress(p2pmsg.errors.LogFailedError):  # until they are refused
                    publisher.publish("t", b"x" * 1000)
                    publisher.flush()
            stats = publisher.stats()
            counts = stats.connections, stats.connections_refused
            say(stats.streams["t"][1], stats.log.failed, *counts)
        publisher.close(timeout=0)


def mold(place, session):
    """Publish a day of an exchange when asked to, then wait to be killed."""
    from tests.integration.mold import itch_messages  # it imports pytest, which takes a while

    feed = p2pmsg.moldudp64.MoldPublisher(place, session=session)
    say(f"127.0.0.1:{feed.request_address[1]}")
    sys.stdin.readline()
    feed.publish_many(itch_messages())
    sys.stdin.readline()


def mold_logged(place, directory):
    """Publish on a log until killed; print what was sent."""
    with p2pmsg.moldudp64.MoldPublisher(
        place, session="S1", log=p2pmsg.LogConfig(directory)
    ) as feed:
        for start in itertools.count(1, 10):
            feed.publish_many([b"%06d" % number for number in range(start, start + 10)])
            say(start + 9)


def mold_returned(place, directory, fsync):
    """Publish at full rate; write to fd 1 what was returned, as eight bytes each."""
    with p2pmsg.moldudp64.MoldPublisher(
        place, session="S1", log=p2pmsg.LogConfig(directory, fsync=fsync)
    ) as feed:
        for number in itertools.count():
            if number % 100:
                last = feed.publish(b"m%d" % number)
            else:
                last = feed.publish_many([b"x" * 700] * 5)[1]
            os.write(1, struct.pack("!Q", last))


ROLES = {
    role.__name__: role
    for role in (
        subscribe, publish, publish_without_end, publish_and_exit, leave_open, idle, grow, hold,
        publish_interrupted, receive_interrupted, fork, flood, fill_log, publish_logged,
        publish_feed, relay, forward, publish_with_few_files, mold,
        mold_logged, mold_returned,
    )
}  # fmt: skip

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
