"""Access files: what is read, what is refused by name, and what rules together say."""

import base64

import pytest

from p2pmsg.errors import ConfigError
from p2pmsg.security.access import load_access, parse_access

KEY = base64.urlsafe_b64encode(bytes(range(32))).rstrip(b"=").decode()
TEXT = f"""
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
def access():
    return parse_access(TEXT)


def test_a_file_has_peers_and_rules(access):
    assert access.peers == {"bars-1": bytes(range(32))}
    assert [(rule.number, rule.deny) for rule in access.rules] == [
        (1, False), (2, False), (3, True),
    ]  # fmt: skip
    assert access.rules[0].replay_max_ns == HOUR_NS


CASES = {
    "the prefix itself": ("bars-2", "subscribe", "quotes*", False, 3, None),
    "a prefix within one that is denied": ("bars-2", "subscribe", "quotes.internal.a*", False, 3,
                                           None),
    "a prefix with one denied topic": ("bars-2", "subscribe", "quotes.eu*", False, 3, None),
    "the longest history counts": ("bars-1", "subscribe", "quotes.eu.b", True, 2, None),
    "another verb": ("bars-1", "publish", "bars.1m", True, 2, None),
    "a verb that nobody has": ("bars-1", "admin", "bars", False, None, None),
    "no name": ("", "subscribe", "trades", False, None, None),
    "no topic": ("bars-1", "publish", "", False, None, None),
    "a topic that is too long": ("bars-1", "publish", "bars" * 64, False, None, None),
    "a zero byte": ("bars-1", "publish", "bars\0", False, None, None),
}  # fmt: skip


@pytest.mark.parametrize(("who", "verb", "topic", "allowed", "rule", "history"), CASES.values(),
                         ids=CASES)  # fmt: skip
def test_rules_decide(access, who, verb, topic, allowed, rule, history):
    decision = access.decide(who, verb, topic)

    assert bool(decision) is decision.allowed is allowed
    assert (decision.rule and decision.rule.number) == rule
    assert decision.replay_max_ns == history


def test_a_decision_says_the_rule(access):
    assert str(access.decide("bars-2", "subscribe", "quotes.us")) == (
        "allowed: rule 1 gives 'quotes*', with 3,600 s of its history"
    )
    assert str(access.decide("bars-2", "subscribe", "quotes*")) == (
        "denied: rule 3 denies 'quotes.eu.x'"
    )
    assert str(access.decide("bars-2", "admin", "*")).endswith("no rule gives it")
    assert str(access.decide("bars-1", "publish", "bars")).endswith("with all its history")


def test_an_unknown_verb_is_refused(access):
    with pytest.raises(ConfigError, match=r"verb must be one of subscribe, .*, not 'read'"):
        access.decide("bars-1", "read", "trades")
    with pytest.raises(ConfigError, match="verb must be one of"):
        access.covers("bars-1", "read", b"trades")


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
    access = parse_access(f"{RULE}subscribe = ['x']\nreplay_max = {text}")

    assert access.decide("a", "subscribe", "x").replay_max_ns == seconds * 10**9


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
