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


def test_local_cluster(tmp_path):
    """Publishers have addresses of their own."""
    with contextlib.ExitStack() as stack:
        endpoints = []
        for host in ("127.0.0.2", "127.0.0.3"):
            publisher = p2pmsg.Publisher(f"tcp://{host}:0", name=f"at {host}")
            endpoints.append(stack.enter_context(publisher).endpoint)
            publisher.publish_many("t", [b"%d" % at for at in range(COUNT)])
            sealed(publisher, "t", COUNT)
        done = subprocess.run(
            [
                sys.executable, "-m", "tests.spark.cluster_job", "local-cluster[2,1,1024]",
                ",".join(endpoints), str(ROOT), str(tmp_path / "checkpoint"),
            ],
            cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
            env={**os.environ, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1"},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["rows"] == said["distinct"] == said["batch"] == 2 * COUNT
    assert len(said["executors"]) == 2
    assert sum(said["executors"].values()) == 2 * COUNT
