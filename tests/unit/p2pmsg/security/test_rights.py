"""Rights by user id: what a changed, broken or missing file does, names, and who is revoked."""

import os

import pytest

from p2pmsg.errors import ConfigError
from p2pmsg.security.rights import LOOK_NS, Rights
from transports import key_text

ANN, BOB, EVE = key_text(b"a" * 32), key_text(b"b" * 32), key_text(b"e" * 32)
TEXT = f'[peers]\nann = "{ANN}"\n[[rule]]\nwho = ["ann", "bob"]\nsubscribe = ["trades"]\n'


class Place:
    """An access file, a clock, and the names of another file."""

    def __init__(self, path):
        self.path, self.now_ns, self.names = path, 0, {BOB: "bob"}
        self.changes = self.name_changes = 0
        self.asked = []

    def rename(self, **names):
        self.names, self.name_changes = names, self.name_changes + 1

    def name_of(self, user):
        self.asked.append(user)
        return self.names.get(user)

    def write(self, text):
        self.changes += 1
        self.path.write_text(text)
        os.utime(self.path, (self.changes, self.changes))

    def later(self):
        self.now_ns += LOOK_NS


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "access.toml")
    place.write(TEXT)
    return place


@pytest.fixture
def rights(place):
    return Rights(place.path, place.name_of, lambda: place.name_changes, clock=lambda: place.now_ns)


def allowed(rights, topic="trades", verb="subscribe"):
    return {user for user in (ANN, BOB, EVE, "") if rights.may(user, verb, topic)}


def test_users_have_the_rights_of_their_names(rights):
    assert allowed(rights) == {ANN, BOB}
    assert allowed(rights, "trades*") == allowed(rights, verb="admin") == set()
    assert rights.covers(ANN, "subscribe", b"trades\0")
    assert not rights.covers(ANN, "subscribe", b"trades")
    assert not rights.covers(EVE, "subscribe", b"trades\0")
    assert rights.has_any(ANN, "subscribe")
    assert not rights.has_any(ANN, "publish")
    assert not rights.has_any(EVE, "subscribe")
    decision = rights.decide("", "subscribe", "trades")
    assert str(decision).startswith("denied: 'a peer without a key' subscribe")


def test_a_changed_file_is_read_again_but_looked_at_once_a_second(place, rights):
    version = rights.version
    place.write(TEXT.replace("trades", "quotes"))
    assert not rights.refresh()
    assert allowed(rights) == {ANN, BOB}

    place.later()
    assert rights.refresh()
    assert allowed(rights) == set()
    assert allowed(rights, "quotes") == {ANN, BOB}
    assert rights.version > version
    version = rights.version
    place.later()
    assert not rights.refresh()
    assert rights.version == version


def test_a_file_that_is_empty_while_it_is_written_takes_nobodys_rights(place, rights, caplog):
    """An editor empties it first; who has no right is disconnected."""
    place.path.write_text("")
    place.later()
    assert not rights.refresh()
    assert allowed(rights) == {ANN, BOB}
    assert "has no rules" in caplog.text

    place.path.write_text(TEXT.replace("trades", "quotes"))
    place.later()
    assert rights.refresh()
    assert allowed(rights, "quotes") == {ANN, BOB}


def test_a_file_that_stays_empty_gives_nobody_a_right(place, rights):
    for _ in range(2):
        place.write("# nobody\n")
        place.later()
        assert not rights.refresh()
        place.later()
        assert rights.refresh()
        assert allowed(rights) == set()
        place.write(TEXT)
        place.later()
        assert rights.refresh()
        assert allowed(rights) == {ANN, BOB}


@pytest.mark.parametrize("content", ["", "# nobody\n"])
def test_a_broken_file_that_is_emptied_gives_nobody_a_right(place, rights, content):
    """An empty one was taken for the broken one: all kept their rights, silently."""
    for _ in range(2):
        place.path.write_text("[[rule]\n")
        place.later()
        assert not rights.refresh()
        place.path.write_text(content)
        place.later()
        assert not rights.refresh()
        assert allowed(rights) == {ANN, BOB}
        place.later()
        assert rights.refresh()
        assert allowed(rights) == set()
        place.write(TEXT)
        place.later()
        assert rights.refresh()


def test_each_time_that_a_file_is_empty_while_it_is_written_nobody_loses_a_right(place, rights):
    for _ in range(3):
        for content in ("", TEXT):
            place.path.write_text(content)
            place.later()
            assert not rights.refresh()
            assert allowed(rights) == {ANN, BOB}


def test_a_change_within_one_time_stamp_is_seen(place, rights):
    place.path.write_text(TEXT.replace("trades", "quotes"))
    place.later()
    assert rights.refresh()
    stamp = os.stat(place.path).st_mtime_ns

    place.path.write_text(TEXT.replace("trades", "orders"))
    os.utime(place.path, ns=(stamp, stamp))
    place.later()
    assert rights.refresh()
    assert allowed(rights, "orders") == {ANN, BOB}


