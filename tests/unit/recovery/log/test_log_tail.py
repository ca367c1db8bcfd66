"""A log that comes back shorter than it was written, or as a copy, is known for it."""

import pytest

from recovery.log import LogConfig, LogReader, LogWriter, MemoryStore, truncate, verify
from recovery.log.tail import SLOTS_MAX, Tail, read_head

S = 10**9
CONFIG = LogConfig("log", segment_bytes=4096)
FRAME = bytes(100)


def opened(store, config=CONFIG, session=1):
    writer = LogWriter(config, session=session, now_ns=S, store=store, slot_bytes=50)
    writer.begin_tail()
    return writer


def append(writer, count, topic="t"):
    for _ in range(count):
        start = writer.next(writer.session, topic)
        writer.append(writer.session, topic, start, 1, FRAME, timestamp_ns_max=0, now_ns=S)


def cut(store, byte_count, number=-1):
    name = sorted(name for name in store.names() if name.endswith(".log"))[number]
    store.write(name, store.read(name)[:-byte_count])


def left(count, config=CONFIG, *, is_closed=False):
    """Return the store of a log whose writer was killed, perhaps after it had closed."""
    store = MemoryStore()
    writer = opened(store, config)
    append(writer, count)
    if is_closed:
        writer.close()
    store.kill()
    return store


@pytest.mark.parametrize("byte_count", [1, 100, 350])
def test_a_log_that_was_cut_skips_to_its_mark(byte_count):
    store = left(5)
    cut(store, byte_count)

    assert "it was cut" in [finding.what for finding in verify("log", store=store)][-1]
    finding = LogReader("log", store=store).find_cut()
    assert "it was cut" in finding.what
    writer = opened(store)
    assert writer.session == 1
    assert writer.next(1, "t") >= 1000
    ((_, _, start, stop),) = writer.opened.skipped
    assert start < 5
    assert stop == writer.next(1, "t")


def test_a_segment_that_is_gone_is_noticed_too():
    store = left(60)
    names = sorted(name for name in store.names() if name.endswith(".log"))
    assert len(names) > 1
    store.remove(names[-1])

    assert [finding.what for finding in verify("log", store=store)][-1].startswith("it is missing")
    finding = LogReader("log", store=store).find_cut()
    assert (finding.path, finding.what.startswith("it is missing")) == (names[-1], True)
    assert opened(store).next(1, "t") >= 1000


def test_a_torn_tail_that_was_never_acknowledged_is_no_cut():
    store = left(5)
    (name,) = [name for name in store.names() if name.endswith(".log")]
    store.write(name, store.read(name) + b"a record that was being written")

    writer = opened(store)
    assert (writer.next(1, "t"), writer.opened.skipped) == (5, ())


def test_what_another_start_of_the_system_left_says_nothing():
    store = left(5)
    store.boots += 1

    assert read_head(store).end is None


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_copy_of_the_directory_begins_a_new_session(is_closed):
    store = left(5, is_closed=is_closed)
    store.restore({name: store.read(name) for name in store.names()})

    moved = LogConfig("log", moved=True)
    writer = opened(store, session=2)
    assert (writer.session, writer.opened.copied, writer.next(2, "t")) == (2, True, 0)
    assert (1, "t") in writer.streams()  # who reads the log still finds it
    writer.close()
    store.kill()
    store.restore({name: store.read(name) for name in store.names()})
    writer = opened(store, moved, session=3)
    assert (writer.session, writer.opened.copied) == (2, False)


@pytest.mark.parametrize("is_closed", [True, False])
def test_files_of_a_copy_in_place_of_those_that_are_there_begin_a_new_session(is_closed):
    store = left(5, is_closed=is_closed)
    backup = {name: store.read(name) for name in store.names()}
    writer = opened(store)
    append(writer, 5)
    writer.close()
    store.kill()
    for name, data in backup.items():  # into the very files, as cp does
        store.write(name, data)

    assert opened(store, session=2).opened.copied
    store.kill()
    assert not opened(store, session=3).opened.copied


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_copy_that_is_shortened_stays_a_copy(is_closed):
    store = left(100, is_closed=is_closed)
    store.restore({name: store.read(name) for name in store.names()})

    for _ in range(2):
        truncate("log", bytes_max=1, store=store)
        assert read_head(store).session == 1
    moved = LogConfig("log", moved=True)
    copy = MemoryStore()
    for name in store.names():
        copy.write(name, store.read(name))
    assert opened(copy, moved, session=2).session == 1
    assert opened(store, session=2).opened.copied


def test_slots_are_bounded_and_used_again():
    tail = Tail(MemoryStore(), 100)
    slots = [tail.take() for _ in range(SLOTS_MAX)]
    assert None not in slots
    assert tail.take() is None
    tail.give_back(slots[3])
    assert tail.take() is slots[3]


def test_a_full_disk_leaves_no_slot_for_now():
    store = MemoryStore()
    tail = Tail(store, 100)
    store.failing["write"] = OSError(28, "No space left on device")
    assert tail.take() is None
    store.failing.clear()
    assert tail.take() is not None
