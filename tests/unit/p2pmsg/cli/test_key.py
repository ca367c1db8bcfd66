"""`p2pmsg key` and `p2pmsg trust`."""

import stat

import pytest

from p2pmsg.cli import main
from p2pmsg.security import read_key_file
from transports import fingerprint, key_text


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
    assert status == 2
    assert fingerprint(new) in text
    assert fingerprint(keys.public) in text
    assert run(capsys, "trust", "add", "a", key_text(new), "--replace", "--trust", known)[0] == 0
    assert run(capsys, "trust", "remove", "a", "--trust", known)[0] == 0
    assert run(capsys, "trust", "ls", "--trust", known) == (0, "")


def test_a_key_file_that_others_can_read_is_refused(capsys, tmp_path):
    path = tmp_path / "id"
    run(capsys, "key", "new", "--key", path)
    path.chmod(0o644)
    status, text = run(capsys, "key", "show", "--key", path)
    assert status == 2
    assert "mode 0644" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["key", "show", "--key", "none"], "--key: cannot read 'none': No such file or directory"),
        (["key", "new", "--key", "file/id"], "--key: cannot write 'file/id': Not a directory"),
        (["trust", "ls", "--trust", "."], "--trust: cannot read '.': Is a directory"),
        (["trust", "remove", "a", "--trust", "."], "--trust: cannot use '.': Is a directory"),
        (["trust", "add", "a", "A" * 43, "--trust", "."], "--trust: cannot use '.': Is a dir"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_option(
    capsys, tmp_path, monkeypatch, words, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    status, text = run(capsys, *words)
    assert status == 2
    assert text.startswith(f"p2pmsg {words[0]} {words[1]}: {said}")
    assert text.count("\n") == 1
