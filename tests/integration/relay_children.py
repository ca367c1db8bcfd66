"""What child processes of the relays' tests do: `python -m …relay_children ROLE`."""

import sys

from p2pmsg import LogConfig, NackConfig, Publisher, Relay, SubscriberConfig

TOPIC = "t"


def say(*words):
    print(*words, flush=True)


def publish(endpoint, directory, count):
    """Publish `count` messages on a log (`-`: none), then more as they are asked for."""
    log = None if directory == "-" else LogConfig(directory)
    with Publisher(endpoint, name="feed", log=log) as publisher:
        say(publisher.endpoint, publisher.session)
        publisher.publish_many(TOPIC, list(range(int(count))))
        publisher.flush()
        say("published")
        for line in sys.stdin:
            following = publisher.publish_many(TOPIC, [None] * int(line))[1] + 1
            publisher.flush()
            say(following)


def relay(upstream, endpoint, directory, deadline_ms="30000"):
    """Relay on a log until killed; a gap is given up after `deadline_ms`."""
    nack = NackConfig(deadline_ms=float(deadline_ms), attempts_max=1000)
    with Relay(
        upstream, endpoint, name="relay", log=LogConfig(directory),
        intake=SubscriberConfig(nack=nack),
    ) as served:  # fmt: skip
        say(served.endpoint)
        sys.stdin.readline()


def forward(upstream, endpoint):
    """Relay with default settings, without a log, until killed."""
    with Relay(upstream, endpoint, name="forward") as served:
        say(served.endpoint)
        sys.stdin.readline()


ROLES = {role.__name__: role for role in (publish, relay, forward)}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
