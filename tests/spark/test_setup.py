"""Setting up: what is configured, what is missing, Connect mode, and being found by Spark."""

import json
import os
import subprocess
import sys
import zipfile
from functools import partial

import pytest

import spark_bridge
from tests.spark.conftest import ROOT, why_not
from tests.spark.streams import sealed

pyspark = pytest.importorskip("pyspark")
NO_SPARK = why_not()
needs_spark = pytest.mark.skipif(NO_SPARK is not None, reason=str(NO_SPARK))


class Builder:
    """Keeps what is set, as Spark's builder does."""

    def __init__(self, **options):
        self._options = {key.replace("_", "."): value for key, value in options.items()}

    def config(self, key, value):
        self._options[key] = value
        return self

    @property
    def options(self):
        return self._options


@pytest.fixture
def no_defaults(monkeypatch):
    """A SparkConf as in a new process: a session that runs here has given its JVM its settings."""
    monkeypatch.setattr(pyspark, "SparkConf", partial(pyspark.SparkConf, loadDefaults=False))


@needs_spark
@pytest.mark.usefixtures("no_defaults")
def test_configure_sets_what_was_measured_and_nothing_that_the_user_has_set(monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    options = spark_bridge.configure(Builder(spark_master="local[2]")).options
    assert options["spark.python.unix.domain.socket.enabled"] == "true"
    assert options["spark.sql.shuffle.partitions"] == "1"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable

    builder = Builder(spark_master="local[2]", spark_sql_shuffle_partitions="7")
    assert spark_bridge.configure(builder).options["spark.sql.shuffle.partitions"] == "7"
    monkeypatch.setenv("PYSPARK_PYTHON", "/other/python")
    spark_bridge.configure(Builder())
    assert os.environ["PYSPARK_PYTHON"] == "/other/python"


@needs_spark
@pytest.mark.usefixtures("no_defaults")
@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "local-cluster[2,1,1024]"])
def test_configure_leaves_a_clusters_shuffle_and_python_alone(master, monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    options = spark_bridge.configure(Builder(spark_master=master)).options

    assert "spark.sql.shuffle.partitions" not in options
    assert "PYSPARK_PYTHON" not in os.environ
    assert "spark.python.unix.domain.socket.enabled" in options


@pytest.mark.parametrize(
    ("module", "what"),
    [("pyspark.sql.streaming.datasource", "PySpark 4.2"), ("pyarrow", "PyArrow 21")],
)
def test_a_missing_package_is_named(monkeypatch, module, what):
    monkeypatch.setitem(sys.modules, module, None)
    for call in (spark_bridge.require_spark, lambda: spark_bridge.register(None)):
        with pytest.raises(ImportError, match=f"needs {what} or newer: pip install"):
            call()


@pytest.mark.parametrize("home", ["", "/nowhere"])
def test_missing_java_is_named(monkeypatch, tmp_path, home):
    monkeypatch.setenv("JAVA_HOME", home)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ImportError, match="Java 17"):
        spark_bridge.require_spark()


def test_importing_the_package_imports_no_pyspark():
    code = "import spark_bridge, sys; sys.exit(bool({'pyspark', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.fixture
def site(tmp_path):
    """A folder with what the wheel installs."""
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


@pytest.mark.spark
@pytest.mark.long
def test_the_wheel_is_found_by_spark(publisher, site, tmp_path):
    publisher.publish_many("t", [b"x"] * 10)
    sealed(publisher, "t", 10)
    code = f"""
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.log.level", "OFF")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
reader = spark.read.format("p2pmsg").option("peers", "{publisher.endpoint}")
print("rows:", reader.option("subscribe", "t").load().count())
spark.stop()
"""
    done = run([sys.executable, "-c", code], tmp_path, PYTHONPATH=str(site))

    assert "rows: 10" in done.stdout, done.stderr[-3000:]


@pytest.mark.spark
@pytest.mark.long
def test_connect_mode(publisher, tmp_path):
    for name in ("grpc", "grpc_status", "pandas"):
        pytest.importorskip(name, reason=f"Spark Connect needs {name}")
    publisher.publish_many("t", [{"n": number} for number in range(100)])
    sealed(publisher, "t", 100)
    command = [sys.executable, "-m", "tests.spark.connect_client", publisher.endpoint]
    # With no PYSPARK_PYTHON, and another python3 on the PATH, which has no PySpark.
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 7\n")
    other.chmod(0o755)
    path = f"{other.parent}{os.pathsep}{os.environ['PATH']}"
    done = run([*command, str(tmp_path / "checkpoint")], ROOT, PYSPARK_PYTHON=None, PATH=path)

    assert done.stdout, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["count"] == 100
    assert said["sum"] == sum(range(100))
    assert "connect" in said["kind"]


def run(command, folder, **changes):
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **changes}
    return subprocess.run(
        command,
        cwd=folder,
        env={name: value for name, value in environment.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
