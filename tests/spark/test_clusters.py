"""The same program on other masters: executors in processes of their own, peers elsewhere."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import p2pmsg
from tests.spark.conftest import ROOT
from tests.spark.streams import sealed

pyspark = pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.long]
HOME = Path(pyspark.__file__).parent
COUNT = 5000


def job(master, endpoints, tmp_path):
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.spark.cluster_job",
            master, ",".join(endpoints), str(ROOT), str(tmp_path / "checkpoint"),
        ],
        cwd=ROOT,
        env={**os.environ, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def peers():
    """Publishers on addresses of their own."""
    with contextlib.ExitStack() as stack:
        found = []
        for host in ("127.0.0.2", "127.0.0.3"):
            publisher = p2pmsg.Publisher(f"tcp://{host}:0", name=f"at {host}")
            found.append(stack.enter_context(publisher))
            publisher.publish_many("t", [b"%d" % at for at in range(COUNT)])
            sealed(publisher, "t", COUNT)
        yield [publisher.endpoint for publisher in found]


def check(said):
    assert said["rows"] == said["distinct"] == said["batch"] == 2 * COUNT
    assert len(said["executors"]) == 2
    assert sum(said["executors"].values()) == 2 * COUNT


def test_local_cluster(tmp_path):
    with peers() as endpoints:
        check(job("local-cluster[2,1,1024]", endpoints, tmp_path))
