"""Registration, and the settings of a Spark session that matter here."""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_bridge.errors import MissingDependencyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = {
    # Takes some 44 ms off every Python task.
    "spark.python.unix.domain.socket.enabled": "true",
    # Halves a batch's latency where checkpoints are on a local disk.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


def require_spark() -> None:
    """Raise `MissingDependencyError`, naming what is missing, unless Spark can start here."""
    for module, what in (("pyspark", "PySpark"), ("pyarrow", "PyArrow")):
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError(what, "pip install 'p2pmsg[spark]'")
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home, "bin", "java"), os.X_OK):
        return
    if home or shutil.which("java") is None:
        where = f"JAVA_HOME is {home!r} and has no bin/java" if home else "no java on the PATH"
        raise MissingDependencyError("Java 17 or newer", where)


def configure(builder: "SparkSession.Builder") -> "SparkSession.Builder":
    """Set what the streaming source needs to be quick; returns `builder`.

    Call it first: what is set on the builder afterwards replaces it, and what spark-submit or a
    Spark context that runs already has set is left alone.

    Raises:
        MissingDependencyError: PySpark, PyArrow or Java is missing.

    """
    require_spark()
    from pyspark import SparkConf

    given = SparkConf()
    for key, value in SETTINGS.items():
        if not given.contains(key):
            builder = builder.config(key, value)
    return builder


def register(spark: "SparkSession") -> None:
    """Make `spark.readStream.format("p2pmsg")` known to a session.

    Raises:
        MissingDependencyError: PySpark or PyArrow is missing.

    """
    for module, what in (("pyspark", "PySpark"), ("pyarrow", "PyArrow")):
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError(what, "pip install 'p2pmsg[spark]'")
    from spark_bridge.source import P2pmsgSource

    spark.dataSource.register(P2pmsgSource)
