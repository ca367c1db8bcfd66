"""Up to where a relay had others' streams: a log that comes back shorter says what it has lost."""

import pytest

from recovery.log import LogConfig, LogWriter, MemoryStore
from recovery.log.ends import NAME, PAGE, TOPIC_BYTES_MAX, Ends
from tests.unit.recovery.log.logs import OTHER, SESSION, S, segments

CONFIG = LogConfig("log", segment_bytes=4096)
FRAME = bytes(100)


def opened(store, config=CONFIG, now_ns=S):
    writer = LogWriter(config, session=SESSION, now_ns=now_ns, store=store)
    writer.begin_tail()
    return writer


def relay(writer, count, topic="t", *, session=OTHER, start=0, now_ns=S):
    """Append frames of one message, as a relay does."""
    cell = writer.end_of(session, topic, start)
    for sequence in range(start, start + count):
        writer.append(session, topic, sequence, 1, FRAME, timestamp_ns_max=0, now_ns=now_ns)
        cell[0] = sequence + 1


def cut(store, byte_count):
    name = segments(store)[-1]
    store.write(name, store.read(name)[:-byte_count])


def end_life(store, writer, how):
    if how == "closed":
        writer.close(S)
    store.kill()


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_a_log_that_was_cut_says_what_is_gone_of_others_streams(how):
    store = MemoryStore()
    writer = opened(store)
    relay(writer, 10)
    relay(writer, 4, "u")
    end_life(store, writer, how)
    cut(store, 200)

    writer = opened(store)
    kept = {topic: writer.next(OTHER, topic) for topic in "tu"}
    assert kept == {"t": 10, "u": 2}
    assert writer.cut == {(OTHER, "u"): (2, 4)}


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_a_log_that_is_whole_has_lost_nothing(how):
    store = MemoryStore()
    writer = opened(store)
    relay(writer, 100)
    end_life(store, writer, how)

    assert opened(store).cut == {}


def test_what_is_gone_is_known_until_it_is_there_again():
    store = MemoryStore()
    relay(opened(store), 10)
    store.kill()
    cut(store, 200)
    for _ in range(2):
        writer = opened(store)
        assert writer.cut == {(OTHER, "t"): (8, 10)}
        store.kill()
    relay(opened(store), 4, start=8)
    store.kill()

    assert opened(store).cut == {}


def test_a_segment_that_is_gone_took_what_was_in_it():
    store = MemoryStore()
    writer = opened(store)
    relay(writer, 50)
    relay(writer, 3, "u", start=7)
    store.kill()
    assert len(segments(store)) == 2
    first = int(segments(store)[1].split(".")[0])
    store.remove(segments(store)[1])

    writer = opened(store)
    following = writer.next(OTHER, "t")
    assert 0 < following <= first
    assert writer.cut == {(OTHER, "t"): (following, 50), (OTHER, "u"): (7, 10)}


def test_what_retention_has_deleted_is_not_gone():
    store = MemoryStore()
    config = LogConfig("log", segment_bytes=4096, retention_bytes=4096)
    writer = opened(store, config)
    relay(writer, 5, "old")
    relay(writer, 200, "t")
    writer.expire(S)
    assert writer.earliest(OTHER, "old") is None
    store.kill()

    writer = opened(store, config)
    assert writer.cut == {}
    assert dict(Ends(store)).keys() == {(OTHER, "t")}


def test_the_logs_own_streams_have_no_ends():
    store = MemoryStore()
    writer = opened(store)
    writer.append(SESSION, "t", 0, 1, FRAME, timestamp_ns_max=0, now_ns=S)

    assert store.read(NAME) is None


def test_a_place_is_used_again_when_its_stream_is_forgotten():
    store = MemoryStore()
    ends = Ends(store)
    for number in range(500):
        ends.cell((OTHER, f"t{number}"))[0] = number + 1
        if number >= 10:
            ends.forget((OTHER, f"t{number - 10}"))

    assert len(store.read(NAME)) == PAGE
    assert {key[1]: known.end for key, known in Ends(store)} == {
        f"t{number}": number + 1 for number in range(490, 500)
    }


def test_many_streams_are_found_again():
    store = MemoryStore()
    ends = Ends(store)
    keys = [(session, f"{'é' * 100}{topic}") for session in (1, 2**64 - 1) for topic in range(300)]
    for number, key in enumerate(keys):
        ends.cell(key)[0] = 2**62 + number
        ends.begin(key, number, 2 * number)

    assert dict(Ends(store)) == {
        key: (2**62 + number, 2 * number, number) for number, key in enumerate(keys)
    }


def test_a_topic_that_does_not_fit_is_not_noted():
    ends = Ends(MemoryStore())
    assert ends.cell((OTHER, "t" * TOPIC_BYTES_MAX)) is not None
    assert ends.cell((OTHER, "t" * (TOPIC_BYTES_MAX + 1))) is None


def test_without_space_on_the_disk_the_log_goes_on_and_counts_it():
    store = MemoryStore()
    ends = Ends(store)
    store.failing["write"] = OSError(28, "no space left on device")
    assert ends.cell((OTHER, "t")) is None
    assert ends.refused == 1
    store.failing.clear()
    assert ends.cell((OTHER, "t")) is not None


@pytest.mark.parametrize("at", [4095, 100])
def test_what_is_damaged_says_nothing(at):
    store = MemoryStore()
    ends = Ends(store)
    for topic in ("a" * 200, "b"):
        ends.cell((OTHER, topic))[0] = 5
    data = bytearray(store.read(NAME))
    data[at] ^= 1
    store.remove(NAME)
    store.write(NAME, bytes(data))

    found = dict(Ends(store))
    assert (OTHER, "a" * 200) not in found
    assert len(found) == (0 if at == 4095 else 1)
