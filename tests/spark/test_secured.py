"""Keys in real Spark: of files and of secrets, at driver and executors; no secret is seen."""

import base64
import os
import re
import shutil
import subprocess
import sys

import pytest

import p2pmsg
from spark_bridge.errors import OptionError
from spark_bridge.keys import Keys, security_of
from spark_bridge.options import parse_options, parse_sink_options
from tests.integration.secure import Peers
from tests.spark.conftest import ROOT
from tests.spark.streams import Collector, collect_now, read_stream, sealed
from tests.spark.test_batch import offsets, read

A, KEY = "tcp://10.0.0.1:5556", "A" * 43
SECRET = "B" * 42 + "A"
GOOD = {"peers": A, "subscribe": "t"}


@pytest.fixture
def peers(tmp_path):
    return Peers(tmp_path)


@pytest.fixture
def publisher(peers):
    with p2pmsg.Publisher(
        "tcp://127.0.0.1:0", name="feed", security=peers.security("pub", "spark")
    ) as publisher:
        peers.security("spark", "pub")
        publisher.publish_many("t", [b"x"] * 100)
        sealed(publisher, "t", 100)
        yield publisher


def files(peers, name="spark"):
    return {
        "security": str(peers.folder / name),
        "trust": str(peers.folder / f"{name}.known"),
    }


@pytest.mark.parametrize(
    ("given", "option", "reason"),
    [
        ({**GOOD, "trust": "/t"}, "trust", "goes with 'security' or 'securitySecret'"),
        ({**GOOD, "peers": f"{A}?key={KEY}"}, "security", "pins a key, as for tcp://10.0.0.1"),
        ({**GOOD, "peers": f"{A}?key=x"}, "peers", "43 characters"),
        ({**GOOD, "security": "/k", "securitySecret": KEY}, "securitySecret", "together with"),
        ({**GOOD, "security": KEY}, "security", "must name a file, and has a key"),
        ({**GOOD, "security": KEY[:-1]}, "security", "must name a file, and has a key"),
        ({**GOOD, "security": ""}, "security", "must name a file"),
        ({**GOOD, "securitySecret": "secret"}, "securitySecret", "43 characters"),
        ({**GOOD, "securitySecret": f"{KEY[:-1]}B"}, "securitySecret", "43 characters"),
        ({"path": "/", "subscribe": "t", "security": "/k"}, "security", "'path' reads files"),
    ],
)
def test_wrong_options_are_refused_by_name_and_show_no_key(given, option, reason):
    with pytest.raises(OptionError, match=reason) as refused:
        parse_options(given)
    assert refused.value.option == option
    assert KEY[:-1] not in str(refused.value)


def test_options_show_no_secret_and_endpoints_no_key():
    options = parse_options({**GOOD, "peers": f"{A}?key={KEY}", "securitySecret": SECRET})
    assert options.peers == (A,)
    assert options.keys.pins == ((A, KEY),)
    assert SECRET not in repr(options)
    sink = parse_sink_options({"endpoint": A, "securitySecret": SECRET, "access": "/a"})
    assert sink.keys.access == "/a"
    assert SECRET not in repr(sink)


def test_a_file_of_peers_pins_no_keys(tmp_path):
    (tmp_path / "peers").write_text(f"{A}?key={KEY}\n")
    with pytest.raises(OptionError, match="pin keys in the file of 'trust'"):
        parse_options({"peers": f"file:{tmp_path}/peers", "subscribe": "t", "security": "/k"})


@pytest.mark.parametrize("missing", ["security", "trust", "access"])
def test_a_file_that_is_not_there_is_named_with_option_and_machine(peers, missing):
    peers.security("spark", "pub")
    (peers.folder / "access").write_text('[[rule]]\nwho = ["x"]\nsubscribe = ["t"]\n')
    given = files(peers) | {"access": str(peers.folder / "access")}
    given[missing] = str(peers.folder / "none")
    keys = Keys(key=given["security"], trust=given["trust"], access=given["access"])
    with pytest.raises(OptionError, match=f"names the file '{given[missing]}'") as refused:
        security_of(keys)
    assert refused.value.option == missing
    assert os.uname().nodename in str(refused.value)


