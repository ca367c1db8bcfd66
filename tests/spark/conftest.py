"""One Spark session a test run; everything here is skipped where Java or PySpark is missing."""

import os
import sys
from pathlib import Path

import pytest

import p2pmsg
import spark_bridge
from tests.spark.streams import small_session

ROOT = Path(__file__).parents[2]
NOT_OURS = (
    # py4j leaves its sockets to the garbage collector.
    "ignore:unclosed <socket.*:ResourceWarning",
    "ignore:subprocess .* is still running:ResourceWarning",
)


def why_not():
    try:
        spark_bridge.require_spark()
    except ImportError as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items):
    reason = why_not()
    for item in items:
        if item.get_closest_marker("spark"):
            for warning in NOT_OURS:
                item.add_marker(pytest.mark.filterwarnings(warning))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    builder = SparkSession.builder.master("local[2]").appName("tests")
    session = small_session(builder, **settings)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def publisher():
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed") as publisher:
        yield publisher