def test_a_broken_file_is_logged_once_and_the_rules_stay(place, rights, caplog):
    place.path.write_text(TEXT + "read = ['x']\n")  # young, so that it is read each time
    for _ in range(5):
        place.later()
        assert not rights.refresh()

    assert allowed(rights) == {ANN, BOB}
    (line,) = caplog.messages
    assert "access.toml': rule 1 (line 6), read" in line
    assert line.endswith("the rules that were read before stay")

    place.path.unlink()
    for _ in range(3):
        place.later()
        rights.refresh()
    assert [text for text in caplog.messages if "No such file" in text] == caplog.messages[1:]
    assert len(caplog.messages) == 2

    place.write(TEXT)
    place.later()
    rights.refresh()
    place.path.write_text(TEXT + "read = ['x']\n")
    place.later()
    rights.refresh()
    assert len(caplog.messages) == 3
    assert allowed(rights) == {ANN, BOB}


def become_pipe(path):
    path.unlink()
    os.mkfifo(path)


def become_folder(path):
    path.unlink()
    path.mkdir()


def become_device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


BECOMES = [become_pipe, become_folder, become_device]


@pytest.mark.parametrize("become", BECOMES)
def test_what_is_no_file_any_more_is_not_waited_for_and_the_rules_stay(
    become, place, rights, caplog
):
    become(place.path)
    place.later()
    assert not rights.refresh()
    assert rights.may(ANN, "subscribe", "trades")
    assert "must be a file, not" in caplog.text or "Is a directory" in caplog.text
    with pytest.raises((ConfigError, IsADirectoryError), match=r"must be a file|Is a directory"):
        Rights(place.path)


@pytest.mark.parametrize("text", [f"x = {'9' * 5000}", f"rule.{'a.' * 2000}a = 1"])
def test_a_file_that_python_cannot_read_is_logged_and_the_rules_stay(text, place, rights, caplog):
    place.write(text)
    place.later()
    assert not rights.refresh()
    assert rights.may(ANN, "subscribe", "trades")
    assert "the rules that were read before stay" in caplog.text


def test_a_file_that_is_gone_again_is_logged_again(place, rights, caplog):
    for count in (1, 2):
        place.path.unlink()
        place.later()
        rights.refresh()
        assert len(caplog.messages) == count
        place.write(TEXT)
        place.later()
        rights.refresh()
    assert allowed(rights) == {ANN, BOB}


def test_the_first_reading_raises(tmp_path, place):
    with pytest.raises(FileNotFoundError):
        Rights(tmp_path / "none")
    place.write("[[rule]]\n")
    with pytest.raises(ConfigError, match="who"):
        Rights(place.path)


def test_a_name_that_another_file_gives_or_takes_counts_soon(place, rights):
    assert allowed(rights) == {ANN, BOB}
    place.rename(**{EVE: "bob"})
    place.later()

    assert rights.refresh()
    assert allowed(rights) == {ANN, EVE}


def test_a_revoked_peer_has_no_rights_until_it_has_another_key(place, rights):
    assert allowed(rights) == {ANN, BOB}
    version = rights.version
    assert rights.revoke("ann") == [ANN]
    assert rights.revoke(BOB) == [BOB]
    assert allowed(rights) == set()
    assert not rights.covers(ANN, "subscribe", b"trades\0")
    assert not rights.has_any(ANN, "subscribe")
    assert rights.is_revoked(ANN)
    assert rights.revoke(EVE) == [EVE]
    assert rights.version > version

    place.write(TEXT + "publish = ['x']\n")
    place.later()
    rights.refresh()
    assert allowed(rights) == set()

    newer = key_text(b"n" * 32)
    place.write(TEXT.replace(ANN, newer))
    place.later()
    rights.refresh()
    assert allowed(rights) == set()
    assert rights.may(newer, "subscribe", "trades")


def test_who_is_unknown_cannot_be_revoked(rights):
    with pytest.raises(ConfigError, match="who must be the name of a peer that is known, or its"):
        rights.revoke("carol")


def test_what_is_remembered_is_bounded(rights):
    for number in range(70_000):
        rights.may(str(number), "subscribe", "trades")

    assert len(rights._names) <= 65_536
    assert len(rights._decisions) <= 65_536


def test_names_are_looked_up_again_only_when_their_file_has_changed(place, rights):
    assert allowed(rights) == {ANN, BOB}
    place.asked.clear()
    for _ in range(3):
        place.later()
        assert not rights.refresh()
    assert place.asked == []
    place.rename(**{EVE: "bob"})
    place.later()
    assert rights.refresh()
    assert allowed(rights) == {ANN, EVE}


def test_a_file_that_others_can_write_is_refused_and_read_once_they_cannot(place, rights, caplog):
    place.write(TEXT.replace("trades", "quotes"))
    place.path.chmod(0o666)
    place.later()
    assert not rights.refresh()
    assert allowed(rights) == {ANN, BOB}
    assert "a file that others cannot write (chmod o-w), not 'mode 0666'" in caplog.text
    with pytest.raises(ConfigError, match=r"access file .*chmod o-w.*mode 0666"):
        Rights(place.path)
    place.path.chmod(0o664)
    place.later()
    assert rights.refresh()
    assert allowed(rights, "quotes") == {ANN, BOB}
