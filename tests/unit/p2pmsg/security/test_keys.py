"""Key files and known peers, and what `Security` makes of them."""

import logging
import os
import stat
import threading

import pytest

from p2pmsg import Security
from p2pmsg.errors import AuthenticationError, ConfigError
from p2pmsg.security import new_keys, read_key_file, write_key_file
from p2pmsg.security.trust import KnownPeers
from p2pmsg.security.use import warn_if_open
from transports import parse_endpoint
from transports.curve import CurveKeys, fingerprint, key_text


def test_a_key_file_is_for_its_owner_only(tmp_path):
    path = tmp_path / "id"
    keys = new_keys()
    before = os.umask(0)
    try:
        write_key_file(path, keys)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key_file(path) == keys
    assert key_text(keys.public) not in path.read_text()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666, 0o777])
def test_one_that_others_can_read_is_refused(tmp_path, mode):
    path = tmp_path / "id"
    write_key_file(path, new_keys())
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"chmod 600.*{path}, mode {mode:04o}") as caught:
        read_key_file(path)
    assert caught.value.field == "key"


def test_a_key_is_never_overwritten_nor_is_a_link_followed(tmp_path):
    path, link = tmp_path / "id", tmp_path / "link"
    keys = new_keys()
    write_key_file(path, keys)
    link.symlink_to(tmp_path / "elsewhere")
    for place in (path, link):
        with pytest.raises(ConfigError, match="a path where nothing is yet"):
            write_key_file(place, new_keys())
    assert read_key_file(path) == keys
    assert not (tmp_path / "elsewhere").exists()


SECRET = key_text(CurveKeys.of_secret(bytes(range(32))).secret)


@pytest.mark.parametrize(
    "text",
    [
        "", "secret-key", f"{SECRET}", f"secret-key {SECRET[:-1]}", f"secret-key {SECRET} more",
        f"secret-key {SECRET}\nsecret-key {SECRET}", f"public-key {SECRET}", "# only a comment",
        f"secret-key {SECRET}=", "\0" * 43, f"secret-key {SECRET} ".rjust(5000),
    ],
    ids=list("abcdefghijk"),  # not by the key, which differs from process to process
)  # fmt: skip
def test_what_is_no_key_file_is_refused_and_never_shown(tmp_path, text):
    path = tmp_path / "id"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        read_key_file(path)
    error = caught.value
    while error is not None:
        assert SECRET[:20] not in f"{error} {error!r} {error.args}"
        error = error.__cause__
    assert str(path) in str(caught.value)


def test_a_pipe_and_a_folder_are_no_key_files(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigError, match="key must be a file, not"):
            read_key_file(path)
    with pytest.raises(FileNotFoundError):
        read_key_file(tmp_path / "missing")


def test_the_public_text_of_a_new_key_is_no_option():
    assert not any(key_text(new_keys().public).startswith("-") for _ in range(300))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_one_that_another_user_owns_is_refused(tmp_path):
    path = tmp_path / "id"
    write_key_file(path, new_keys())
    os.chown(path, 12345, -1)
    with pytest.raises(ConfigError, match=rf"\(chown\).*{path}, owner 12345"):
        read_key_file(path)
    os.chown(path, 0, -1)
    assert read_key_file(path)


# The same ones in each process that collects the tests: they stand in the names of tests.
A, B, C = (CurveKeys.of_secret(bytes([at]) * 32).public for at in (1, 2, 3))


def file_of(tmp_path, *lines):
    path = tmp_path / "known_peers"
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o644)
    return path


def at(text):
    return parse_endpoint(text)


