"""Joins and commits, on a disk that fails and in a thread that Ctrl-C may strike anywhere."""

import itertools
import shutil
from functools import partial

import pytest

import recovery.store
from recovery import CursorFile, RecoveryError, cursor
from recovery.memory_store import MemoryStoreFile
from recovery.store import open_store
from tests.strikes import AtLine, files_of

ALL = ("*",)


def streams(file):
    sessions = file.cursor.sessions
    return {(s, topic): at for s in sessions for topic, at in sessions[s].streams.items()}


def reopened(store):
    """Return what a new process finds where the former one was killed."""
    store.kill()
    file = CursorFile(store.open)
    found = streams(file)
    file.close()
    return found


def on_disk(path):
    return CursorFile(partial(open_store, path))


@pytest.fixture
def store():
    return MemoryStoreFile()


@pytest.fixture
def file(store):
    made = CursorFile(store.open)
    made.join(1, ALL, {"a": 5, "b": 0}, ["here"])
    return made


def test_joining_again_writes_only_what_is_new(store, file):
    before = store.states
    assert not file.join(1, ALL, {"a": 9}, ["here"])
    assert store.states is before
    assert file.join(1, ("b",), {"a": 9, "c": 3}, ["there", "here"])
    assert file.cursor.sessions[1].scope == ("*", "b")
    assert streams(file) == reopened(store) == {(1, "a"): 5, (1, "c"): 3}
    assert file.cursor.endpoints == ("here", "there")


def test_what_is_in_a_file_is_all_there_again(tmp_path):
    file = on_disk(tmp_path / "a.cursor")
    file.join(2**64 - 1, ("é", "b*"), {"é": 5}, ["tcp://127.0.0.1:5555"])
    file.join(0xA1, ALL, {}, ["inproc://x"])
    file.advance([(0xA1, "trades", 2**63 - 1)], durable=False)
    file.close()
    again = on_disk(tmp_path / "a.cursor")
    assert again.cursor == file.cursor
    assert list(again.cursor.sessions) == [2**64 - 1, 0xA1]
    again.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE session SET session='zz'",
        "UPDATE session SET scope='{'",
        "UPDATE session SET scope='7'",
        "UPDATE stream SET session='77'",
        "UPDATE stream SET next='x'",
    ],
)
def test_what_makes_no_sense_is_refused(store, file, statement):
    store.user.write((statement, [()]), durable=True)
    store.kill()
    for _ in range(2):
        with pytest.raises(RecoveryError, match="makes no sense"):
            CursorFile(store.open)


FILES = files_of(cursor, recovery.store)


def strikes(more_than):
    """Return what strikes before the first line, the second, and so on until there are no more."""
    for number in itertools.count(1):
        strike = AtLine(FILES, number, error=KeyboardInterrupt)
        yield strike
        if not strike.struck:
            assert number > more_than
            return


@pytest.fixture
def disk(tmp_path):
    """Return what opens new files, and what another process would find in one of them."""
    names = (tmp_path / f"{number}.cursor" for number in range(10_000))

    def content(file):
        copy = next(names)
        for end in ("", "-wal"):
            shutil.copy(f"{file.path}{end}", f"{copy}{end}")
        found = on_disk(copy)
        found.close()
        return streams(found)

    return lambda: on_disk(next(names)), content


def test_ctrl_c_leaves_the_old_or_the_new_commit(disk):
    make, content = disk
    for strike in strikes(more_than=25):
        file = make()
        file.join(1, ALL, {"a": 5}, [])
        with strike:
            file.advance([(1, "a", 7), (1, "b", 1)], durable=True)
        old, new = {(1, "a"): 5}, {(1, "a"): 7, (1, "b"): 1}
        assert content(file) in ((old, new) if strike.struck else (new,))
        file.advance([(1, "a", 8), (1, "b", 2)], durable=True)
        assert content(file) == {(1, "a"): 8, (1, "b"): 2}
        file.close()


def test_ctrl_c_in_a_join_loses_no_session(disk):
    make, content = disk
    for strike in strikes(more_than=20):
        file = make()
        file.join(1, ("a",), {"a": 5}, [])
        file.join(2, ALL, {"c": 1}, [])
        with strike:
            file.join(1, ("b",), {"b": 7}, ["there"])
        assert (1, "a") in streams(file)
        assert (1, "a") in content(file)
        file.join(1, ("b",), {"b": 7}, ["there"])
        assert list(file.cursor.sessions) == [2, 1]
        assert content(file) == {(1, "a"): 5, (1, "b"): 7, (2, "c"): 1}
        file.close()


def test_the_session_joined_longest_ago_is_forgotten_first(store, monkeypatch):
    monkeypatch.setattr(cursor, "SESSIONS_MAX", 2)
    file = CursorFile(store.open)
    for session in (1, 2, 1, 3):
        file.join(session, ALL, {"a": session}, [])
    assert list(file.cursor.sessions) == [1, 3]
    assert (file.sessions_dropped, file.streams_dropped) == (1, 1)
    assert reopened(store) == {(1, "a"): 1, (3, "a"): 3}


def test_streams_have_a_bound(store, monkeypatch):
    monkeypatch.setattr(cursor, "STREAMS_MAX", 4)
    file = CursorFile(store.open)
    file.join(1, ALL, {"a": 1, "b": 1}, [])
    file.join(2, ALL, {"a": 2}, [])
    file.advance([(2, "b", 1), (2, "c", 1)], durable=False)
    assert file.cursor.stream_count == 3
    assert list(file.cursor.sessions) == [2]
    file.advance([(2, topic, 1) for topic in "defgh"], durable=False)
    assert file.cursor.stream_count == 4
    assert streams(file) == reopened(store)


def test_the_journal_does_not_grow_without_end(tmp_path):
    path = tmp_path / "a.cursor"
    file = on_disk(path)
    file.join(1, ALL, {}, [])
    for at in range(1, 10_000):
        file.advance([(1, "a", at)], durable=False)
    assert sum(entry.stat().st_size for entry in tmp_path.iterdir()) < 8 * 2**20
    file.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.cursor"]


def test_a_file_that_vanishes_is_noticed_and_made_again(tmp_path):
    path = tmp_path / "a.cursor"
    file = on_disk(path)
    file.join(1, ALL, {"a": 3}, [])
    path.unlink()
    with pytest.raises(FileNotFoundError):
        file.advance([(1, "a", 4)], durable=True)
    file.sync()
    file.close()
    again = on_disk(path)
    assert streams(again) == {(1, "a"): 4}
    again.close()
