"""`p2pmsg access check`: what it prints, and its exit status."""

import pytest

from p2pmsg.cli import main

TEXT = """
[[rule]]
who = ["bars-*"]
subscribe = ["trades", "quotes*"]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "access.toml"
    path.write_text(TEXT)
    return str(path)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["bars-1", "subscribe", "quotes.us"], 0, "rule 1 gives 'quotes*'"),
        (["bars-1", "subscribe", "quotes*"], 0, "allowed: 'bars-1' subscribe 'quotes*'"),
        (["bars-1", "subscribe", "*"], 1, "denied: 'bars-1' subscribe '*': no rule gives all"),
        (["eve", "subscribe", "trades"], 1, "no rule gives it"),
    ],
)
def test_it_says_which_rule_decides(file, words, status, said, capsys):
    assert main(["access", "check", file, *words]) == status

    out, err = capsys.readouterr()
    assert said in out
    assert "is not in [peers] of this file" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bars-1", "read", "trades"], "must be one of subscribe, publish"),
        (["bars-1", "subscribe", "a*b"], "must be a topic, or a prefix and one *, not 'a*b'"),
        (["bars-1", "subscribe"], "TOPIC"),
    ],
)
def test_wrong_arguments(file, words, said, capsys):
    assert main(["access", "check", file, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_none(tmp_path, file, capsys):
    question = ["bars-1", "subscribe", "trades"]
    assert main(["access", "check", str(tmp_path / "none"), *question]) == 2
    assert "No such file" in capsys.readouterr().err

    (tmp_path / "access.toml").write_text(TEXT + "read = ['x']\n")
    assert main(["access", "check", file, *question]) == 2
    assert "rule 1, read" in capsys.readouterr().err
