"""What child processes of test_full_disk.py do, on a small disk of their own."""

import asyncio
import json
import logging
import os
import sys
from pathlib import Path

import p2pmsg
import p2pmsg.aio
from p2pmsg import LogConfig, Publisher, PublisherConfig
from p2pmsg.errors import CursorError, LogFailedError
from p2pmsg.webhooks.seen import SeenIds

TOPICS = 24
"""So many slots are gathered in at a time; each needs half a MiB."""


def say(**said):
    print(json.dumps(said), flush=True)


class Said(logging.Handler):
    """Keeps what the library logs."""

    def __init__(self):
        super().__init__()
        self.texts = []
        logging.getLogger("p2pmsg").addHandler(self)

    def emit(self, record):
        self.texts.append(record.getMessage())

    def take(self):
        texts, self.texts = self.texts, []
        return texts


class Filler:
    """A file that takes all the space that is left."""

    def __init__(self, directory):
        self._path = Path(directory) / "filler"

    def fill(self):
        with open(self._path, "ab", buffering=0) as file:
            for size in (65_536, 4096, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    pass

    def give_back(self):
        self._path.unlink()


def publish_rounds(publisher, accepted, rounds, errors, topics=TOPICS):
    """Publish to each topic in turn, so many messages in a row that they share frames."""
    for topic in range(TOPICS - topics, TOPICS):
        for number in range(rounds):
            try:
                publisher.publish(f"t{topic}", b"%d.%d " % (topic, number) + bytes(200))
                accepted[topic] += 1
            except LogFailedError as error:
                errors.append(error)


def log_of(directory, how):
    return LogConfig(Path(directory) / "log", fsync=how)


def fill(endpoint, directory, how):
    """Publish while the disk becomes full, is full, and has space again; say what was accepted."""
    config = PublisherConfig(linger=5.0, gather_within=60.0)
    publisher = Publisher(endpoint, log=log_of(directory, how), config=config)
    filler, said = Filler(directory), Said()
    say(endpoint=publisher.endpoint)
    sys.stdin.readline()
    accepted, errors = [0] * TOPICS, []
    rounds = 20 if how == "always" else 100
    publish_rounds(publisher, accepted, rounds, errors)
    before, filled = len(errors), sum(accepted)
    filler.fill()
    publish_rounds(publisher, accepted, 3 if how == "always" else 8 * rounds, errors, topics=6)
    stats = publisher.stats()
    say(
        before=before,
        gathered=sum(accepted) - filled,
        errors=len(errors),
        error=str(errors[-1]),
        errno=errors[-1].errno,
        counted=stats.log.errors,
        failed=stats.log.failed,
        retrying=stats.log.retrying,
        said=said.take(),
    )
    sys.stdin.readline()
    filler.give_back()
    after = []
    publish_rounds(publisher, accepted, 20, after)
    publisher.flush()
    stats = publisher.stats()
    say(
        errors=len(after),
        heads={topic: head[1] for topic, head in stats.streams.items()},
        retrying=stats.log.retrying,
        said=said.take(),
    )
    sys.stdin.readline()
    publisher.close()
    say(logged=logged(directory), accepted=accepted)


def logged(directory):
    """Return how many messages of each topic the log has."""
    from recovery.log import LogReader

    counts = [0] * TOPICS
    reader = LogReader(Path(directory) / "log")
    for record in reader.records():
        counts[int(record.topic[1:])] += record.stop - record.start
    reader.close()
    return counts


def outrun(endpoint, directory, how):
    """Publish far more than the disk has space for, faster than the rounds apply retention."""
    from recovery.log import LogReader

    log = LogConfig(Path(directory) / "log", retention_bytes=3 * 2**20, segment_bytes=2**20)
    accepted, sizes, errors = 0, [], []

    def publish_much(publisher):
        nonlocal accepted
        for _ in range(6):
            try:
                accepted += publisher.publish_many("t", [bytes(1000)] * 500) is not None and 500
            except LogFailedError as error:
                errors.append(str(error))
            sizes.append(publisher.stats().log.bytes)

    async def in_loop():
        async with p2pmsg.aio.Publisher(endpoint, log=log) as publisher:
            for _ in range(10):
                publish_much(publisher)
                await publisher.drain()

    if how == "loop":
        asyncio.run(in_loop())
    else:
        with Publisher(endpoint, log=log) as publisher:
            for _ in range(10):
                publish_much(publisher)
    reader = LogReader(Path(directory) / "log")
    (stream,) = reader.streams()
    reader.close()
    say(errors=errors, size=max(sizes), accepted=accepted, next=stream.next)


def begin(endpoint, directory, how):
    """Begin to publish on a disk that is full, and once more when it has space."""
    filler = Filler(directory)
    filler.fill()
    try:
        Publisher(endpoint, log=log_of(directory, how))
    except LogFailedError as error:
        say(error=str(error))
    filler.give_back()
    publisher = Publisher(endpoint, log=log_of(directory, how))
    say(endpoint=publisher.endpoint)
    filler.fill()
    errors = []
    for number in range(200):  # no slot is there yet, and there is no space for one
        try:
            publisher.publish("t", bytes(2000))
        except LogFailedError as error:
            errors.append((number, str(error)))
    filler.give_back()
    publisher.publish("t", b"last")
    publisher.close()
    say(errors=len(errors), error=errors[-1][1] if errors else "")


def push(endpoint, directory, how):
    """Push jobs while the queue's disk becomes full, is full, and has space again."""
    filler = Filler(directory)
    log = p2pmsg.queue.QueueLogConfig(directory=Path(directory) / "queue", fsync=how)
    pusher = p2pmsg.Pusher(endpoint, log=log)
    say(endpoint=pusher.endpoint)
    sys.stdin.readline()
    accepted, errors = [], []
    for number in range(60):
        if number == 20:
            filler.fill()
        if number == 40:
            filler.give_back()
        try:
            pusher.push([number, bytes(3000)])
            accepted.append(number)
        except LogFailedError as error:
            errors.append(str(error))
    say(accepted=accepted, error=errors[-1] if errors else "")
    sys.stdin.readline()
    pusher.join(60)
    pusher.close()


def commit(endpoint, directory, how):
    """Commit while the cursor's disk becomes full, is full, and has space again."""
    filler, path = Filler(directory), Path(directory) / "cursor"
    publisher, returned, errors = Publisher(endpoint), [], []

    def subscribe():
        return p2pmsg.Subscriber(
            publisher.endpoint, topics=["t"], start="earliest", cursor=path, commit=how
        )

    def take_and_commit(subscriber, count):
        for _ in range(count):
            try:
                returned.append(subscriber.receive(timeout=60.0).sequence)
                if how == "explicit":
                    subscriber.commit()
            except CursorError as error:
                errors.append(str(error))

    publisher.publish_many("t", list(range(2000)))
    with subscribe() as subscriber:
        take_and_commit(subscriber, 100)
        filler.fill()
        while not errors:
            take_and_commit(subscriber, 1)
        take_and_commit(subscriber, 20)
        filler.give_back()
        said = errors.copy()
        errors.clear()
        take_and_commit(subscriber, 100)
    with subscribe() as subscriber:
        returned.append(subscriber.receive(timeout=60.0).sequence)
    publisher.close(0)
    say(errors=said, after=errors, returned=returned)


def seen(endpoint, directory, how):
    """Note webhooks' ids while the disk becomes full and has space again, with kills between."""
    filler, path, known = Filler(directory), Path(directory) / "seen", []

    def note(name):
        child = os.fork()
        if not child:
            ids = SeenIds(path, 1.0)
            missing = [one for one in known if not ids.has(one, 1.0)]
            for number in range(200):
                ids.add(f"{name}{number}", 1.0)
                if name == "during" and number in (20, 100):
                    filler.fill() if number == 20 else filler.give_back()
            say(missing=missing, unwritten=ids.unwritten, failures=ids.failures)
            os._exit(0)  # as where it is killed
        os.waitpid(child, 0)
        known.extend(f"{name}{number}" for number in range(200))

    note("before")
    note("during")
    note("after")
    filler.fill()
    try:
        SeenIds(path.with_name("new"), 1.0)
    except LogFailedError as error:
        say(error=str(error))


ROLES = {role.__name__: role for role in (fill, outrun, begin, push, commit, seen)}

if __name__ == "__main__":
    os.umask(0o077)
    ROLES[sys.argv[1]](*sys.argv[2:])
