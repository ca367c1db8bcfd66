"""The bar that shows how far a command is."""

import io
import sys

import pytest

from p2pmsg.cli import progress
from p2pmsg.cli.progress import drawn
from tests.integration.peers import eventually


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch):
    """Not in a fixture: after it, pytest sets standard error again."""
    monkeypatch.setattr(progress, "FIRST_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def test_a_bar_follows_the_counts_and_is_removed(monkeypatch):
    shown = terminal(monkeypatch)
    counts = [3, 10]
    with drawn("jobs", lambda: tuple(counts), quiet=False):
        assert eventually(lambda: "3/10" in shown.getvalue())
        counts[0] = 7
        assert eventually(lambda: "7/10" in shown.getvalue())
        sys.stderr.write("said meanwhile\n")
    assert "said meanwhile" in shown.getvalue()
    assert shown.getvalue().endswith("\x1b[2K")


def test_of_bytes_large_units_are_shown(monkeypatch):
    shown = terminal(monkeypatch)
    with drawn("bytes", lambda: (5 * 10**8, 10**9), quiet=False):
        assert eventually(lambda: "0.5/1.0 GB" in shown.getvalue())


@pytest.mark.parametrize("how", ["no terminal", "quiet", "a dumb terminal", "all is done"])
def test_there_is_no_bar(how, monkeypatch):
    shown = terminal(monkeypatch)
    if how == "no terminal":
        monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
    elif how == "a dumb terminal":
        monkeypatch.setenv("TERM", "dumb")
    asked = []
    with drawn("jobs", lambda: asked.append(1) or (10, 10), quiet=how == "quiet"):
        if how == "all is done":
            assert eventually(lambda: len(asked) > 2)
    assert "10/10" not in shown.getvalue()
