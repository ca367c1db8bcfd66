"""Access files: what is read, refused and said, and what a changed or broken file does."""

import base64
import os

import pytest

from p2pmsg.errors import ConfigError
from p2pmsg.security.access import load_access, parse_access
from p2pmsg.security.access_rules import LOOK_NS, AccessRules, DenialLog
from p2pmsg.security.trust import KnownPeers
from transports.curve import key_text

KEY = base64.urlsafe_b64encode(bytes(range(32))).rstrip(b"=").decode()
FILE = f"""
[peers]
bars-1 = "{KEY}"

[[rule]]
who = ["bars-*"]
subscribe = ["trades", "quotes*"]
replay_max = "1h"

[[rule]]
who = ["bars-1", "archive"]
subscribe = ["quotes.eu*"]
publish = ["bars*"]

[[rule]]
who = ["*"]
deny = true
subscribe = ["quotes.internal*", "quotes.eu.x"]
"""
HOUR_NS = 3600 * 10**9


@pytest.fixture
def parsed():
    return parse_access(FILE)


def test_a_file_has_peers_and_rules(parsed):
    assert parsed.peers == {"bars-1": bytes(range(32))}
    assert [(rule.number, rule.deny) for rule in parsed.rules] == [
        (1, False), (2, False), (3, True),
    ]  # fmt: skip
    assert parsed.rules[0].replay_max_ns == HOUR_NS


CASES = {
    "no name": ("", "subscribe", "trades"),
    "no topic": ("bars-1", "publish", ""),
    "a topic that is too long": ("bars-1", "publish", "bars" * 64),
    "a zero byte": ("bars-1", "publish", "bars\0"),
    "a verb that nobody has": ("bars-1", "admin", "bars"),
}
"""What the other rules say: `property/test_access_model.py`."""


@pytest.mark.parametrize("asked", CASES.values(), ids=CASES)
def test_nobody_is_given_what_is_none(parsed, asked):
    assert not parsed.decide(*asked)


def test_a_decision_says_the_rule(parsed):
    assert str(parsed.decide("bars-2", "subscribe", "quotes.us")) == (
        "allowed: rule 1 gives 'quotes*', with 3,600 s of its history"
    )
    assert str(parsed.decide("bars-2", "subscribe", "quotes*")) == (
        "denied: rule 3 denies 'quotes.eu.x'"
    )
    assert str(parsed.decide("bars-2", "admin", "*")).endswith("no rule gives it")
    assert str(parsed.decide("bars-1", "publish", "bars")).endswith("with all its history")


def test_an_unknown_verb_is_refused(parsed):
    with pytest.raises(ConfigError, match=r"verb must be one of subscribe, .*, not 'read'"):
        parsed.decide("bars-1", "read", "trades")
    with pytest.raises(ConfigError, match="verb must be one of"):
        parsed.covers("bars-1", "read", b"trades")


