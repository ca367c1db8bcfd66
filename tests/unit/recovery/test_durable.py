"""Folders that were made are on the disk; a lock keeps others away until it is given back."""

import errno
import os
import threading

import pytest

import p2pmsg
from recovery.durable import lock_file, make_folder, replace_file


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
    replace_file(path, b"old", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600

    def fail(*_):
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(OSError, match="no space"):
            replace_file(path, b"new")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a", b"old")]
    replace_file(path, lambda fd: b"%d" % os.fstat(fd).st_ino)
    assert path.read_bytes() == b"%d" % path.stat().st_ino


def test_a_lock_is_waited_for_and_no_forked_child_keeps_it(tmp_path):
    found, (wait, go) = [], os.pipe()

    def lock():
        with lock_file(tmp_path / "lock"):
            found.append(1)

    thread = threading.Thread(target=lock)
    with lock_file(tmp_path / "lock"):
        process = os.fork()
        if not process:
            os.close(go)
            os.read(wait, 1)
            os._exit(0)
        thread.start()
        assert not found
    thread.join()
    os.close(go)
    os.close(wait)
    os.waitpid(process, 0)
    assert found
