"""Ctrl-C at every step of an append: one that repeats it finds the log as if nothing had been."""

from functools import partial
from pathlib import Path

import pytest

import recovery.log
from recovery.log import LogConfig, LogReader, LogWriter, MemoryStore, verify
from tests.unit.p2pmsg.interrupts import interrupt_at
from tests.unit.recovery.log.logs import segments

PLACE = str(Path(recovery.log.__file__).parent)
TESTED = {"writer.py", "index.py", "catalog.py", "tail.py"}
CONFIG = LogConfig("log", segment_bytes=4096)
STEPS_MAX = 400


def is_inside(code):
    place = Path(code.co_filename)
    return str(place.parent) == PLACE and place.name in TESTED


def opened(store):
    writer = LogWriter(CONFIG, session=1, now_ns=0, store=store)
    writer.begin_tail()
    return writer


def append(writer, topic, size=40):
    start = writer.next(1, topic)
    frame = f"{topic}{start}".encode().ljust(size)
    writer.append(1, topic, start, 1, frame, timestamp_ns_max=start, now_ns=0)


def fill(store, writer):
    """Append so that the next frame needs a new segment, and a reservation."""
    while len(store.read(segments(store)[-1])) + 300 < CONFIG.segment_bytes:
        append(writer, "old")


@pytest.mark.parametrize("topic", ["old", "new"])
@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("more", [0, 3])
def test_an_append_that_was_interrupted_leaves_nothing(topic, is_full, more):
    struck = set()
    for step in range(STEPS_MAX):
        store = MemoryStore()
        writer = opened(store)
        append(writer, "old")
        if is_full:
            fill(store, writer)
        before = writer.next(1, topic)
        where = interrupt_at(step, partial(append, writer, topic, 1000), is_inside, "signal")
        if where is not None and writer.next(1, topic) == before:
            append(writer, topic)  # a smaller one
        for _ in range(more):
            append(writer, topic)
        check(store, writer, topic, where)
        store.kill()
        writer = opened(store)
        assert (writer.opened.findings, writer.opened.skipped) == ((), ()), where
        check(store, writer, topic, where)
        struck.add(where)
        if where is None:
            break
    assert None in struck
    assert len(struck) > 3


def check(store, writer, topic, where):
    """Every sequence is there once, by the writer's own reader and by another one."""
    assert list(verify("log", store=store)) == [], where
    stop = writer.next(1, topic)
    for reader in (writer.reader(), LogReader("log", store=store)):
        frames = reader.frames(1, topic, 0, stop, 2**40)
        assert [kept.start for kept in frames] == list(range(stop)), where
        texts = [f"{topic}{number}".encode() for number in range(stop)]
        assert [bytes(kept.frame).strip() for kept in frames] == texts, where
        by_time = reader.first_at_or_after(1, topic, stop - 1)
        assert by_time is not None, where
        assert by_time.start == stop - 1, where
    assert writer.bytes == sum(len(store.read(n)) for n in store.names() if n.endswith(".log"))
