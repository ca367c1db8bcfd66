"""Ids that were taken: kept so long, so many, and over restarts."""

import pytest

from p2pmsg.errors import LogFormatError
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
