"""Ids that were taken: kept so long, so many, and over restarts."""

import contextlib
import os
import resource
import threading

import pytest

from p2pmsg.errors import LogFormatError
from p2pmsg.webhooks import seen as seen_module
from p2pmsg.webhooks.seen import SeenIds

DAY = 86_400.0


def test_an_id_is_kept_for_its_time_and_over_restarts(tmp_path):
    path = tmp_path / "seen"
    seen = SeenIds(path, 80 * 3600.0, 1000, 0.0)
    seen.add("a", 100.0)
    assert seen.has("a", 100.0)
    seen.close()

    again = SeenIds(path, 80 * 3600.0, 1000, 3 * DAY)
    assert again.has("a", 3 * DAY)
    assert not again.has("b", 3 * DAY)
    assert not again.has("a", 4 * DAY)
    again.add("b", 4 * DAY)
    assert len(again) == 1
    assert again.forgotten == 0
    again.close()


def test_ids_and_file_have_a_bound(tmp_path):
    path = tmp_path / "seen"
    seen = SeenIds(path, DAY, 100, 0.0)
    for number in range(30_000):
        seen.add(str(number), number / 1000)
        if number % 1000 == 0:
            seen.sync()
    assert len(seen) == 100
    assert seen.forgotten == 29_900
    assert path.stat().st_size < 400_000
    seen.close()
    again = SeenIds(path, DAY, 100, 30.0)
    assert [again.has(str(number), 30.0) for number in (29_899, 29_900, 29_999)] == [
        False, True, True,
    ]  # fmt: skip
    again.close()


@pytest.mark.parametrize("cut", [1, 16, 31])
def test_a_torn_end_costs_only_itself(tmp_path, cut):
    path = tmp_path / "seen"
    seen = SeenIds(path, DAY, 100, 0.0)
    for name in "abc":
        seen.add(name, 1.0)
    seen.close()
    path.write_bytes(path.read_bytes()[:-cut])
    again = SeenIds(path, DAY, 100, 1.0)
    assert [again.has(name, 1.0) for name in "abc"] == [True, True, False]
    again.add("c", 1.0)
    again.close()
    last = SeenIds(path, DAY, 100, 1.0)
    assert len(last) == 3
    last.close()


def test_another_file_is_refused(tmp_path):
    (tmp_path / "seen").write_bytes(b"something else")
    with pytest.raises(LogFormatError):
        SeenIds(tmp_path / "seen", DAY, 100, 0.0)


@contextlib.contextmanager
def no_file_above(size):
    """Let the system write no file of this process further than that; it writes what has place."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def known(path, names):
    again = SeenIds(path, DAY, 1000, 1.0)
    found = [name for name in names if again.has(name, 1.0)]
    again.close()
    return found


@pytest.mark.parametrize("has_synced", [False, True])
@pytest.mark.parametrize("space", [0, 24, 40])
def test_ids_that_had_no_space_are_written_when_there_is_some(tmp_path, caplog, space, has_synced):
    path = tmp_path / "seen"
    seen = SeenIds(path, DAY, 1000, 0.0)
    seen.add("before", 1.0)
    size = path.stat().st_size
    names = [f"full{number}" for number in range(300)]
    with no_file_above(size + space):
        for name in names:
            seen.add(name, 1.0)
        assert path.stat().st_size == size + space // 32 * 32
        assert seen.unwritten == 300 - space // 32
        assert not seen.is_settled
        assert all(seen.has(name, 1.0) for name in names)
    failures = seen.failures
    assert failures == 300 - space // 32
    if has_synced:  # no further id is needed
        seen.sync()
        assert seen.is_settled
    seen.add("after", 1.0)
    assert (seen.unwritten, seen.failures) == (0, failures)
    everything = ["before", *names, "after"]
    seen._file.close()
    seen._lock.close()  # as where it is killed
    assert known(path, everything) == everything
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert f"{path}: File too large. It is tried again; what is taken meanwhile is known" in said[0]
    assert f"{path}: it works again, after {failures} failures" in said[1]


def test_ids_that_are_not_written_have_a_bound_and_are_named_at_the_end(tmp_path, caplog):
    path = tmp_path / "seen"
    seen = SeenIds(path, DAY, 50, 0.0)
    with no_file_above(path.stat().st_size):
        for number in range(200):
            seen.add(str(number), 1.0)
        assert seen.unwritten == len(seen) == 50
        seen.close()
    assert "50 ids could not be written: if their requests are sent again" in caplog.text
    assert known(path, map(str, range(200))) == []


def test_a_file_that_cannot_be_written_again_is_appended_to(tmp_path, caplog):
    path = tmp_path / "seen"
    seen = SeenIds(path, DAY, 10, 0.0)
    (tmp_path / "seen.tmp").mkdir()  # where it would be written to
    for number in range(50_000):
        seen.add(str(number), 1.0)
        if number % 1000 == 0:
            seen.sync()
    assert seen.failures == 4
    assert seen.unwritten == 0
    assert [record.getMessage() for record in caplog.records] == [
        f"the file of webhook ids {path}: Is a directory. It is tried again; what is too old "
        "stays in it meanwhile"
    ]
    (tmp_path / "seen.tmp").rmdir()
    for number in range(10_000):
        seen.add(f"b{number}", 1.0)
    seen.close()
    assert path.stat().st_size < 400_000
    assert "it works again, after 4 failures" in caplog.text


def test_what_is_noted_is_settled_by_a_sync(tmp_path):
    seen = SeenIds(tmp_path / "seen", DAY, 10, 0.0)
    assert seen.is_settled
    seen.add("a", 1.0)
    assert not seen.is_settled
    seen.sync()
    assert seen.is_settled
    seen.close()
    assert SeenIds(None, DAY, 10, 0.0).is_settled


def test_the_lock_is_free_while_the_disk_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(seen_module, "_GROWTH", 2)
    seen = SeenIds(tmp_path / "seen", DAY, 100, 0.0)
    lock, waited = threading.Lock(), []
    for number in range(3):  # the second time the file is written again
        for part in "ab":
            seen.add(f"{number}{part}", 1.0)
        steps, result = seen.sync_steps(lock), None
        with contextlib.suppress(StopIteration):
            while True:
                call = steps.send(result)
                assert not lock.locked()
                seen.add(f"meanwhile{len(waited)}", 1.0)
                waited.append(call.func)
                result = call()
        assert not seen.is_settled  # the last one is not on the disk
        assert seen.unwritten == 0
    seen.sync()
    assert seen.is_settled
    assert os.fsync in waited
    assert seen_module._write_ids in waited
    seen.close()


def test_an_id_that_is_being_written_is_not_one_that_could_not_be(tmp_path, monkeypatch):
    seen = SeenIds(tmp_path / "seen", DAY, 100, 0.0)
    counts, pwrite = [], os.pwrite

    def looking(*arguments):
        counts.append(seen.unwritten)
        return pwrite(*arguments)

    monkeypatch.setattr(os, "pwrite", looking)
    seen.add("a", 1.0)
    assert counts == [0]
    with no_file_above((tmp_path / "seen").stat().st_size):
        seen.add("b", 1.0)
    assert seen.unwritten == 1
    seen.close()
    assert seen.unwritten == 0
