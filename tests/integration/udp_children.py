"""What child processes of the tests over UDP do: `python -m …udp_children ROLE …`."""

import json
import sys

from p2pmsg import (
    LossReport,
    MoldPublisher,
    MulticastSubscriberConfig,
    Subscriber,
    SubscriberConfig,
)
from tests.integration.mold import itch_messages


def say(*words):
    print(*words, flush=True)


def read_to(endpoint, buffer_bytes, repair_timeout, stop=-1):
    """Receive all up to the message with the value `stop`; tell what came, in the order in which.

    The line of JSON at the end has runs of what was delivered as [start, stop), losses as
    [start, stop, reason], and the ledger.
    """
    story = []
    lost: list[LossReport] = []
    config = SubscriberConfig(multicast=MulticastSubscriberConfig(buffer_bytes=int(buffer_bytes)))
    subscriber = Subscriber(
        endpoint, on_gap=lost.append, repair_timeout=float(repair_timeout), config=config
    )
    with subscriber:
        say("there")
        value = None
        while value != int(stop):
            batch = subscriber.receive_many(timeout=20)
            story += [[one.start, one.stop, one.reason.value] for one in lost]
            lost.clear()
            assert all(int(value[:8]) in (n, int(stop)) for n, value in enumerate(
                batch.values, batch.sequence
            ))  # fmt: skip
            story.append([batch.sequence, batch.sequence + len(batch)])
            if story[-1][0] == 0:
                say("reads")
            value = int(batch.values[-1][:8])
        stats = subscriber.stats()
        say(
            json.dumps(
                {
                    "story": story,
                    "balanced": stats.balanced,
                    "published": stats.published,
                    "delivered": stats.delivered,
                    "lost": stats.lost,
                    "losses": [[o.start, o.stop, o.reason.value] for o in stats.losses],
                    "repaired": sum(stats.repaired.values()),
                    "kernel_drops": [line.kernel_drops for line in stats.lines],
                }
            )
        )


def mold(place, session):
    """Publish a day of an exchange when told to, then wait to be killed."""
    feed = MoldPublisher(place, session=session)
    say(f"127.0.0.1:{feed.request_address[1]}")
    sys.stdin.readline()
    feed.publish_many(itch_messages())
    sys.stdin.readline()


ROLES = {role.__name__: role for role in (read_to, mold)}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
