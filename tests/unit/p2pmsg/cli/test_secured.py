"""The options --security, --trust and --access: what they, the environment and the file say."""

import pytest

from p2pmsg.cli.command import UsageError
from p2pmsg.cli.secured import security_of
from p2pmsg.cli.settings import parse
from p2pmsg.cli.table import COMMANDS, load, split
from p2pmsg.security import new_keys, write_key_file
from tests.unit.p2pmsg.cli.test_commands import run
from transports.curve import fingerprint, key_text

TCP = "tcp://127.0.0.1:5556"
WORDS = {
    "pub": ["pub", TCP, "t"],
    "sub": ["sub", TCP],
    "relay": ["relay", "--from", TCP, "--listen", TCP],
    "request": ["request", TCP, "t"],
    "push": ["push", TCP],
    "pull": ["pull", TCP],
    "respond": ["respond", TCP, "t", "--echo"],
    "bridge": ["bridge", "--from", "zmq+sub://127.0.0.1:5557", "--to", TCP],
    "run": ["run", "json:tool"],
    "dead-letters": ["dead-letters", "ls", TCP],
    "serve": ["serve", TCP, "--listen", "127.0.0.1:0"],
    "hook out": ["hook", "out", TCP, "http://a.example/", "--state", "state"],
    "hook in": ["hook", "in", "--publish", TCP, "--secret", "s", "--listen", "127.0.0.1:0"],
    "statsd": ["statsd", "--publish", TCP, "--listen", "udp://127.0.0.1:0"],
    "log replay": ["log", "replay", ".", TCP],
}
OPEN = {
    "demo", "listen", "hook dead-letters", "log ls", "log verify", "log dump", "log repair",
    "log truncate", "key new", "key show", "trust add", "trust ls", "trust remove", "access check",
    "completion",
}  # fmt: skip
"""Commands without the options: they read and write files alone, or have processes of their own."""


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """Make key files `a` and `b` in a folder, which is the current one; return the pairs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    made = {name: new_keys() for name in "ab"}
    for name, pair in made.items():
        write_key_file(tmp_path / name, pair)
    return made


def made_of(*words):
    name, given = split(WORDS[words[0]])
    return security_of(parse(load(name), [*given, *words[1:]]))


def test_every_command_has_the_options_or_a_reason_to_have_none():
    options = {"--security", "--trust", "--access"}
    having = {
        name for name in COMMANDS if options <= {each.name for each in load(name).all_options()}
    }
    assert having == WORDS.keys()
    assert COMMANDS.keys() - having == OPEN


@pytest.mark.parametrize("name", WORDS)
def test_a_peer_is_open_or_the_option_goes_before_the_environment(keys, monkeypatch, name):
    assert made_of(name) is None
    monkeypatch.setenv("P2PMSG_SECURITY_KEY", "a")
    monkeypatch.setenv("P2PMSG_SECURITY_TRUST", "known")
    security = made_of(name)
    assert security.fingerprint == fingerprint(keys["a"].public)
    assert security.known.path.name == "known"
    security = made_of(name, "--security", "b")
    assert security.fingerprint == fingerprint(keys["b"].public)
    assert security.known.path.name == "known"
    assert made_of(name, "--trust", "others").known.path.name == "others"


def test_the_file_and_the_command_s_own_variables(keys, tmp_path, monkeypatch):
    (tmp_path / "p2pmsg.toml").write_text('[sub]\nsecurity = "a"\ntrust = "known"\n')
    assert made_of("sub").fingerprint == fingerprint(keys["a"].public)
    assert made_of("sub").known.path.name == "known"
    assert made_of("pub") is None
    monkeypatch.setenv("P2PMSG_SUB_SECURITY", "b")
    assert made_of("sub").fingerprint == fingerprint(keys["b"].public)


def test_a_wrong_name_in_the_environment_does_not_leave_a_peer_open(keys, monkeypatch):
    monkeypatch.setenv("P2PMSG_SECURITY_KEYS", "a")
    with pytest.raises(UsageError, match="P2PMSG_SECURITY_KEYS: there is no such variable: P2PMSG"):
        made_of("pub")


@pytest.mark.parametrize("name", WORDS)
def test_files_that_cannot_be_used_are_wrong_arguments(keys, tmp_path, capsys, name):
    words, secret = WORDS[name], key_text(keys["a"].secret)
    (tmp_path / "a").chmod(0o640)
    for given, expected in (
        (["--security", "a"], "mode 0640"),
        (["--security", "none"], ": cannot use 'none': No such file or directory; --security"),
        (["--trust", "known"], "/.config/p2pmsg/id': No such file or directory; --security, --tr"),
        (["--security", "b", "--trust", "."], ": cannot use '.': Is a directory; --security"),
        (["--security"], "expected one argument"),
    ):  # fmt: skip
        status, text = run(capsys, *words, *given)
        assert (status, expected in text) == (2, True), text
        assert text.count("\n") == 1
        assert secret not in text


def test_no_command_says_a_secret(keys, tmp_path, capsys, monkeypatch):
    """Not either where a key file is given as another one, or is broken."""
    secret = key_text(keys["a"].secret)
    (tmp_path / "broken").write_text((tmp_path / "a").read_text().replace(secret, secret[:-1]))
    (tmp_path / "broken").chmod(0o600)
    monkeypatch.setenv("P2PMSG_SECURITY_KEY", str(tmp_path / "a"))
    for name in COMMANDS:
        status, text = run(capsys, *name.split(), "--help")
        assert (status, secret in text) == (0, False), name
    for words in (
        *([*words, "--security", "broken"] for words in WORDS.values()),
        *([*words, "--trust", "a"] for words in WORDS.values()),
        *([*words, "--access", "a"] for words in WORDS.values()),
        ["key", "new", "--key", "a"], ["key", "show", "--key", "a"],
        ["key", "show", "--key", "broken"], ["trust", "ls", "--trust", "a"],
        ["trust", "add", "x", key_text(keys["b"].public), "--trust", "a"],
        ["access", "check", "a", "x", "subscribe", "t"],
    ):  # fmt: skip
        status, text = run(capsys, *words)
        assert status == 2 or words[:2] == ["key", "show"], text
        assert secret not in text, words
        assert secret[:-1] not in text, words
