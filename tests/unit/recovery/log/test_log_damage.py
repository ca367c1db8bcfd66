"""Damage is found, located and never served; and no damage lets a sequence be used twice."""

from struct import pack_into

import pytest
from crc32c import crc32c

from recovery.log import LogFormatError, repair, verify
from recovery.log.format import SEGMENT_HEADER, pack_head
from tests.unit.recovery.log.logs import (
    SESSION,
    Log,
    S,
    boundaries,
    read_all,
    segments,
    small_log,
)

ENDINGS = {"closed": True, "killed": False}


def copied(log, **changes):
    """Return a log with these very files, except for those given; None: it is missing."""
    made = Log.__new__(Log)
    made.__dict__.update(log.__dict__)
    made.store, made.written, made.next = type(log.store)(), list(log.written), dict(log.next)
    files = log.store.copy()
    files.update(changes)
    for name in [name for name, data in files.items() if data is None]:
        del files[name]
    made.store.restore(files)
    return made


def flipped(data, at, mask):
    return data[:at] + bytes((data[at] ^ mask,)) + data[at + 1 :]


def serves(log, reader):
    """What is served was written, and comes in order; return it."""
    found = read_all(reader)
    rest = iter(log.written)
    assert all(record in rest for record in found)
    return found


def check_opening(log, name, *, is_torn=False):
    """It works, and goes on above all that was used, or says which file hinders it.

    `is_torn`: it looks as if what is gone had never been written.
    """
    try:
        log.open()
    except LogFormatError as error:
        assert (error.path, error.offset) == (name, 0)
        assert str(error).startswith(f"{name}, byte 0: ")
        return None
    report = log.writer.opened
    found = serves(log, log.writer.reader())
    for (session, topic), following in log.next.items():
        if session == SESSION:
            assert is_torn or log.writer.next(session, topic) >= following
            log.next[session, topic] = log.writer.next(session, topic)
    log.append("a")
    assert log.written[-1] in serves(log, log.writer.reader())
    serves(log, log.reader())
    log.close()
    assert log.reopen().clean
    assert len(serves(log, log.writer.reader())) == len(found) + 1
    return report


