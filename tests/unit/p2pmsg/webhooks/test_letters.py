"""The file of letters: what is written is there, whatever the end of the file is like."""

import pytest

from p2pmsg.errors import LogFormatError, LogInUseError
from p2pmsg.webhooks.letters import Letter, LetterFile, read_letters


@pytest.fixture
def path(tmp_path):
    return tmp_path / "hook" / "letters"


def opened(path, dead_max=100, dead_bytes=10**6):
    return LetterFile(path, dead_max, dead_bytes)


def letter(number, why="dead", **more):
    more.setdefault("body", b"body")
    return Letter(id=f"msg_{number}", why=why, topic="t", session=2**63, sequence=number, **more)


def test_letters_are_there_after_a_restart(path):
    file = opened(path)
    one = letter(1, "parked", key="k", attempts=3, reason="500", headers={"a": "b"})
    file.write([one, letter(2)])
    file.write([letter(3)], ["msg_2"])
    file.close()

    again = opened(path)
    assert [*again] == [one, letter(3)] == read_letters(path)
    assert (again.ids("parked"), again.ids("dead"), again.dead) == (["msg_1"], ["msg_3"], 1)
    again.write([letter(1)])
    assert again.ids("dead") == ["msg_3", "msg_1"]
    again.close()


@pytest.mark.parametrize("end", [b"\0", b"\xff" * 8, b"\0\0\0\x05abcdabcde", b"\0" * 100])
def test_what_a_crash_left_at_the_end_is_removed(path, end, caplog):
    file = opened(path)
    file.write([letter(1)])
    file.close()
    with path.open("ab") as raw:
        raw.write(end)

    again = opened(path)
    again.write([letter(2)])
    again.close()
    assert read_letters(path) == [letter(1), letter(2)]
    assert "no letters; removed" in caplog.text
    assert path.with_name("letters.damaged").read_bytes() == end


def test_each_cut_leaves_whole_letters(path):
    file = opened(path)
    file.write([letter(1)])
    first = path.stat().st_size
    file.write([letter(2)])
    file.close()
    data = path.read_bytes()
    for size in range(first, len(data)):
        path.write_bytes(data[:size])
        assert read_letters(path) == [letter(1)]


def test_dead_letters_have_a_bound(path):
    file = opened(path, dead_max=2)
    file.write([letter(1), letter(2, "parked")])
    assert not file.why_full(letter(3))
    file.write([letter(3)])
    assert "has 2 dead letters" in file.why_full(letter(4))
    file.write(drops=["msg_1"])
    assert not file.why_full(letter(4))
    file.close()
    file = opened(path, dead_bytes=500)
    assert file.why_full(letter(5, body=bytes(300)))
    file.close()


def test_the_file_does_not_grow_without_end(path):
    file = opened(path)
    for number in range(200):
        file.write([letter(number, "parked", body=bytes(100_000))], [f"msg_{number - 2}"])
    assert path.stat().st_size < 5_000_000
    assert file.ids("parked") == ["msg_198", "msg_199"]
    assert file.get("msg_199").body == bytes(100_000)
    file.close()
    assert len(read_letters(path)) == 2


def test_a_file_has_one_writer(path):
    """Another one would take what is just being written for the rest of a crash, and remove it."""
    file = opened(path)
    with pytest.raises(LogInUseError):
        opened(path)
    assert read_letters(path) == []
    file.close()
    opened(path).close()


def test_another_file_is_refused(path):
    path.parent.mkdir()
    path.write_bytes(b"something else")
    with pytest.raises(LogFormatError, match="no file of letters"):
        opened(path)
    with pytest.raises(LogFormatError, match="no file of letters"):
        read_letters(path)
