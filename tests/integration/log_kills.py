"""Kills writers of a log at random points: `python -m …log_kills DIRECTORY ROUNDS SEED`.

Each round a process opens the log and appends, and says through a pipe what it has appended. It is
killed, and the log must have all of that, at most one frame more, and continue after it. It prints
what it saw as JSON.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import sys
import time
from collections import defaultdict
from random import Random

from recovery.log import LogConfig, LogReader, LogWriter

SESSION = 7
TOPICS = ["a", "b", "c"]
_SAID = struct.Struct("!BQI")
_KINDS = ["interval", "always", "never"]


def frame_of(topic, start, count, size):
    """Return bytes that say what they are."""
    return f"{topic} {start} {count} {size};".encode() + bytes(((start + size) % 251,)) * size


def config_of(directory, rng):
    return LogConfig(
        directory, segment_bytes=rng.choice([4096, 60_000]), retention_bytes=400_000,
        fsync=rng.choice(_KINDS),
    )  # fmt: skip


def write(directory, seed, report):
    """Append until killed."""
    rng = Random(seed)
    writer = LogWriter(config_of(directory, rng), session=SESSION, now_ns=time.time_ns())
    while True:
        topic = rng.randrange(len(TOPICS))
        start, count = writer.next(SESSION, TOPICS[topic]), rng.randint(1, 5)
        size = rng.choice([0, 10, 500, 5000]) if rng.random() < 0.98 else 2**21
        writer.append(
            SESSION, TOPICS[topic], start, count, frame_of(TOPICS[topic], start, count, size),
            timestamp_ns_max=0, now_ns=time.time_ns(),
        )  # fmt: skip
        os.write(report, _SAID.pack(topic, start, count))
        if rng.random() < 0.03:
            writer.sync()
        if rng.random() < 0.03:
            writer.expire(time.time_ns())


def kill_one(directory, rng):
    """Let a process write and kill it; return (topic, start, count) of what it had appended.

    It is killed some time after it has begun, or after its first frame.
    """
    said, report = os.pipe()
    fcntl.fcntl(report, fcntl.F_SETPIPE_SZ, 2**20)
    seed, delay_s = rng.getrandbits(32), rng.choice([0.002, 0.02]) * rng.random()
    process = os.fork()
    if not process:
        try:
            os.close(said)
            write(directory, seed, report)
        finally:
            os._exit(1)  # with what it says about it
    os.close(report)
    if rng.random() < 0.8:
        select.select([said], [], [], 10)
    time.sleep(delay_s)
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "the writer failed by itself"
    with open(said, "rb") as pipe:
        said = pipe.read()
    return [(TOPICS[t], start, count) for t, start, count in _SAID.iter_unpack(said)]


def read(reader):
    """Return the sequences kept by topic; every frame is what it says that it is."""
    kept = {}
    for record in reader.records():
        topic, *numbers = record.frame.partition(b";")[0].decode().split()
        start, count, size = map(int, numbers)
        assert record.frame == frame_of(topic, start, count, size)
        assert (record.topic, record.start, record.stop) == (topic, start, start + count)
        if topic in kept:
            assert record.start == kept[topic][1], f"{topic} has a hole at {kept[topic][1]}"
        kept[topic] = (kept[topic][0] if topic in kept else record.start, record.stop)
    assert not reader.corrupt, reader.corrupt
    return kept


class Rounds:
    """What was appended over all rounds, and what was seen."""

    def __init__(self, directory, seed):
        self.directory = directory
        self.rng = Random(seed)
        self.next = defaultdict(int)
        self.seen = defaultdict(int)

    def run(self):
        said = kill_one(self.directory, self.rng)
        for topic, start, count in said:
            assert start == self.next[topic], f"{topic} begins at {start}, not {self.next[topic]}"
            self.next[topic] = start + count
        self.seen["rounds"] += 1
        self.seen["frames"] += len(said)
        self.seen["before the first frame"] += not said
        if not os.path.exists(os.path.join(self.directory, "state")):
            return  # it had not come so far
        if self.rng.random() < 0.3:  # the next one opens what this one left
            with contextlib.closing(LogReader(self.directory)) as reader:
                self.check(read(reader), {})
        else:
            self.open()

    def open(self):
        config = config_of(self.directory, self.rng)
        writer = LogWriter(config, session=1, now_ns=time.time_ns())
        report = writer.opened
        assert (writer.session, report.os_crash, report.findings) == (SESSION, False, ())
        assert report.segments_scanned <= 1
        self.seen["torn"] += report.bytes_cut > 0
        reader = writer.reader()
        self.check(read(reader), {topic: writer.next(SESSION, topic) for topic in TOPICS})
        reader.close()
        self.seen["closed"] += 1
        writer.close()

    def check(self, kept, following):
        """All that was said is there, and at most one frame more."""
        more = 0
        for topic in TOPICS:
            stop = following.get(topic, kept.get(topic, (0, self.next[topic]))[1])
            assert stop >= self.next[topic], f"{topic} ends at {stop}, not {self.next[topic]}"
            if topic in kept:
                assert kept[topic][1] == stop
            more += stop > self.next[topic]
            self.next[topic] = stop
        assert more <= 1
        self.seen["one frame more"] += more


def main(directory, rounds, seed):
    made = Rounds(directory, int(seed))
    for _ in range(int(rounds)):
        made.run()
    made.open()
    print(json.dumps({**made.seen, "messages": sum(made.next.values())}))


if __name__ == "__main__":
    main(*sys.argv[1:])
