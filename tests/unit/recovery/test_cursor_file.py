"""Joins and commits, on a disk that fails and in a thread that Ctrl-C may strike anywhere."""

import itertools
import sys
from pathlib import Path

import pytest

from recovery import (
    CursorFile,
    CursorFileStore,
    MemoryCursorStore,
    RecoveryError,
    cursor,
    cursor_store,
)
from recovery import durable as durable_files
from tests.endpoints import files_open_in

ALL = ("*",)


def streams(file):
    sessions = file.cursor.sessions
    return {(s, topic): at for s in sessions for topic, at in sessions[s].streams.items()}


def reopened(store):
    """Return what a new process finds where the former one was killed."""
    store.kill()
    file = CursorFile(store)
    found = streams(file)
    file.close()
    return found


@pytest.fixture
def store():
    return MemoryCursorStore()


@pytest.fixture
def file(store):
    made = CursorFile(store)
    made.join(1, ALL, {"a": 5, "b": 0}, ["here"])
    return made


def test_joining_again_writes_only_what_is_new(store, file):
    before = store.data
    assert not file.join(1, ALL, {"a": 9}, ["here"])
    assert store.data is before
    assert file.join(1, ("b",), {"a": 9, "c": 3}, ["there", "here"])
    assert file.cursor.sessions[1].scope == ("*", "b")
    assert streams(file) == reopened(store) == {(1, "a"): 5, (1, "c"): 3}
    assert file.cursor.endpoints == ("here", "there")


def test_a_commit_outlives_the_process_and_a_durable_one_the_system(store, file):
    assert file.advance([(1, "a", 7), (1, "b", 2)], durable=False) == 2
    assert file.unsynced
    assert store.durable != store.data
    assert file.advance([(1, "b", 3)], durable=True) == 1
    assert not file.unsynced
    assert store.durable == store.data
    assert file.commits == 2
    assert reopened(store) == {(1, "a"): 7, (1, "b"): 3}


def test_a_torn_end_is_cut_and_reported(store, file):
    file.advance([(1, "a", 6)], durable=True)
    store.data += b"torn"
    store.kill()
    again = CursorFile(store)
    assert again.bytes_cut == 4
    assert streams(again) == {(1, "a"): 6}
    assert store.durable == store.data
    again.advance([(1, "a", 7)], durable=False)
    assert reopened(store) == {(1, "a"): 7}


def test_a_damaged_file_is_let_go_of_and_left_as_it_is(store, file):
    store.kill()
    damaged = store.data = store.data[:-1]
    for _ in range(2):
        with pytest.raises(RecoveryError):
            CursorFile(store)
    assert store.data == damaged


FILES = {module.__file__ for module in (cursor, cursor_store, durable_files)}


# A file that was opened just before the strike is closed when it is forgotten, with a warning.
strikes_anywhere = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


class Strike:
    """Raises KeyboardInterrupt before the n-th line that is run in the cursor's files.

    The block ends with it; `struck` says whether there were so many lines.
    """

    def __init__(self, number):
        self.number = self.left = number
        self.struck = False

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)

    def __exit__(self, kind, *_):
        sys.settrace(self.before)
        self.struck = kind is KeyboardInterrupt
        return self.struck

    def trace(self, frame, event, _):
        if frame.f_code.co_filename not in FILES:
            return None
        if event in ("line", "return"):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.trace


def strikes(more_than):
    """Return what strikes before the first line, the second, and so on until there are no more."""
    for number in itertools.count(1):
        strike = Strike(number)
        yield strike
        if not strike.struck:
            assert number > more_than
            return


@pytest.fixture(params=["memory", "disk"])
def endpoints(request, tmp_path):
    """Return new stores, and what is in one of them as another process would find it."""
    if request.param == "memory":

        def content(store):
            copy = MemoryCursorStore()
            copy.data = store.data
            return reopened(copy)

        return MemoryCursorStore, content

    names = (tmp_path / f"{number}.cursor" for number in range(10_000))

    def content(store):
        copy = next(names)
        copy.write_bytes(Path(store.path).read_bytes())
        file = CursorFile(CursorFileStore(copy))
        file.close()
        return streams(file)

    return lambda: CursorFileStore(next(names)), content


@strikes_anywhere
def test_ctrl_c_leaves_the_old_or_the_new_commit(endpoints):
    make, content = endpoints
    for strike in strikes(more_than=25):
        store = make()
        file = CursorFile(store)
        file.join(1, ALL, {"a": 5}, [])
        with strike:
            file.advance([(1, "a", 7), (1, "b", 1)], durable=True)
        old, new = {(1, "a"): 5}, {(1, "a"): 7, (1, "b"): 1}
        assert content(store) in ((old, new) if strike.struck else (new,)), strike.number
        file.advance([(1, "a", 8), (1, "b", 2)], durable=True)
        assert content(store) == {(1, "a"): 8, (1, "b"): 2}, strike.number
        file.close()


