"""A file of SQLite: its one owner, what is refused by name, and what a killed process leaves."""

import errno
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from recovery import RecoveryError
from recovery.errors import StoreInUseError
from recovery.store import open_store
from tests.endpoints import files_open_in
from tests.processes import in_child

TABLES = "CREATE TABLE at (name TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;"
PUT = "INSERT OR REPLACE INTO at VALUES (?, ?)"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.store"


def passes_in_child(work):
    assert in_child(lambda pipe: (work(), os.write(pipe, b"done"))) == b"done"


def is_refused(path):
    with pytest.raises(StoreInUseError, match="another"):
        open_store(path, TABLES)


def content(path):
    store = open_store(path, TABLES)
    found = dict(store.rows("SELECT * FROM at"))
    store.close()
    return found


@pytest.mark.parametrize("durable", [False, True])
def test_what_was_written_is_there_and_sqlite_shows_it(path, durable):
    store = open_store(path, TABLES)
    store.write((PUT, [("a", 1)]), durable=durable)
    two = [("a", 2), ("b", 3)]
    store.write((PUT, two), ("DELETE FROM at WHERE name=?", [("b",)]), durable=True)
    store.write((PUT, [("c", 2**63 - 1)]), durable=False)
    store.sync()
    store.close()
    store.close()
    assert content(path) == {"a": 2, "c": 2**63 - 1}
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM at").fetchone() == (2,)
    assert [one.name for one in path.parent.iterdir()] == ["a.store"]
    assert files_open_in(path.parent) == []


def test_all_of_a_write_is_done_or_nothing(path):
    store = open_store(path, TABLES)
    with pytest.raises(OSError, match="NOT NULL"):
        store.write((PUT, [("a", 1), ("b", None)]), durable=True)
    assert store.rows("SELECT * FROM at") == []
    store.write((PUT, [("a", 1)]), durable=True)
    assert store.rows("SELECT next FROM at WHERE name=?", ("a",)) == [(1,)]
    store.close()


@pytest.mark.parametrize("durable", [False, True])
def test_a_killed_process_loses_nothing(path, durable):
    def write(_):
        store = open_store(path, TABLES)
        for number in range(1000):
            store.write((PUT, [("a", number)]), durable=durable and number > 990)
        os.kill(os.getpid(), signal.SIGKILL)

    in_child(write)
    assert content(path) == {"a": 999}


def test_a_file_that_was_deleted_is_begun_again_without_its_journal(path):
    def write(_):
        open_store(path, TABLES).write((PUT, [("a", 1)]), durable=False)
        os.kill(os.getpid(), signal.SIGKILL)

    in_child(write)
    assert path.with_name("a.store-wal").stat().st_size
    path.unlink()
    assert content(path) == {}


def test_it_has_one_owner(path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(path)
    store = open_store(path, TABLES)

    for name in (path, str(path), link):
        is_refused(name)
    passes_in_child(lambda: is_refused(path))
    store.close()
    assert content(path) == {}


def test_who_closes_it_waits_for_a_write(path):
    store = open_store(path, TABLES)
    closing_it = threading.Thread(target=store.close)

    class Rows(list):
        def __iter__(self):
            for at, row in enumerate(super().__iter__()):
                if at == 1:
                    closing_it.start()
                if at:
                    time.sleep(0.001)
                yield row

    rows = Rows((f"{at}", at) for at in range(200))
    store.write(("DELETE FROM at", [()]), (PUT, rows), durable=True)
    closing_it.join()
    assert len(content(path)) == 200
    with pytest.raises(OSError, match="closed"):
        store.write((PUT, [("a", 1)]), durable=True)


def test_a_shared_one_may_be_opened_by_others(path):
    one, other = (open_store(path, TABLES, shared=True) for _ in range(2))
    one.write((PUT, [("a", 1)]), durable=True)
    other.write((PUT, [("b", 2)]), durable=True)
    assert one.rows("SELECT * FROM at") == other.rows("SELECT * FROM at") == [("a", 1), ("b", 2)]
    one.close()
    other.close()


FORKS = """
import os, sys
from recovery.store import open_store
store = open_store(sys.argv[1], sys.argv[2])
store.write((sys.argv[3], [("a", 1)]), durable=False)
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    store.write((sys.argv[3], [("b", 2)]), durable=True)
    os.kill(os.getpid(), 9)
store.close()  # and all that a program does at its end
"""


def test_a_forked_child_leaves_it_alone(path):
    done = subprocess.run([sys.executable, "-c", FORKS, path, TABLES, PUT], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert content(path) == {"a": 1, "b": 2}


def other_kind():
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE mine (a)")
        return database.serialize()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is empty"),
        (b"symbol,price\n" * 1000, "no database"),
        (other_kind(), "another kind"),
    ],
)
def test_another_file_is_refused_and_left_as_it_is(path, data, says):
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(RecoveryError, match=says):
            open_store(path, TABLES)
    assert path.read_bytes() == data
    assert [one.name for one in path.parent.iterdir()] == ["a.store"]


def test_a_damaged_one_is_refused(path):
    store = open_store(path, TABLES)
    store.write((PUT, [(str(number), number) for number in range(10_000)]), durable=True)
    store.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(data)
    with pytest.raises(RecoveryError, match="damaged"):
        open_store(path, TABLES)


def test_a_huge_file_that_is_none_is_not_read_whole(path):
    with open(path, "wb") as file:
        file.truncate(2**40)
    with pytest.raises(RecoveryError, match="no database"):
        open_store(path, TABLES)
    assert path.stat().st_size == 2**40


def test_where_no_file_can_be_says_so(path, tmp_path):
    with pytest.raises(IsADirectoryError):
        open_store(tmp_path, TABLES)
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        open_store(tmp_path / "b" / "a.store", TABLES)
    path.write_text("no folder")
    with pytest.raises(NotADirectoryError):
        open_store(path / "a.store", TABLES)


def test_a_file_that_vanishes_or_is_replaced_is_noticed(path, tmp_path):
    store = open_store(path, TABLES)
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        store.write((PUT, [("a", 1)]), durable=True)
    path.write_bytes(b"")
    with pytest.raises(OSError, match="another file has taken its place"):
        store.sync()
    store.close()


def test_a_full_disk_is_an_error_that_passes(path):
    def full():
        store = open_store(path, TABLES)
        store.write((PUT, [("a", 1)]), durable=True)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, before[1]))
        rows = [(f"{number:0200}", number) for number in range(10_000)]
        with pytest.raises(OSError, match=r"full|I/O") as raised:
            store.write((PUT, rows), durable=False)
        assert raised.value.errno in (errno.EIO, errno.ENOSPC)
        assert store.rows("SELECT * FROM at") == [("a", 1)]
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        store.write((PUT, rows), durable=True)
        store.close()

    passes_in_child(full)
    assert len(content(path)) == 10_001
