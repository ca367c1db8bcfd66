"""What child processes of the tests do: `python -m tests.integration.children ROLE …`."""

import contextlib
import itertools
import json
import os
import resource
import signal
import struct
import sys
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


class Interrupts:
    """Raises KeyboardInterrupt in the main thread at random moments."""

    def __init__(self, seed):
        self.step = int(seed)
        signal.signal(signal.SIGALRM, signal.default_int_handler)

    def next(self, count):
        """Let one come within 3 ms, at a moment that differs from the others."""
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + (count * 7919 + self.step) % 3000 / 1e6)


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


def publish_joined(endpoint, directory, count):
    """Publish `count` messages on a log at once when a subscriber has joined, and wait."""
    with p2pmsg.Publisher(endpoint, name="feed", log=p2pmsg.LogConfig(directory)) as publisher:
        publisher.wait_for_subscribers(1, timeout=60)
        publisher.publish_many("t", list(range(int(count))))
        sys.stdin.read()


def relay(upstream, endpoint, directory, deadline_ms="30000"):
    """Relay on a log until killed; a gap is given up after `deadline_ms`."""
    with p2pmsg.Relay(
        upstream, endpoint, name="relay", log=p2pmsg.LogConfig(directory),
        intake=p2pmsg.SubscriberConfig(repair_timeout=float(deadline_ms) / 1000),
    ) as served:  # fmt: skip
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
        subscribe, publish, fill_log, publish_logged, publish_feed, publish_joined, relay,
        publish_with_few_files, mold, mold_returned,
    )
}  # fmt: skip

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