@strikes_anywhere
def test_ctrl_c_in_a_join_loses_no_session(endpoints):
    make, content = endpoints
    for strike in strikes(more_than=20):
        store = make()
        file = CursorFile(store)
        file.join(1, ("a",), {"a": 5}, [])
        file.join(2, ALL, {"c": 1}, [])
        with strike:
            file.join(1, ("b",), {"b": 7}, ["there"])
        assert (1, "a") in streams(file), strike.number
        assert (1, "a") in content(store), strike.number
        file.join(1, ("b",), {"b": 7}, ["there"])
        assert list(file.cursor.sessions) == [2, 1]
        assert content(store) == {(1, "a"): 5, (1, "b"): 7, (2, "c"): 1}, strike.number
        file.close()


def test_the_session_joined_longest_ago_is_forgotten_first(store, monkeypatch):
    monkeypatch.setattr(cursor, "SESSIONS_MAX", 2)
    file = CursorFile(store)
    for session in (1, 2, 1, 3):
        file.join(session, ALL, {"a": session}, [])
    assert list(file.cursor.sessions) == [1, 3]
    assert (file.sessions_dropped, file.streams_dropped) == (1, 1)
    assert reopened(store) == {(1, "a"): 1, (3, "a"): 3}


def test_streams_have_a_bound(store, monkeypatch):
    monkeypatch.setattr(cursor, "STREAMS_MAX", 4)
    file = CursorFile(store)
    file.join(1, ALL, {"a": 1, "b": 1}, [])
    file.join(2, ALL, {"a": 2}, [])
    file.advance([(2, "b", 1), (2, "c", 1)], durable=False)
    assert file.cursor.stream_count == 3
    assert list(file.cursor.sessions) == [2]
    file.advance([(2, topic, 1) for topic in "defgh"], durable=False)
    assert file.cursor.stream_count == 4
    assert streams(file) == reopened(store)


def test_a_real_file_is_written_again_before_it_grows_without_end(tmp_path):
    path = tmp_path / "a.cursor"
    file = CursorFile(CursorFileStore(path))
    file.join(1, ALL, {}, [])
    limit = cursor.JOURNAL_BYTES_MAX
    largest, shrunk, at = 0, 0, 0
    while not shrunk:
        for _ in range(5000):
            at += 1
            file.advance([(1, "a", at)], durable=False)
        size = path.stat().st_size
        shrunk = size < largest
        largest = max(largest, size)
        assert size <= limit + 1000
    file.close()
    again = CursorFile(CursorFileStore(path))
    assert streams(again) == {(1, "a"): at}
    again.close()
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["a.cursor", "a.cursor.lock"]


def test_a_real_file_has_one_owner(tmp_path):
    path = tmp_path / "a.cursor"
    first = CursorFile(CursorFileStore(path))
    link = tmp_path / "link"
    link.symlink_to(path)
    for name in (path, str(path), link):
        with pytest.raises(RecoveryError, match="another subscriber"):
            CursorFile(CursorFileStore(name))
    first.close()
    first.close()
    CursorFile(CursorFileStore(path)).close()


def test_a_real_file_that_vanishes_is_noticed_and_made_again(tmp_path):
    path = tmp_path / "a.cursor"
    file = CursorFile(CursorFileStore(path))
    file.join(1, ALL, {"a": 3}, [])
    path.unlink()
    with pytest.raises(FileNotFoundError):
        file.advance([(1, "a", 4)], durable=True)
    file.sync()
    path.rename(tmp_path / "elsewhere")
    path.write_bytes(b"")
    with pytest.raises(OSError, match="another file has taken its place"):
        file.advance([(1, "a", 5)], durable=True)
    file.sync()
    file.close()
    again = CursorFile(CursorFileStore(path))
    assert streams(again) == {(1, "a"): 5}
    again.close()


def test_what_is_another_file_is_not_read_whole(tmp_path):
    path = tmp_path / "huge"
    with open(path, "wb") as file:
        file.truncate(2**40)
    with pytest.raises(RecoveryError, match="not a cursor"):
        CursorFile(CursorFileStore(path))
    assert path.stat().st_size == 2**40
    with pytest.raises(IsADirectoryError):
        CursorFile(CursorFileStore(tmp_path))


def test_no_descriptor_is_left_open(tmp_path):
    path = tmp_path / "a.cursor"
    for turn in range(5):
        file = CursorFile(CursorFileStore(path))
        file.join(turn, ALL, {}, [])
        file.advance([(turn, "a", 1)], durable=True)
        with pytest.raises(RecoveryError):
            CursorFile(CursorFileStore(path))
        file.close()
    path.write_bytes(b"x")
    with pytest.raises(RecoveryError):
        CursorFile(CursorFileStore(path))
    assert files_open_in(tmp_path) == []
