"""AccessRules by user id: what a changed, broken or missing file does, names, and who is
revoked."""

import os

import pytest

from p2pmsg.errors import ConfigError
from p2pmsg.security.access_rules import LOOK_NS, AccessRules, DenialLog
from p2pmsg.security.trust import KnownPeers
from transports.curve import key_text

ANN, BOB, EVE = key_text(b"a" * 32), key_text(b"b" * 32), key_text(b"e" * 32)
TEXT = f'[peers]\nann = "{ANN}"\n[[rule]]\nwho = ["ann", "bob"]\nsubscribe = ["trades"]\n'


class Place:
    """An access file, a file of known peers, and a clock."""

    def __init__(self, folder):
        self.path, self.now_ns = folder / "access.toml", 0
        self.known = KnownPeers(folder / "known_peers")
        self.known.add("bob", BOB)
        self.changes = 0

    def write(self, text):
        self.changes += 1
        self.path.write_text(text)
        os.utime(self.path, (self.changes, self.changes))

    def later(self):
        self.now_ns += LOOK_NS

    def access_rules(self, *, has_access=True):
        made = AccessRules(self.known, self.path if has_access else None, clock=lambda: self.now_ns)
        assert not made.refresh()
        return made


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    place.write(TEXT)
    return place


@pytest.fixture
def access_rules(place):
    return place.access_rules()


def allowed(access_rules, topic="trades", verb="subscribe"):
    return {user for user in (ANN, BOB, EVE, "") if access_rules.may(user, verb, topic)}


def test_users_have_the_rights_of_their_names(access_rules):
    assert allowed(access_rules) == {ANN, BOB}
    assert access_rules.covers(ANN, "subscribe", b"trades\0")
    assert not access_rules.covers(EVE, "subscribe", b"trades\0")
    assert access_rules.has_any(ANN, "subscribe")
    assert not access_rules.has_any(ANN, "publish")
    assert access_rules.why(EVE, "subscribe", "trades") == "the key has no name"
    assert access_rules.why(ANN, "admin", "trades") == "no rule gives it"
    assert (access_rules.who(BOB), access_rules.who(EVE), access_rules.who("")) == (
        "bob",
        EVE,
        "a peer without a key",
    )


def test_a_changed_file_is_read_again_but_looked_at_once_a_second(place, access_rules):
    version = access_rules.version
    place.write(TEXT.replace("trades", "quotes"))
    assert not access_rules.refresh()
    assert allowed(access_rules) == {ANN, BOB}

    place.later()
    assert access_rules.refresh()
    assert allowed(access_rules) == set()
    assert allowed(access_rules, "quotes") == {ANN, BOB}
    assert access_rules.version > version
    version = access_rules.version
    place.later()
    assert not access_rules.refresh()
    assert access_rules.version == version


def test_a_change_within_one_time_stamp_is_seen(place, access_rules):
    place.path.write_text(TEXT.replace("trades", "quotes"))
    place.later()
    assert access_rules.refresh()
    stamp = os.stat(place.path).st_mtime_ns

    place.path.write_text(TEXT.replace("trades", "orders"))
    os.utime(place.path, ns=(stamp, stamp))
    place.later()
    assert access_rules.refresh()
    assert allowed(access_rules, "orders") == {ANN, BOB}


def test_what_is_wrong_is_logged_once_and_the_rules_stay(place, access_rules, caplog):
    def logged():
        for _ in range(3):
            place.later()
            assert not access_rules.refresh()
        assert allowed(access_rules) == {ANN, BOB}
        return len(caplog.messages)

    place.path.write_text(TEXT + "read = ['x']\n")
    assert logged() == 1
    assert "access.toml': rule 1, read" in caplog.text
    assert caplog.text.endswith("what was read before stays\n")
    place.path.unlink()
    assert logged() == 2
    assert "No such file" in caplog.text
    place.write(TEXT)
    assert logged() == 2
    place.path.unlink()
    assert logged() == 3


def become_pipe(path):
    path.unlink()
    os.mkfifo(path)


def become_folder(path):
    path.unlink()
    path.mkdir()


