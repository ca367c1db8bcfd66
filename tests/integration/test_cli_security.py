"""`--security` of commands, run as a user does; and a client of others with keys."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from p2pmsg import Publisher
from tests.integration.commands import command, run, run_here
from tests.integration.peers import eventually
from transports.curve import key_text

ANY_PORT = "tcp://127.0.0.1:0"


def listening(made):
    """Return where a command has bound."""
    return eventually(lambda: re.findall("listening at (.*)", made.errors()))[0]


def check_silence(peers, *texts):
    """No secret key stands in what commands said."""
    for text in texts:
        assert not any(key_text(pair.secret) in text for pair in peers.keys.values())


def test_a_publisher_a_relay_and_a_subscriber_with_keys(tmp_path, peers):
    for name, *known in (("pub", "relay"), ("relay", "sub"), ("sub",)):
        peers.security(name, *known)
    pub_options = peers.options("pub")
    with command(tmp_path, "pub", ANY_PORT, "t", *pub_options) as pub:
        pub.write(b"one\ntwo\n")
        up = peers.pinned(listening(pub), "pub")
        relay_words = ["--from", up, "--listen", ANY_PORT, *peers.options("relay")]
        with command(tmp_path, "relay", *relay_words) as relay:
            place = peers.pinned(listening(relay), "relay")
            env = os.environ | {
                "P2PMSG_SECURITY_KEY": str(tmp_path / "sub"),
                "P2PMSG_SECURITY_TRUST": str(tmp_path / "none"),
            }
            sub = run("sub", place, "--start", "earliest", "--count", "2", env=env)
            assert (sub.returncode, sub.stdout) == (0, b"one\ntwo\n"), sub.stderr
            pub.process.stdin.close()
            assert pub.wait() == 0
            check_silence(peers, relay.said(), pub.said(), sub.stderr.decode())


def test_a_subscriber_that_is_refused_says_so_and_fails_in_the_end(tmp_path, peers):
    stranger = peers.security("sub")
    with Publisher(ANY_PORT, security=peers.security("pub")) as publisher:
        place = peers.pinned(publisher.endpoint, "pub")
        sub = run_here("sub", place, "--timeout", "2.5", *peers.options("sub"))
    assert sub.returncode == 1
    said = sub.stderr.decode()
    assert f"does not admit our key {stranger.fingerprint}" in said
    assert re.search(r"no message for 2.5 s; 0 came; .*does not admit our key", said)
    check_silence(peers, said)


@pytest.mark.long
def test_the_guide_s_five_commands(tmp_path):
    """With folders as machines, and three of them."""
    page = Path(__file__).parents[2] / "docs" / "guide" / "security.md"
    (block,) = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        place = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    for old, new in (
        ("tcp://prices:5556", place), ("tcp://*:5556", place), ("--wait 9", "--wait 2"),
        (" bars-3 bars-4 bars-5 bars-6 bars-7 bars-8 bars-9", ""),
    ):  # fmt: skip
        assert old in block
        block = block.replace(old, new)
    shims = f"""
p2pmsg() {{ {sys.executable} -m p2pmsg "$@"; }}; export -f p2pmsg
ssh() {{ local host=$1; shift; mkdir -p $host; (cd $host; HOME=$PWD bash -c "$*"); }}
scp() {{ cp $1 ${{2/://}}; }}
"""
    done = subprocess.run(
        ["bash", "-c", f"{shims}{block}\nwait"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    dates = re.findall(r"^\S+ \S+ .*\d\d:\d\d:\d\d .*$", done.stdout, re.MULTILINE)
    assert len(dates) == 2, done.stdout + done.stderr
