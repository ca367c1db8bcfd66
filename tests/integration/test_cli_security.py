"""`--security` of commands, run as a user does; and a client of others with keys."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq.utils.z85 as z85

from p2pmsg import Publisher, Subscriber
from p2pmsg.security import read_key_file
from tests.integration.commands import command, eventually, run, run_here
from transports import key_text

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
def test_a_topic_that_is_denied_is_named_and_others_come(tmp_path, peers):
    access = tmp_path / "access.toml"
    access.write_text('[[rule]]\nwho = ["sub"]\nsubscribe = ["open"]\n')
    peers.security("pub", "sub")
    with command(
        tmp_path, "pub", ANY_PORT, "open", *peers.options("pub"), "--access", str(access)
    ) as pub:
        pub.write(b"one\n")
        place = peers.pinned(listening(pub), "pub")
        words = ["--start", "earliest", "--count", "1", *peers.options("sub")]
        sub = run_here("sub", place, "open", "closed", *words)
    assert (sub.returncode, sub.stdout) == (0, b"one\n")
    assert "subscribe 'closed' is not allowed" in sub.stderr.decode()


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


@pytest.fixture(scope="session")
def node():
    """Return the command of Node, with npm's zeromq and @msgpack/msgpack."""
    program, folder = shutil.which("node"), os.environ.get("P2PMSG_NPM_FOLDER", "")
    if program is None:
        pytest.skip("Node is not there")
    modules = Path(folder) / "node_modules"
    if not folder or not all((modules / name).is_dir() for name in ("zeromq", "@msgpack/msgpack")):
        pytest.skip("P2PMSG_NPM_FOLDER names no folder with npm's zeromq and @msgpack/msgpack")
    return ["env", f"NODE_PATH={modules}", program]


CLIENT = """
const zmq = require("zeromq"), { decode } = require("@msgpack/msgpack");
const [endpoint, curveServerKey, curvePublicKey, curveSecretKey, count] = process.argv.slice(2);
const socket = new zmq.Subscriber({ curveServerKey, curvePublicKey, curveSecretKey });
socket.subscribe("open\\0", "closed\\0", "closed", "");
socket.connect(endpoint);
(async () => {
  let left = Number(count);
  for await (const [frame] of socket) {
    const end = frame.indexOf(0);
    if (frame[end + 4] !== 1) {
      console.log("control", frame.toString("latin1", 0, end));
      continue;
    }
    const [values] = decode(frame.subarray(end + 39), { useBigInt64: true });
    for (const value of values) console.log(frame.toString("latin1", 0, end), value);
    if ((left -= values.length) <= 0) break;
  }
  socket.close();
})();
"""


def test_a_client_of_npm_reads_what_it_may_and_gets_nothing_else(tmp_path, peers, node):
    """It asks for all topics, and for one that it may not have in two ways."""
    access = tmp_path / "access.toml"
    access.write_text(
        '[[rule]]\nwho = ["js"]\nsubscribe = ["open"]\n[[rule]]\nwho = ["all"]\nsubscribe = ["*"]\n'
    )
    script = tmp_path / "client.js"
    script.write_text(CLIENT)
    security = peers.security("pub", "js", "all", access=access)
    with Publisher(ANY_PORT, security=security) as publisher:
        place = peers.pinned(publisher.endpoint, "pub")
        keys = read_key_file(tmp_path / "js")
        texts = [
            z85.encode(key).decode() for key in (security.keys.public, keys.public, keys.secret)
        ]
        with (
            Subscriber(place, start="earliest", security=peers.security("all")) as everything,
            subprocess.Popen(
                [*node, script, publisher.endpoint, *texts, "20"], stdout=subprocess.PIPE
            ) as client,
        ):
            try:
                published = 0
                while client.poll() is None and published < 2000:
                    publisher.publish("closed", f"secret {published}")
                    publisher.publish("open", published)
                    publisher.flush()
                    published += 1
                    time.sleep(0.03)
                assert client.wait(60) == 0
            finally:
                client.kill()
            lines = client.stdout.read().decode().splitlines()
            topics = {everything.receive(60).topic for _ in range(2 * published)}
    data = [line for line in lines if not line.startswith("control ")]
    first = int(data[0].split()[1])
    assert data == [f"open {number}" for number in range(first, first + 20)]
    assert not any("closed" in line for line in lines)
    assert topics == {"open", "closed"}
