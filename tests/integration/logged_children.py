"""What child processes of the log's tests do: `python -m …logged_children ROLE`."""

import json
import resource
import sys

from p2pmsg import LogConfig, LogFailedError, Publisher, PublisherConfig

TOPIC = "t"


def say(*words):
    print(*words, flush=True)


def fill_log(endpoint, directory, policy):
    """Publish until the log may not grow any more, and tell how that was told."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, resource.RLIM_INFINITY))
    log = LogConfig(directory, on_error=policy)
    accepted, flushed, error = 0, 0, None
    publisher = Publisher(endpoint, log=log, config=PublisherConfig(frame_bytes=4096))
    say(publisher.endpoint)
    sys.stdin.readline()
    try:
        for _ in range(3000):
            publisher.publish(TOPIC, accepted, headers={"padding": bytes(200)})
            accepted += 1
            publisher.flush()
            flushed += 1
    except LogFailedError as failure:
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
    except LogFailedError as failure:
        assert error is not None, failure  # there is still no room for the last message


def publish_logged(endpoint, directory, fsync):
    """Publish on a log for ever; say what was accepted, which is what has been flushed."""
    with Publisher(endpoint, log=LogConfig(directory, fsync=fsync)) as publisher:
        say(publisher.endpoint, publisher.session)
        while True:
            for _ in range(20):
                sequence = publisher.publish(TOPIC, "m")
            publisher.flush()
            say(sequence + 1)


ROLES = {role.__name__: role for role in (fill_log, publish_logged)}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