@pytest.mark.rounds(50, 10**6)
@pytest.mark.parametrize("closed", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("kind", ["log", "idx"])
def test_any_byte_flipped_is_found_and_located_and_never_served(kind, closed, rounds):
    """Of each file about as many as there are rounds, or all."""
    log = small_log(closed=closed)
    names = [name for name in log.store.names() if name == kind or name.endswith("." + kind)]
    assert len(names) == {"log": 3, "idx": 2 + closed}[kind]
    for name in names:
        data = log.store.read(name)
        places = [0, *boundaries(data)] if kind == "log" else [0]
        for at in range(0, len(data), -(-len(data) // rounds)):
            spoilt = copied(log, **{name: flipped(data, at, 1 << at % 8)})
            place = max(place for place in places if place <= at)
            findings = list(verify("log", store=spoilt.store))

            assert findings, (name, at)
            assert (findings[0].path, findings[0].offset) == (name, place), (at, findings)
            served = serves(spoilt, spoilt.reader())
            if kind != "log":
                assert served == log.written, (name, at)
            else:
                assert len(served) >= len(log.written) - 7, (name, at)
            check_opening(spoilt, name)


@pytest.mark.parametrize("closed", ENDINGS.values(), ids=ENDINGS)
def test_the_last_segment_is_cut_at_every_byte(closed):
    log = small_log(closed=closed)
    name = segments(log.store)[-1]
    data = log.store.read(name)
    places = [0, *boundaries(data)]
    earlier = [record for record in log.written if record[5] < log.now_ns]
    for length in range(len(data)):
        cut = copied(log, **{name: data[:length]})
        count = sum(place <= length for place in places[1:])
        # Each of its three streams is named before its first frame.
        frames = {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 6: 2, 7: 3, 8: 4}[count]
        expected = log.written[: len(earlier) + frames]
        assert read_all(cut.reader()) == expected, length

        cut.open()
        assert read_all(cut.writer.reader()) == expected
        check_next(cut, expected, closed=closed)
        cut.append("a")
        cut.append("c")
        for reader in (cut.reader(), cut.writer.reader()):
            assert read_all(reader) == expected + cut.written[-2:], length
        cut.kill()
        assert cut.open().findings == (), length


def check_next(log, expected, *, closed):
    """After a kill what is cut was never sent; of a closed log it may have been."""
    for session, topic in log.next:
        kept = [one[3] for one in expected if one[:2] == (session, topic)]
        following = log.writer.next(session, topic)
        if closed and session == SESSION:
            assert following >= log.next[session, topic]
        else:
            assert following == max(kept, default=0)
        log.next[session, topic] = following


def future(data, kind):
    """Return the file with the next version's number, and all checksums right."""
    data = bytearray(data)
    pack_into("!I", data, 8, 2)
    header = SEGMENT_HEADER.size if kind == "log" else 56
    pack_into("!I", data, header - 4, crc32c(bytes(data[: header - 4])))
    return bytes(data)


DAMAGES = {
    "missing": lambda data, kind: None,
    "empty": lambda data, kind: b"",
    "half": lambda data, kind: data[: len(data) // 2],
    "foreign": lambda data, kind: b"#!/bin/sh\necho foreign\n" * 20,
    "of a future version": future,
    "twice": lambda data, kind: data + data,
    "zeros": lambda data, kind: bytes(len(data)),
}
FILES = {"first segment": ("log", 0), "last segment": ("log", 2), "an index": ("idx", 0),
         "last index": ("idx", 2)}  # fmt: skip
REFUSED = {("last segment", "foreign"), ("last segment", "of a future version")}


CASES = [
    pytest.param(file, closed, id=f"{file}-{ending}")
    for file in FILES
    for ending, closed in ENDINGS.items()
    if closed or file != "last index"  # there is none before the log is closed
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("file", "closed"), CASES)
def test_a_file_that_is_not_as_it_was(file, damage, closed):
    log = small_log(closed=closed)
    kind, index = FILES[file]
    names = sorted(name for name in log.store.names() if name.endswith(kind))
    name = names[index]
    spoilt = copied(log, **{name: DAMAGES[damage](log.store.read(name), kind)})

    findings = list(verify("log", store=spoilt.store))
    is_torn = (file, closed) == ("last segment", False) and damage in ("missing", "empty", "half")
    if is_torn:
        assert findings == []  # as a process that died leaves it
    elif (file, damage) == ("first segment", "missing"):
        assert findings == []  # as retention leaves it
    else:
        assert name in {one.path for one in findings} or damage == "missing"
        assert findings
    served = serves(spoilt, spoilt.reader())
    if kind != "log":
        assert served == log.written
    report = check_opening(spoilt, name, is_torn=is_torn)
    assert (report is None) == ((file, damage) in REFUSED)


def test_a_frame_that_has_a_record_in_it_is_not_taken_for_one():
    log = Log()
    log.append("a", 3)
    forged = b"forged"
    start = log.next[SESSION, "a"]
    inner = pack_head(0, 2, forged, 0, 5, start, log.now_ns, log.now_ns) + forged
    log.writer.append(
        SESSION, "a", start, 1, b"x" * 100 + inner, timestamp_ns_max=0, now_ns=log.now_ns
    )
    log.append("a", 3, skip=1)
    log.kill()
    (name,) = segments(log.store)
    data = log.store.read(name)
    at = boundaries(data)[2]
    spoilt = copied(log, **{name: flipped(data, at + 10, 1)})

    assert [one.offset for one in verify("log", store=spoilt.store)] == [at]
    assert read_all(spoilt.reader()) == log.written


def test_two_damages_let_no_sequence_be_used_twice():
    log = small_log(closed=True)
    name = segments(log.store)[-1]
    data = log.store.read(name)
    for index in (None, b"", b"foreign"):
        for segment in (data[:-1], flipped(data, len(data) - 1, 1), data[: boundaries(data)[-2]]):
            changes = {name: segment, name.replace(".log", ".idx"): index}
            check_opening(copied(log, **changes), name)


def test_the_last_record_of_a_closed_log_that_was_cut_is_known_to_its_reader():
    log = small_log(closed=True)
    name = segments(log.store)[-1]
    data = log.store.read(name)
    found = copied(log, **{name: data[:-1]}).reader().find_cut()

    assert "it was cut" in found.what


def test_verify_finds_nothing_while_the_log_is_written():
    log = Log(segment_bytes=4096, retention_bytes=10_000)
    for number in range(300):
        findings = verify("log", store=log.store)
        if number:
            log.append("a", size=number)
            next(findings, None)
        for _ in range(20):  # the log goes on between any two steps of it
            log.append("a", size=200)
            log.writer.sync(log.now_ns)
            if number % 2 == 0:
                assert next(findings, None) is None
        assert list(findings) == []
        log.now_ns += S


def nameless(frame):
    raise ValueError("it is not asked for")


@pytest.mark.parametrize("closed", [False, True], ids=["killed", "closed"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_repair_keeps_all_but_what_is_damaged_in_any_segment(closed, at):
    log = small_log(closed=closed, sessions=False)
    name = segments(log.store)[at]
    data = log.store.read(name)
    *_, start = (where for where in boundaries(data) if b"a1/a/" in data[where : where + 80])
    log = copied(log, **{name: flipped(data, start + 60, 1)})
    gone = [one for one in log.written if one[:2] == (SESSION, "a")][2 * at + 1]

    unkept = repair("log", nameless, store=log.store)
    assert [(place.path, place.offset) for place in unkept.places] == [(name, start)]
    gone_range = (SESSION, "a", *gone[2:4])
    if at < 2:
        assert unkept.messages == (gone_range,)
    else:  # where the stream had ended is not known any more
        (lost,) = [one for one in unkept.messages if one[1] == "a"]
        assert lost[2] <= gone[2] < gone[3] <= lost[3]
    assert read_all(log.reader()) == [one for one in log.written if one != gone]
    again = repair("log", nameless, store=log.store)
    assert again == ([], ())
    log.open()
    assert log.writer.skips(SESSION, "a")[0][:1] == (gone[2],)
    assert log.writer.next(SESSION, "a") >= log.next[SESSION, "a"]
    assert log.writer.next(SESSION, "b") == 2 or at == 2


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("closed", [False, True], ids=["killed", "closed"])
def test_no_sequence_is_used_twice_after_repair_of_a_streams_last_record(closed, has_index):
    log = small_log(closed=closed, sessions=False)
    name = segments(log.store)[1]
    data = log.store.read(name)
    start = data.index(b"a1/b/1+1/")  # the last of "b", which the newest segment has not
    changes = {name: flipped(data, start + 20, 1)}
    if not has_index:
        changes[name.replace(".log", ".idx")] = None
    log = copied(log, **changes)

    unkept = repair("log", nameless, store=log.store)
    lost = [one[2:] for one in unkept.messages if one[1] == "b"]
    assert has_index or closed or lost[0][0] == 1
    log.open()
    assert log.writer.next(SESSION, "b") >= 2
    assert log.writer.next(SESSION, "b") == 2 or not has_index
