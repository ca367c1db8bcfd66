"""Registration, and the settings of a Spark session that matter here."""

import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
LOCAL_SETTINGS: Final = {
    # An aggregation's state is in so many parts, each a file a batch; 200 without it. Measured:
    # 393 ms a batch, 151 with one.
    "spark.sql.shuffle.partitions": "1",
}
"""For `local` masters only: a cluster's work is meant to be spread."""


def require_packages() -> None:
    """Raise `ImportError` where PySpark or PyArrow is missing or too old.

    PySpark before 4.2 does not give a stream's reader its start: after a restart it would have to
    guess the positions of peers that are away or have restarted.
    """
    for module, package in (
        ("pyspark.sql.streaming.datasource", "PySpark 4.2"),
        ("pyarrow", "PyArrow 21"),
    ):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ImportError(
                f"spark_bridge needs {package} or newer: pip install 'p2pmsg[spark]' ({error})"
            ) from error


def require_spark() -> None:
    """Raise `ImportError`, naming what is missing, unless Spark can start here."""
    require_packages()
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home, "bin", "java"), os.X_OK):
        return
    if home or shutil.which("java") is None:
        where = f"JAVA_HOME is {home!r} and has no bin/java" if home else "no java on the PATH"
        raise ImportError(f"spark_bridge needs Java 17 or newer, which is missing: {where}")


def configure(builder: "SparkSession.Builder") -> "SparkSession.Builder":
    """Set what measurements ask for, and nothing that the user has set; returns `builder`.

    What is set on the builder (before or afterwards), by spark-submit, in `spark-defaults.conf`, or
    by `PYSPARK_PYTHON`, is left alone:

    - Unix sockets between Java and Python, and a checkpoint file manager for local disks;
    - with a `local` master, one shuffle partition, and in the environment `PYSPARK_PYTHON`, this
      interpreter (the workers run the `python3` of the PATH otherwise, which may be another one).
      So with `remote("local[2]")`; a server elsewhere has its own settings.

    Raises:
        ImportError: PySpark 4.2 or newer, PyArrow or Java is missing.

    """
    options: dict[str, str] = dict(getattr(builder, "_options", {}))
    remote = options.get("spark.remote") or os.environ.get("SPARK_REMOTE")
    if remote is not None and not remote.startswith("local"):
        require_packages()
        return builder  # the server has its settings, and they cannot be set from here
    require_spark()
    from pyspark import SparkConf

    given = SparkConf()
    settings = dict(SETTINGS)
    # `remote("local[2]")` starts a server in this process, with the builder's settings.
    master = remote or options.get("spark.master") or given.get("spark.master") or "local"
    if master.startswith("local") and not master.startswith("local-cluster"):
        settings |= LOCAL_SETTINGS
        if not given.contains("spark.pyspark.python") and "spark.pyspark.python" not in options:
            # By the environment: data sources run before Spark looks at its own setting for it.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in settings.items():
        if key not in options and not given.contains(key):
            builder = builder.config(key, value)
    return builder


def register(spark: "SparkSession") -> None:
    """Make the format `p2pmsg` known to a session, of classic Spark or of Spark Connect.

    Where the package was installed from a wheel, Spark finds it by itself. `writeStream` looks for
    formats in the session that is active in the thread that calls it, and one that was made in
    another thread is not: call this in the thread that starts queries; it makes it active there.

    Raises:
        ImportError: PySpark 4.2 or newer, or PyArrow, is missing.

    """
    require_packages()
    from spark_bridge.source import P2pmsgSource

    spark.dataSource.register(P2pmsgSource)
    in_java = getattr(spark, "_jsparkSession", None)
    if in_java is not None:  # classic Spark
        in_java.setActiveSession(in_java)
