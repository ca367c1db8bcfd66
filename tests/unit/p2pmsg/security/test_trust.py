"""Known peers: the file's lines, its changes, and keys that have changed."""

import os
import threading

import pytest

from p2pmsg.errors import AuthenticationError, ConfigError
from p2pmsg.security.trust import KnownPeers
from transports import parse_endpoint
from transports.curve import CurveKeys, fingerprint, key_text

# The same ones in each process that collects the tests: they stand in the names of tests.
A, B, C = (CurveKeys.of_secret(bytes([at]) * 32).public for at in (1, 2, 3))


def file_of(tmp_path, *lines):
    path = tmp_path / "known_peers"
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o644)
    return path


def changed(path, *lines):
    """Replace the file, as an editor does."""
    new = path.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines))
    os.replace(new, path)


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
    assert known.of_key(A).name == "prices"
    assert known.of_key(C) is None
    assert known.of_name("bars-1").public == B
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
    assert known.of_name("a").public == A
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