def test_lines_comments_and_endpoints(tmp_path):
    known = KnownPeers(file_of(
        tmp_path,
        "# who is who", "",
        f"  prices\t{key_text(A)}  tcp://Prices:5556 tcp://prices:* ipc:///run/a  # the feed",
        f"bars-1 {key_text(B)} tcp://prices:7000",
    ))  # fmt: skip
    assert [peer.name for peer in known.peers()] == ["prices", "bars-1"]
    assert known.names() == {key_text(A): "prices", key_text(B): "bars-1"}
    assert known.of_endpoint(at("tcp://prices:5556")).name == "prices"
    assert known.of_endpoint(at("tcp://prices:1")).name == "prices"  # every port
    assert known.of_endpoint(at("tcp://prices:7000")).name == "bars-1"  # this one goes before it
    assert known.of_endpoint(at("ipc:///run/a")).name == "prices"
    assert known.of_endpoint(at(f"tcp://prices:5556?key={key_text(C)}")).name == "prices"
    assert known.of_endpoint(at("tcp://other:5556")) is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("prices", "key must be a public key"),
        (f"-x {key_text(B)}", "name must be 1 to 64"),
        (f"{'x' * 65} {key_text(B)}", "name must be 1 to 64"),
        (f"x {key_text(B)[:-1]}", "key must be a public key"),
        (f"x {key_text(B)} prices:5556", "missing scheme"),
        (f"x {key_text(B)} tcp://*:5556", "endpoint must be tcp://HOST:PORT"),
        (f"x {key_text(B)} inproc://x", "endpoint must be tcp://HOST:PORT"),
        (f"x {key_text(B)} tcp://h:1?key={key_text(B)}", "without options"),
        (f"a {key_text(B)}", "name must be given once, not 'a'"),
        (f"x {key_text(A)}", "key must be another one than that of a"),
        (f"x {key_text(B)} tcp://h:1", "endpoint must be of one peer, and a has it"),
        ("ä \udcff", "a file of UTF-8"),
    ],
    ids=list("abcdefghijkl"),  # not by the keys, which differ from process to process
)
def test_a_malformed_line_is_named(tmp_path, line, text):
    path = tmp_path / "known_peers"
    good = f"# first\na {key_text(A)} tcp://h:1\n"
    path.write_bytes(good.encode() + line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(ConfigError, match=text) as caught:
        KnownPeers(path)
    if "UTF-8" not in text:
        assert f"{path}, line 3: " in str(caught.value)


def test_a_file_that_is_not_there_is_empty_until_it_is(tmp_path):
    known = KnownPeers(tmp_path / "known_peers")
    assert known.peers() == []
    assert known.add("a", key_text(A)).public == A
    assert [str(peer) for peer in known.peers()] == [f"a {key_text(A)}"]


def test_a_changed_key_says_both_fingerprints(tmp_path):
    path = file_of(tmp_path, "# mine", f"a {key_text(A)} tcp://h:1 # feed", f"b {key_text(B)}")
    known = KnownPeers(path)
    with pytest.raises(AuthenticationError) as caught:
        known.add("a", key_text(C))
    assert f"{fingerprint(A)} is known, {fingerprint(C)} is given" in caught.value.reason
    assert known.names()[key_text(A)] == "a"
    with pytest.raises(ConfigError, match="another one than that of b"):
        known.add("a", key_text(B), replace=True)
    known.add("a", key_text(A), ["tcp://h:2"])
    known.add("a", key_text(C), replace=True)
    assert path.read_text().splitlines() == [
        "# mine", f"a {key_text(C)} tcp://h:1 tcp://h:2", f"b {key_text(B)}",
    ]  # fmt: skip
    assert known.remove("a").public == C
    with pytest.raises(ConfigError, match="name must be one that"):
        known.remove("a")
    assert path.read_text() == f"# mine\nb {key_text(B)}\n"


def test_many_add_at_once(tmp_path):
    path = tmp_path / "known_peers"
    start = threading.Barrier(8)

    def add(number):
        start.wait()
        for each in range(5):
            KnownPeers(path).add(f"p{number}.{each}", key_text(CurveKeys.new().public))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(KnownPeers(path).peers()) == 40


OWN, PRICES, LATE = new_keys(), new_keys(), new_keys()


@pytest.fixture
def security(tmp_path):
    write_key_file(tmp_path / "id", OWN)
    made = Security(tmp_path / "id", tmp_path / "known_peers")
    made.known.add("prices", key_text(PRICES.public), ["tcp://prices:5556"])
    return made


def test_the_pinned_key_is_that_of_the_endpoint_or_of_the_file(security):
    assert security.server_key("tcp://prices:5556") == PRICES.public
    assert security.server_key(f"tcp://prices:5556?key={key_text(PRICES.public)}") == PRICES.public
    assert security.server_key(f"tcp://new:1?key={key_text(LATE.public)}") == LATE.public
    with pytest.raises(AuthenticationError) as caught:
        security.server_key(f"tcp://prices:5556?key={key_text(LATE.public)}")
    change = f"{fingerprint(PRICES.public)} is known, {fingerprint(LATE.public)} is given"
    assert change in caught.value.reason
    assert "prices" in str(caught.value)
    with pytest.raises(AuthenticationError, match=r"p2pmsg trust add NAME KEY tcp://new:1"):
        security.server_key("tcp://new:1")
    with pytest.raises(ConfigError):
        security.server_key("nonsense")


def test_who_is_known_is_admitted_by_the_text_of_its_key(security):
    user = key_text(PRICES.public)
    assert security.admits(PRICES.public) == user
    assert security.name_of(user) == "prices"
    assert security.admits(LATE.public) is None
    assert security.name_of(key_text(LATE.public)) is None
    assert security.name_of("nonsense") is None
    assert security.admits(OWN.public) == key_text(OWN.public)
    security.known.add("late", key_text(LATE.public))
    assert security.admits(LATE.public) == key_text(LATE.public)
    security.known.remove("late")
    assert security.admits(LATE.public) is None


def test_the_access_file_names_peers_too_and_revokes(security, tmp_path):
    access = tmp_path / "access.toml"
    access.write_text(f'[peers]\nbars = "{key_text(LATE.public)}"\n')
    made = Security(OWN, security.known.path, access)
    user = key_text(LATE.public)
    assert (made.admits(LATE.public), made.name_of(user)) == (user, "bars")
    assert made.name_of(key_text(PRICES.public)) == "prices"
    made.access_rules.revoke("bars")
    assert made.admits(LATE.public) is None
    assert str(access) in repr(made)


def test_from_the_environment(tmp_path, monkeypatch, security):
    for name in ("KEY", "TRUST", "ACCESS"):
        monkeypatch.delenv(f"P2PMSG_SECURITY_{name}", raising=False)
    assert Security.from_environment() is None
    monkeypatch.setenv("P2PMSG_SECURITY_KEY", str(tmp_path / "id"))
    monkeypatch.setenv("P2PMSG_SECURITY_TRUST", str(tmp_path / "known_peers"))
    made = Security.from_environment()
    assert made.keys == OWN
    assert made.server_key("tcp://prices:5556") == PRICES.public


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
