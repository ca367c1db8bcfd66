"""Folders that were made are on the disk; a lock keeps others away until it is given back."""

import errno
import os
import signal
import threading

import pytest

import p2pmsg
from recovery.durable import holder_of, lock_file, make_folder, replace_file, unlock_file
from tests.processes import in_child


def open_log(folder):
    pytest.importorskip("recovery.log").FileStore(folder).lock()


def open_queue(folder):
    with p2pmsg.Pusher("inproc://folder", log=folder):
        pass


@pytest.fixture
def forced(monkeypatch):
    """Which files were forced to the disk."""
    names, fsync = [], os.fsync

    def record(fd):
        names.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    return names


@pytest.mark.parametrize("make", [make_folder, open_log, open_queue])
def test_the_name_of_a_new_folder_is_forced_to_the_disk(make, tmp_path, forced):
    make(tmp_path / "a")
    assert (tmp_path / "a").is_dir()
    assert str(tmp_path) in forced


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_file_that_cannot_be_replaced_is_as_it_was(tmp_path, monkeypatch, step):
    path = tmp_path / "a"
    replace_file(path, b"old", mode=0o600).close()
    assert path.stat().st_mode & 0o777 == 0o600

    def fail(*_):
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(OSError, match="no space"):
            replace_file(path, b"new")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a", b"old")]
    with replace_file(path, lambda fd: b"%d" % os.fstat(fd).st_ino) as file:
        assert path.read_bytes() == b"%d" % os.fstat(file.fileno()).st_ino


def test_a_lock_is_had_once_and_given_back(tmp_path):
    assert holder_of(tmp_path / "lock") is None
    (tmp_path / "lock").write_text("1234567\n")  # what one before has left
    held = lock_file(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        lock_file(tmp_path / "lock")
    assert holder_of(tmp_path / "lock") == os.getpid()
    unlock_file(held)
    unlock_file(held)  # again, as after an exception
    unlock_file(lock_file(tmp_path / "lock"))


def test_a_forked_child_does_not_keep_the_lock_of_a_parent_that_died(tmp_path):
    wait, go = os.pipe()

    def hold_and_die(writing):
        held = lock_file(tmp_path / "lock")
        reading, ready = os.pipe()
        if not os.fork():
            signal.alarm(60)
            for fd in (go, writing):
                os.close(fd)
            os.close(ready)
            os.read(wait, 1)
            os._exit(0)
        os.close(ready)
        os.read(reading, 1)  # until the child runs
        os.write(writing, b"%r" % held.closed)
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        assert in_child(hold_and_die) == b"False"
        unlock_file(lock_file(tmp_path / "lock"))
    finally:
        os.close(go)
        os.close(wait)


def test_a_lock_is_waited_for(tmp_path):
    held = lock_file(tmp_path / "lock")
    found = []
    thread = threading.Thread(target=lambda: found.append(lock_file(tmp_path / "lock", waits=True)))
    thread.start()
    assert not found
    unlock_file(held)
    thread.join()
    unlock_file(found[0])
