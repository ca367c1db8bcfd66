"""What child processes of the cursor's tests do: `python -m tests.integration.cursor_children`."""

import contextlib
import os
import random
import signal
import sys
import time

import p2pmsg
from p2pmsg import Publisher, Subscriber
from p2pmsg.errors import CursorError
from tests.integration.children import Interrupts, report, say

TOPIC = "t"


def hold_cursor(endpoint, path):
    """Have the cursor until killed."""
    with Subscriber(endpoint, cursor=path):
        say("has it")
        sys.stdin.readline()


def nursery():
    """Start and kill children on demand; each is forked, so that it need not import anything."""
    for line in sys.stdin:
        what, *arguments = line.split()
        if what == "kill":
            pids = [int(pid) for pid in arguments]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            for pid in pids:
                os.waitpid(pid, 0)
            say("killed")
            continue
        pid = os.fork()
        if not pid:
            status = 1
            try:
                FORKED[what](*arguments)
                status = 0
            finally:
                os._exit(status)
        say(pid)


def committing(how):
    """Return the keywords of `Subscriber` that mean a mode, or an interval."""
    is_mode = how in ("explicit", "message")
    return {"commit": how} if is_mode else {"commit_interval": float(how)}


def consume(endpoint, path, out, commit, seed):
    """Note what was received, and what was committed, in a file."""
    rng = random.Random(int(seed))
    file = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with Subscriber(endpoint, start="earliest", cursor=path, **committing(commit)) as subscriber:
        os.write(file, b"begin\n")
        since = 0
        while True:
            if rng.random() < 0.1:
                messages = list(subscriber.receive_many(rng.randrange(1, 50)))
            else:
                messages = [subscriber.receive()]
            for message in messages:
                os.write(file, b"got %d %s\n" % (message.sequence, str(message.value).encode()))
            since += len(messages)
            if commit == "explicit" and since > rng.randrange(60):
                some = rng.choice([None, messages[-1], rng.choice(messages)])
                subscriber.commit(some)
                at = (messages[-1] if some is None else some).sequence + 1
                os.write(file, b"committed %d\n" % at)
                since = 0


def feed(endpoint, directory):
    """Publish on a log for ever; each value is the message's sequence, or unknown at first."""
    with Publisher(endpoint, log=p2pmsg.LogConfig(directory)) as publisher:
        value = "first"
        while True:
            for _ in range(20):
                value = publisher.publish(TOPIC, value) + 1
            time.sleep(0.002)


def receive_interrupted(endpoint, path, commit, times, seed, last):
    """Receive and commit while Ctrl-C strikes again and again; all must come, once."""
    subscriber = Subscriber(endpoint, start=0, cursor=path, **committing(commit))
    interrupts, seen, expected, last = Interrupts(seed), 0, 0, int(last)
    while expected <= last:
        try:
            if seen < int(times):
                interrupts.next(seen)
            while expected <= last:
                for message in subscriber:
                    if message.sequence != expected:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        say(f"{message.sequence} instead of {expected}: {subscriber.stats()}")
                        os._exit(1)
                    expected = message.sequence + 1
                    if commit == "explicit" and expected % 7 == 0:
                        break
                    if expected > last:
                        break
                if commit == "explicit":
                    subscriber.commit()
        except KeyboardInterrupt:
            seen += 1
    with contextlib.suppress(KeyboardInterrupt):  # the last one, just before it is called off
        signal.setitimer(signal.ITIMER_REAL, 0)
    if commit == "explicit":
        subscriber.commit()
    say("interrupts", seen)
    report(subscriber)
    with subscriber:
        pass
    say(next(s.committed for s in subscriber.stats().streams))


def fork(endpoint, path):
    """Fork while there is a cursor: the child neither commits nor keeps the lock."""
    subscriber = Subscriber(endpoint, start="earliest", cursor=path)
    subscriber.receive(60)
    (reader, writer), (hears, says) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            subscriber.commit()
        except p2pmsg.ClosedError:
            os.write(says, b"x")
            os.read(reader, 1)
            os._exit(0)
        os._exit(1)
    os.read(hears, 1)  # what a child does when it begins is done
    try:
        Subscriber(endpoint, cursor=path)
        say("the cursor was had twice")
    except CursorError:
        subscriber.commit()
        subscriber.close()
    with Subscriber(endpoint, cursor=path) as again:  # while the child still lives
        say(again.receive(60).sequence)
    os.write(writer, b"x")
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


FORKED = {"consume": consume, "feed": feed}
ROLES = {role.__name__: role for role in (hold_cursor, nursery, receive_interrupted, fork)}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
