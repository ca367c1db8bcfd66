"""A path whose folder is not there was mistyped: it is refused by name, and nothing is made."""

import os

import pytest

import p2pmsg
from p2pmsg.cli import main
from p2pmsg.webhooks import Endpoint, Sender
from p2pmsg.webhooks.intake import receive

NOBODY = "tcp://127.0.0.1:1"
HERE = "tcp://127.0.0.1:0"
SECRET = "whsec_" + "A" * 40


def send():
    endpoint = Endpoint("http://127.0.0.1:1/", secret=SECRET, allow=["127.0.0.0/8"])
    with Sender(NOBODY, state="typo/state", endpoints=[endpoint]):
        pass


def take():
    with p2pmsg.Publisher(HERE) as publisher:
        receive(publisher, secrets=[SECRET], topic="t", seen="typo/seen")


PEERS = {
    "log of a publisher": lambda: p2pmsg.Publisher(HERE, log=p2pmsg.LogConfig("typo/log")),
    "log of a relay": lambda: p2pmsg.Relay(NOBODY, HERE, log=p2pmsg.LogConfig("typo/log")),
    "log of a pusher": lambda: p2pmsg.Pusher(HERE, log="typo/log"),
    "cursor": lambda: p2pmsg.Subscriber(NOBODY, cursor="typo/cursor"),
    "state of a sender": send,
    "seen of an intake": take,
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("make", PEERS.values(), ids=PEERS)
def test_a_peer_names_the_folder_that_is_missing(make):
    with pytest.raises(p2pmsg.P2PError, match=r"there is no directory '.*typo'"):
        make()
    assert os.listdir() == []


COMMANDS = {
    "pub": ["pub", HERE, "t", "--log", "typo/log"],
    "sub": ["sub", NOBODY, "--cursor", "typo/cursor"],
    "push": ["push", HERE, "--log", "typo/log"],
    "relay": ["relay", "--from", NOBODY, "--listen", HERE, "--log", "typo/log"],
    "bridge": ["bridge", "--from", "zmq+sub://127.0.0.1:1", "--to", HERE, "--log", "typo/log"],
    "serve": ["serve", "--publish", HERE, "--log", "typo/log", "--listen", "127.0.0.1:0"],
    "hook in": ["hook", "in", "--publish", HERE, "--secret", SECRET, "--log", "typo/log"],
    "hook out": ["hook", "out", NOBODY, "https://a.example", "--state", "typo/state"],
    "statsd": ["statsd", "--exact", NOBODY, "--state", "typo/state"],
    "demo": ["demo", "--log", "typo/log"],
    "key": ["key", "new", "--key", "typo/key"],
    "trust": ["trust", "add", "a", "A" * 43, "--trust", "typo/known"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_names_the_folder_that_is_missing(words, capsys):
    assert main(words) in (1, 2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "there is no directory" in said
    assert "typo'" in said
    assert os.listdir() == []


def test_the_default_folder_of_keys_is_made_in_a_new_home(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["key", "new"]) == 0
    public = capsys.readouterr().out.strip()
    assert main(["trust", "add", "me", public]) == 0
