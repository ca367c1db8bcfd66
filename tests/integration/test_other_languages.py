"""The readers of examples/other_languages against real publishers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import p2pmsg
from p2pmsg.testing.proxy import TcpProxy
from tests.integration.peers import LOOPBACK, eventually

FOLDER = Path(__file__).parents[2] / "examples" / "other_languages"
WAIT_S = 60


@pytest.fixture(scope="session")
def c_reader(compile_with_libzmq):
    return [compile_with_libzmq(FOLDER / "reader.c")]


@pytest.fixture(scope="session")
def node_reader():
    node, folder = shutil.which("node"), os.environ.get("P2PMSG_NPM_FOLDER", "")
    if node is None:
        pytest.skip("Node is not there")
    modules = Path(folder) / "node_modules"
    if not folder or not all((modules / name).is_dir() for name in ("zeromq", "@msgpack/msgpack")):
        pytest.skip("P2PMSG_NPM_FOLDER names no folder with npm's zeromq and @msgpack/msgpack")
    return ["env", f"NODE_PATH={modules}", node, FOLDER / "reader.mjs"]


@pytest.fixture(params=["c", pytest.param("node", marks=pytest.mark.long)])
def start(request):
    """Start a reader; returns its process, which is killed in the end."""
    command = request.getfixturevalue(f"{request.param}_reader")
    started = []

    def make(*arguments):
        process = subprocess.Popen(
            [*command, *map(str, arguments)], bufsize=0, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield make
    for process in started:
        process.kill()
        process.communicate()


def lines_of(process):
    out, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    return out.decode().splitlines(), errors.decode()


def is_data(frame):
    at = frame.find(b"\0") + 1
    return at > 1 and frame[at : at + 4] == b"p2\x01\x01"


def test_a_reader_repairs_what_was_lost_and_replays_what_was_before(start):
    with (
        p2pmsg.Publisher(LOOPBACK, name="feed") as publisher,
        TcpProxy(publisher.endpoint, drop=is_data, frame_loss=0.3, seed=7) as proxy,
    ):
        for number in range(50):
            publisher.publish("prices", number)
        reader = start(proxy.endpoint, "prices", 300)
        publisher.wait_for_subscribers(1, timeout=WAIT_S)
        for number in range(50, 300):
            publisher.publish("prices", number)
            publisher.flush()
        lines, errors = lines_of(reader)
        assert proxy.frames_dropped > 20
        assert lines == [f"{number} {number}" for number in range(300)]
        assert "asks " in errors
        eventually(lambda: publisher.stats().subscribers == 0)  # it said that it leaves


VALUES = [
    ("text", '"text"'), (b"bytes", '"bytes"'), (-5, "-5"), (2**40, str(2**40)), (0.25, "0.25"),
    (None, "null"), (True, "true"), ([1, [2, "é"]], '[1,[2,"é"]]'),
    ({"a": {"b": -300}}, '{"a":{"b":-300}}'), ([*range(17)], f"[{','.join(map(str, range(17)))}]"),
]  # fmt: skip


@pytest.mark.long
def test_a_reader_reads_values_of_all_types_with_other_columns(start):
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        publisher.publish_many("t", [value for value, _ in VALUES])
        for number, (value, _) in enumerate(VALUES):
            publisher.publish("t", value, key="k", timestamp_ns=number, headers={"h": [number]})
        lines, _ = lines_of(start(publisher.endpoint, "t", 2 * len(VALUES)))
    shown = [text for _, text in VALUES] * 2
    assert lines == [f"{number} {text}" for number, text in enumerate(shown)]


@pytest.mark.long
def test_a_reader_names_what_cannot_be_had_and_goes_on(start):
    config = p2pmsg.PublisherConfig(replay_bytes=4096)
    with (
        p2pmsg.Publisher(LOOPBACK, config=config) as publisher,
        TcpProxy(publisher.endpoint, drop=is_data) as proxy,
    ):
        publisher.publish("t", 0)
        reader = start(proxy.endpoint, "t", 3)
        assert reader.stdout.readline() == b"0 0\n"  # by NACK
        proxy.refuse()
        proxy.cut()
        for number in range(1, 21):
            publisher.publish("t", bytes(1000), key=str(number))
            publisher.flush()
        proxy.refuse(False)
        (lost, *rest), _ = lines_of(reader)
    _, start_, stop, reason = lost.split()
    assert (start_, reason) == ("1", "evicted")
    assert [line.split()[0] for line in rest] == [stop, str(int(stop) + 1)]


@pytest.mark.long
def test_a_reader_goes_on_after_a_restart_of_a_publisher_with_a_log(start, tmp_path, caplog):
    endpoint = f"ipc://{tmp_path}/feed"
    log = p2pmsg.LogConfig(str(tmp_path / "log"))
    with p2pmsg.Publisher(endpoint, log=log) as publisher:
        publisher.publish_many("t", [0, 1, 2])
        reader = start(endpoint, "t", 6)
        publisher.wait_for_subscribers(1, timeout=WAIT_S)
        assert reader.stdout.readline() == b"0 0\n"
    with p2pmsg.Publisher(endpoint, log=log) as publisher:
        publisher.publish_many("t", [3, 4, 5])
        lines, errors = lines_of(reader)
    assert lines == [f"{number} {number}" for number in range(1, 6)]
    assert errors.count("joins") == 1
    assert (
        not caplog.records
    )  # the publishers that closed waited for the reader no longer than it took
