"""`p2pmsg key` and `p2pmsg trust`."""

import stat

import pytest

from p2pmsg.cli import main
from p2pmsg.security import read_key_file
from transports.curve import fingerprint, key_text


def run(capsys, *words):
    """Return the exit status of a command, and all that it printed."""
    try:
        status = main([*map(str, words)])
    except SystemExit as error:
        status = error.code
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_a_key_is_made_once_shown_and_trusted(capsys, tmp_path):
    path, known = tmp_path / "id", tmp_path / "known"
    assert run(capsys, "key", "new", "--key", path)[0] == 0
    keys = read_key_file(path)
    public, secret = key_text(keys.public), key_text(keys.secret)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    shown = run(capsys, "key", "show", "--key", path)[1]
    assert shown.split() == [public, "fingerprint", fingerprint(keys.public)]
    status, text = run(capsys, "key", "new", "--key", path)
    assert status == 2
    assert secret not in text + shown
    assert run(capsys, "trust", "add", "a", public, "tcp://h:1", "--trust", known)[0] == 0
    assert run(capsys, "trust", "ls", "--trust", known) == (0, f"a {public} tcp://h:1\n")
    other = tmp_path / "other"
    run(capsys, "key", "new", "--key", other)
    new = read_key_file(other).public
    status, text = run(capsys, "trust", "add", "a", key_text(new), "--trust", known)
    assert status == 1
    assert fingerprint(new) in text
    assert fingerprint(keys.public) in text
    assert run(capsys, "trust", "add", "a", key_text(new), "--replace", "--trust", known)[0] == 0
    assert run(capsys, "trust", "remove", "a", "--trust", known)[0] == 0
    assert run(capsys, "trust", "ls", "--trust", known) == (0, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["key", "show", "--key", "none"], "'none': No such file or directory"),
        (["key", "new", "--key", "file/id"], "': Not a directory"),
        (["trust", "ls", "--trust", "."], "'.': Is a directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    status, text = run(capsys, *words)
    assert status == 1
    assert text.startswith(f"p2pmsg {words[0]} {words[1]}: '")
    assert text.endswith(f"{said}\n")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["bars-1", "subscribe", "quotes.us"], 0, "rule 1 gives 'quotes*'"),
        (["bars-1", "subscribe", "*"], 1, "'bars-1' subscribe '*': denied: no rule gives it"),
        (["eve", "subscribe", "trades"], 1, "no rule gives it"),
    ],
)
def test_access_check_says_which_rule_decides(tmp_path, words, status, said, capsys):
    rule = '[[rule]]\nwho = ["bars-*"]\nsubscribe = ["trades", "quotes*"]\n'
    (tmp_path / "access.toml").write_text(rule)
    found, text = run(capsys, "access", "check", tmp_path / "access.toml", *words)
    assert found == status
    assert said in text
    assert "is not in [peers] of this file" in text
    (tmp_path / "access.toml").write_text(f"{rule}read = ['x']\n")
    status, text = run(capsys, "access", "check", tmp_path / "access.toml", *words)
    assert status == 2
    assert "rule 1, read" in text