def test_a_key_file_that_changed_is_read_again(peers):
    peers.security("spark", "pub")
    keys = Keys(key=str(peers.folder / "spark"))
    before = security_of(keys)
    assert security_of(keys) is before
    peers.security("other")
    os.replace(peers.folder / "other", peers.folder / "spark")
    assert security_of(keys).fingerprint != before.fingerprint
    os.chmod(peers.folder / "spark", 0o640)
    os.utime(peers.folder / "spark", ns=(1, 1))
    with pytest.raises(OptionError, match="mode 0640"):
        security_of(keys)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_stream_and_a_batch_with_files_and_an_executor_without(spark, publisher, peers, tmp_path):
    place = peers.pinned(publisher.endpoint, "pub")
    checkpoint = tmp_path / "checkpoint"
    sink = collect_now(
        read_stream(spark, [place], startingOffsets="earliest", **files(peers)), checkpoint
    )
    assert sink.offsets() == list(range(100))
    # The endpoint's key is in the file now: the offsets name the endpoint alone.
    security = peers.security("spark")
    security.known.add("pub", peers.text("pub"), [publisher.endpoint])
    publisher.publish_many("t", [b"x"] * 20)
    sealed(publisher, "t", 120)
    frame = read_stream(spark, [publisher.endpoint], **files(peers))
    assert collect_now(frame, checkpoint, Collector()).offsets() == list(range(100, 120))

    batch = read(spark, [publisher.endpoint], **files(peers)).load()
    assert offsets(batch) == list(range(120))
    # Under another name, since workers keep the connections that they have.
    copied = peers.folder / "copied"
    shutil.copy(peers.folder / "spark", copied)
    batch = read(spark, [publisher.endpoint], **files(peers) | {"security": str(copied)}).load()
    copied.unlink()
    with pytest.raises(Exception, match="option 'security' of format p2pmsg names the file") as no:
        batch.collect()
    assert str(copied) in str(no.value)


@pytest.mark.spark
@pytest.mark.long  # it starts a Spark of its own
@pytest.mark.timeout(600)
def test_no_secret_is_in_plans_logs_progress_offsets_or_the_checkpoint(publisher, peers, tmp_path):
    pair = peers.keys["spark"]
    secret = peers.secret("spark")
    folder = tmp_path / "out"
    folder.mkdir()
    sink = f"ipc://{tmp_path}/sink"
    place = peers.pinned(publisher.endpoint, "pub")
    with p2pmsg.Subscriber(
        peers.pinned(sink, "spark"), topics=["out"], start="earliest",
        security=peers.security("pub"),
    ) as subscriber:  # fmt: skip
        done = subprocess.run(
            [
                sys.executable, "-m", "tests.spark.secured_job", place, sink, secret,
                str(peers.folder / "spark.known"), str(folder),
            ],
            cwd=ROOT, capture_output=True, timeout=500, check=False,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == 0, said[-3000:].decode()
        assert b"batch 100\n" in said
        assert b"view 100\n" in said
        assert len(re.findall(rb"^refused ", said, re.MULTILINE)) == 3
        assert subscriber.receive(60).value == b"x"
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert any(b"securitySecret" in text for text in [said, *texts])  # options are shown at all
    forms = (
        secret.encode(),
        pair.secret,
        pair.secret.hex().encode(),
        base64.b64encode(pair.secret),
    )
    assert not any(form in text for form in forms for text in [said, *texts])
    offsets_of = folder / "checkpoint" / "offsets"
    assert not any(b"?key=" in each.read_bytes() for each in offsets_of.iterdir())
