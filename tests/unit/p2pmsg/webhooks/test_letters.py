"""The file of letters: what is written is there, for this sender and for the command."""

import pytest

from p2pmsg.errors import LogInUseError
from p2pmsg.webhooks import letters as letters_module
from p2pmsg.webhooks.letters import Letter, Letters


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "hook"


def letter(number, why="dead", **more):
    more.setdefault("body", b"body")
    return Letter(id=f"msg_{number}", why=why, topic="t", session=2**63, sequence=number, **more)


def ids(file, why):
    return [each.id for each in file.all(why)]


def test_dead_letters_have_a_bound(folder, monkeypatch):
    monkeypatch.setattr(letters_module, "_DEAD_MAX", 2)
    monkeypatch.setattr(letters_module, "_DEAD_BYTES_MAX", 2000)
    file = Letters(folder)
    file.write([letter(1), letter(2, "parked")])
    with pytest.raises(OSError, match="more dead letters than"):
        file.write([letter(3, body=bytes(2000))])
    file.write([letter(3)])
    with pytest.raises(OSError, match="more dead letters than"):
        file.write([letter(4)], ["msg_2"])
    assert (ids(file, "dead"), ids(file, "parked")) == (["msg_1", "msg_3"], ["msg_2"])
    file.write([letter(4)], ["msg_1"])
    file.close()


def test_a_folder_has_one_sender_and_others_ask_it(folder):
    sender, command = Letters(folder), Letters(folder)
    sender.lock()
    with pytest.raises(LogInUseError):
        command.lock()
    sender.write([letter(1), letter(2), letter(3, "parked")])
    command.ask(["msg_1", "msg_3", "none", "\ud800"])
    command.purge(["msg_1", "msg_2", "msg_3"])
    assert sender.all("asked") == [letter(1, "asked")]
    assert (ids(sender, "dead"), ids(sender, "parked")) == ([], ["msg_3"])
    sender.close()
    command.lock()
    command.close()


def test_a_file_that_is_damaged_meanwhile_is_a_failure_that_is_tried_again(folder):
    file = Letters(folder)
    file.write([letter(1)])
    for path in folder.glob("letters*"):
        path.write_bytes(b"U" * path.stat().st_size)
    for fails in (
        lambda: file.write([letter(2)]),
        lambda: file.count("dead"),
        lambda: file.all("dead"),
    ):
        with pytest.raises(OSError, match="database"):
            fails()
    file.close()
