"""`Security`: which key a peer has to hold, who is admitted, and the warning without it."""

import logging

import pytest

from p2pmsg import Security
from p2pmsg.errors import AuthenticationError, ConfigError
from p2pmsg.security import new_keys, write_key_file
from p2pmsg.security.use import warn_if_open
from transports.curve import fingerprint, key_text

OWN, A, B = new_keys(), new_keys(), new_keys()


@pytest.fixture
def security(tmp_path):
    write_key_file(tmp_path / "id", OWN)
    made = Security(tmp_path / "id", tmp_path / "known_peers")
    made.known.add("prices", key_text(A.public), ["tcp://prices:5556"])
    return made


def test_the_pinned_key_is_that_of_the_endpoint_or_of_the_file(security):
    assert security.server_key("tcp://prices:5556") == A.public
    assert security.server_key(f"tcp://prices:5556?key={key_text(A.public)}") == A.public
    assert security.server_key(f"tcp://new:1?key={key_text(B.public)}") == B.public
    with pytest.raises(AuthenticationError) as caught:
        security.server_key(f"tcp://prices:5556?key={key_text(B.public)}")
    change = f"{fingerprint(A.public)} is known, {fingerprint(B.public)} is given"
    assert change in caught.value.reason
    assert "prices" in str(caught.value)
    with pytest.raises(AuthenticationError, match=r"p2pmsg trust add NAME KEY tcp://new:1"):
        security.server_key("tcp://new:1")
    with pytest.raises(ConfigError):
        security.server_key("nonsense")


def test_who_is_known_is_admitted_by_the_text_of_its_key(security):
    user = key_text(A.public)
    assert security.admits(A.public) == user
    assert security.name_of(user) == "prices"
    assert security.admits(B.public) is None
    assert security.name_of(key_text(B.public)) is None
    assert security.name_of("nonsense") is None
    assert security.admits(OWN.public) == key_text(OWN.public)
    security.known.add("late", key_text(B.public))
    assert security.admits(B.public) == key_text(B.public)
    security.known.remove("late")
    assert security.admits(B.public) is None


def test_the_access_file_names_peers_too_and_revokes(security, tmp_path):
    access = tmp_path / "access.toml"
    access.write_text(f'[peers]\nbars = "{key_text(B.public)}"\n')
    made = Security(OWN, security.known.path, access)
    user = key_text(B.public)
    assert (made.admits(B.public), made.name_of(user)) == (user, "bars")
    assert made.name_of(key_text(A.public)) == "prices"
    made.access_rules.revoke("bars")
    assert made.admits(B.public) is None
    assert str(access) in repr(made)


def test_from_the_environment(tmp_path, monkeypatch, security):
    for name in ("KEY", "TRUST", "ACCESS"):
        monkeypatch.delenv(f"P2PMSG_SECURITY_{name}", raising=False)
    assert Security.from_environment() is None
    monkeypatch.setenv("P2PMSG_SECURITY_KEY", str(tmp_path / "id"))
    monkeypatch.setenv("P2PMSG_SECURITY_TRUST", str(tmp_path / "known_peers"))
    made = Security.from_environment()
    assert made.keys == OWN
    assert made.server_key("tcp://prices:5556") == A.public


@pytest.mark.parametrize(
    ("place", "warns"),
    [
        ("tcp://*:5556", True), ("tcp://0.0.0.0:1", True), ("tcp://[::]:1", True),
        ("tcp://10.0.0.1:1", True), ("tcp://eth0:1", True), ("tcp://127.0.0.1:1", False),
        ("tcp://127.1.2.3:1", False), ("tcp://[::1]:1", False), ("tcp://localhost:1", False),
        ("ipc:///run/x", False), ("inproc://x", False), ("tcp://lo:1", False),
    ],
)  # fmt: skip
def test_a_public_address_without_security_is_warned_of_once(place, warns, caplog, security):
    with caplog.at_level(logging.WARNING, "p2pmsg"):
        warn_if_open(security, place)
        assert not caplog.records
        warn_if_open(None, place)
        warn_if_open(None, place)
    assert len(caplog.records) == warns
    assert not warns or "security=Security(…)" in caplog.text
