"""Ids that were taken: kept so long, so many, and over restarts."""

import contextlib
import resource

from p2pmsg.webhooks import seen as seen_module
from p2pmsg.webhooks.seen import SeenIds

DAY = 86_400.0


def test_an_id_is_kept_for_its_time_and_over_restarts(tmp_path):
    path = tmp_path / "seen"
    seen = SeenIds(path, 0.0)
    seen.add("a", 100.0)
    assert seen.has("a", 100.0)
    seen.close()

    again = SeenIds(path, 3 * DAY)
    assert again.has("a", 3 * DAY)
    assert not again.has("b", 3 * DAY)
    assert not again.has("a", 4 * DAY)
    again.add("a", 4 * DAY)
    assert again.has("a", 4 * DAY)
    assert (len(again), again.forgotten) == (1, 0)
    again.close()


def test_ids_and_file_have_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(seen_module, "IDS_MAX", 100)
    path = tmp_path / "seen"
    seen = SeenIds(path, 0.0)
    for number in range(5_000):
        seen.add(str(number), number / 1000)
    assert (len(seen), seen.forgotten) == (100, 4_900)
    seen.close()
    assert path.stat().st_size < 100_000
    again = SeenIds(path, 5.0)
    assert [again.has(str(number), 5.0) for number in (4_899, 4_900, 4_999)] == [False, True, True]
    again.close()


@contextlib.contextmanager
def no_file_above(size):
    """Let the system write no file of this process further than that; it writes what has place."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_ids_that_had_no_space_are_written_when_there_is_some(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(seen_module, "IDS_MAX", 50)
    path = tmp_path / "seen"
    seen = SeenIds(path, 0.0)
    seen.add("before", 1.0)
    names = [f"full{number}" for number in range(200)]
    with no_file_above(0):
        for name in names:
            seen.add(name, 1.0)
        assert seen.unwritten == len(seen) == 50
        assert all(seen.has(name, 1.0) for name in names[-50:])
    seen.add("after", 1.0)
    assert (seen.unwritten, seen.failures) == (0, 200)
    seen.close()
    again = SeenIds(path, 1.0)
    assert [*filter(lambda name: again.has(name, 1.0), ["before", *names, "after"])] == [
        *names[-49:], "after",
    ]  # fmt: skip
    again.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "It is tried again; what is taken meanwhile is known" in said[0]
    assert f"{path}: it works again, after 200 failures" in said[1]