RULE = '\n[[rule]]\nwho = ["a"]\n'
BROKEN = {
    "[peers]\na = = 1": ("TOML", "line 2"),
    "[[rules]]\nwho = ['a']": ("entry", r"must be \[peers\] or \[\[rule\]\], not 'rules'"),
    "rule = 3": ("rule", "tables"),
    "peers = 3": ("peers", "a table"),
    "[peers]\n'a b' = 'x'": ("name in [peers]", "not 'a b'"),
    "[peers]\na = 'x'": ("peers.a", "43 characters"),
    f"[peers]\na = '{KEY[:-1]}9'": ("peers.a", "43 characters"),
    f"[peers]\na = '{KEY}'\nb = '{KEY}'": ("peers.b", "another key than that of a"),
    "[[rule]]\nsubscribe = ['a']": ("rule 1, who", "must be given"),
    RULE: ("rule 1", "with a verb: subscribe"),
    RULE + "\nread = ['x']": ("rule 1, read: the name of an entry", "or a verb: sub"),
    RULE + "subscribe = 'x'": ("rule 1, subscribe", r"a list of strings.* not 'x'"),
    RULE + "subscribe = ['x', 3]": ("rule 1, subscribe", "strings, not 3"),
    RULE + "subscribe = ['x*y']": ("rule 1, subscribe", "prefix and one .* not 'x.y'"),
    RULE + "subscribe = ['']": ("rule 1, subscribe", "prefix and one"),
    RULE + f"subscribe = ['{'x' * 256}']": ("rule 1, subscribe", "1 to 255 bytes"),
    RULE + "admin = ['x']\ndeny = 1": ("rule 1, deny", "true or false, not 1"),
    RULE + "subscribe = ['x']" + RULE + "admin = ['x']\nreplay_max = '1h'": (
        "rule 2, replay_max", "in a rule that gives subscribe only"),
    RULE + "subscribe = ['x']\ndeny = true\nreplay_max = '1h'": (
        "rule 1, replay_max", "in a rule that gives subscribe only"),
    RULE + "subscribe = ['x']\nreplay_max = '1 fortnight'": (
        "rule 1, replay_max", "not '1 fortnight'"),
    RULE + "subscribe = ['x']\nreplay_max = -1": ("rule 1, replay_max", "not -1"),
    "[[rule]]\nwho = ['']\nsubscribe = ['x']": ("rule 1, who", "names, or prefixes"),
    "a = " + "[" * 5000: ("TOML", "less deep|well-formed"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BROKEN.items(), ids=range(len(BROKEN)))
def test_what_is_wrong_is_named(text, said):
    field, limit = said

    with pytest.raises(ConfigError, match=limit) as raised:
        parse_access(text)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("'90s'", 90), ("'30min'", 1800), ("'1.5h'", 5400), ("'7d'", 604_800), ("'2w'", 1_209_600),
     ("'0'", 0), ("12", 12), ("0.5", 0.5), ("'10 min'", 600)],
)  # fmt: skip
def test_how_long_a_history_may_be(text, seconds):
    parsed = parse_access(f"{RULE}subscribe = ['x']\nreplay_max = {text}")

    assert parsed.decide("a", "subscribe", "x").replay_max_ns == seconds * 10**9


DEEP = "a." * 2000 + "a = 1"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (f"x = {'9' * 5000}", "TOML"),
        (f"rule.{DEEP}", "rule"),
        (f"[[rule]]\nwho = ['a']\nsubscribe = ['t']\ndeny.{DEEP}", "rule 1, deny"),
        (f"[[rule]]\nwho = ['{'a' * 10**6}']\nsubscribe = ['t']", "rule 1, who"),
        (f"rule = {'[{a=' * 300}1{'}]' * 300}", "TOML"),
        ("\ufeff[peers]", "TOML"),
    ],
    ids=lambda text: text[:24],
)
def test_odd_files_are_refused_in_a_line(text, field):
    with pytest.raises(ConfigError) as refused:
        parse_access(text)
    assert refused.value.field == field
    assert len(str(refused.value)) < 1500


def test_an_error_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "access.toml"
    path.write_text(RULE + "subscribe = ['x*y']")
    with pytest.raises(ConfigError, match=r"must be a topic .* not 'x.y'") as raised:
        load_access(path)
    assert raised.value.field == f"access file {str(path)!r}: rule 1, subscribe"
    assert str(raised.value).count("must be") == 1

    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_access(path)
    path.write_bytes(b"#" * (4 * 2**20 + 1))
    with pytest.raises(ConfigError, match="access must be a file of at most 4,194,304 bytes"):
        load_access(path)
    with pytest.raises(FileNotFoundError):
        load_access(tmp_path / "none")


def test_what_may_be_a_secret_key_is_not_shown():
    secret = "s" * 42
    with pytest.raises(ConfigError, match=r"peers\.ann.*'42 characters'") as caught:
        parse_access(f'[peers]\nann = "{secret}"\n')
    assert secret not in f"{caught.value} {caught.value!r} {caught.value.value}"


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