def become_device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("become", [become_pipe, become_folder, become_device])
def test_what_is_no_file_any_more_is_not_waited_for_and_the_rules_stay(become, place, access_rules):
    become(place.path)
    place.later()
    assert not access_rules.refresh()
    assert access_rules.may(ANN, "subscribe", "trades")
    with pytest.raises((ConfigError, IsADirectoryError), match=r"must be a file|Is a directory"):
        place.access_rules()


def test_a_file_that_others_can_write_is_refused_and_read_once_they_cannot(
    place, access_rules, caplog
):
    place.write(TEXT.replace("trades", "quotes"))
    place.path.chmod(0o666)
    place.later()
    assert not access_rules.refresh()
    assert allowed(access_rules) == {ANN, BOB}
    with pytest.raises(ConfigError, match=r"access must be a file that .*chmod o-w.*mode 0666"):
        place.access_rules()
    place.path.chmod(0o664)
    place.later()
    assert access_rules.refresh()
    assert allowed(access_rules, "quotes") == {ANN, BOB}


def test_a_name_that_the_known_peers_give_or_take_counts_soon(place, access_rules):
    place.known.add("bob", EVE, replace=True)
    place.later()
    assert access_rules.refresh()
    assert allowed(access_rules) == {ANN, EVE}


@pytest.mark.parametrize("has_access", [True, False])
def test_a_revoked_peer_has_no_rights_until_it_has_another_key(place, has_access):
    place.known.add("ann", ANN)
    access_rules = place.access_rules(has_access=has_access)
    assert access_rules.admits(ANN)
    assert not access_rules.admits(EVE)
    assert access_rules.why_refused(EVE) == "not among the known peers"
    version = access_rules.version
    assert access_rules.revoke("ann") == [ANN]
    assert access_rules.revoke(EVE) == [EVE]
    assert access_rules.version > version
    for _ in range(2):
        assert not access_rules.may(ANN, "subscribe", "trades")
        assert not access_rules.covers(ANN, "subscribe", b"trades\0")
        assert not access_rules.has_any(ANN, "subscribe")
        assert not access_rules.is_known(ANN)
        assert not access_rules.admits(ANN)
        assert (
            access_rules.why_refused(ANN)
            == access_rules.why(ANN, "pull", "q")
            == "the key was revoked"
        )
        assert access_rules.may(BOB, "subscribe", "trades")
        place.write(TEXT + "publish = ['x']\n")
        place.later()
        access_rules.refresh()

    newer = key_text(b"n" * 32)
    place.write(TEXT.replace(ANN, newer))
    place.known.add("ann", newer, replace=True)
    assert access_rules.admits(newer)
    assert access_rules.may(newer, "subscribe", "trades")
    assert not access_rules.admits(ANN)
    with pytest.raises(ConfigError, match="who must be the name of a peer that is known, or its"):
        access_rules.revoke("carol")


@pytest.mark.parametrize("has_access", [True, False])
def test_who_is_known_no_more_is_ended_until_it_is_known_again(place, has_access):
    access_rules = place.access_rules(has_access=has_access)
    assert access_rules.admits(BOB)
    place.known.remove("bob")
    assert not access_rules.admits(BOB)
    assert access_rules.revoked == {BOB}
    assert not access_rules.may(BOB, "subscribe", "trades")
    assert access_rules.why(BOB, "subscribe", "trades") == "the key is known no more"
    place.known.add("bob", BOB)
    place.later()
    assert access_rules.refresh()
    assert access_rules.revoked == set()
    assert access_rules.may(BOB, "subscribe", "trades")


def test_what_is_remembered_is_bounded(access_rules):
    for number in range(70_000):
        access_rules.may(str(number), "subscribe", "trades")
    assert len(access_rules._decisions) <= 65_536


def test_denials_are_counted_and_logged_rarely(access_rules, caplog):
    log = DenialLog("here", access_rules)
    for number in [*range(100), *range(100)]:
        assert log.note(ANN, "subscribe", str(number), now_ns=0) == "no rule gives it"
    assert log.count == 200
    assert len(caplog.messages) == 20
    log.note(ANN, "subscribe", "0", now_ns=60 * 10**9)
    assert caplog.messages[20:] == [
        "here: 160 more requests were denied",
        "here: denied: 'ann' subscribe '0': no rule gives it",
    ]
