"""Which packages are needed. PySpark is checked by the names that are used, not by its version."""

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from typing import Final

PYSPARK: Final = "PySpark 4.2 or newer"
"""Older ones do not give a stream's reader its start (`pyspark.sql.streaming.datasource`): after a
restart it would have to guess the positions of peers that are away or have restarted."""
_ADVICE: Final = "pip install 'p2pmsg[spark]'"
NEEDED_MODULE: Final = "pyspark.sql.streaming.datasource"


def require_packages() -> None:
    """Raise `ImportError` where PySpark or PyArrow is missing, or PySpark is too old."""
    if importlib.util.find_spec("pyspark") is None:
        raise missing_error("PySpark", _ADVICE)
    try:
        found = importlib.util.find_spec(NEEDED_MODULE)
    except (ImportError, ValueError):  # a package above it is missing, or it has no spec
        found = None
    if found is None:
        raise too_old(f"no module {NEEDED_MODULE!r}")
    if importlib.util.find_spec("pyarrow") is None:
        raise missing_error("PyArrow", _ADVICE)


def missing_error(what: str, advice: str) -> ImportError:
    """Return the error for `what` Spark needs, as `PyArrow` or `Java 17 or newer`."""
    return ImportError(f"spark_bridge needs {what}, which is missing: {advice}")


def too_old(missing: object) -> ImportError:
    """Return the error for a PySpark that lacks something, or is missing.

    Args:
        missing: what it lacks: the text of an import error.

    """
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        return missing_error("PySpark", f"{missing}; {_ADVICE}")
    advice = f"PySpark {installed} is installed ({missing}); pip install 'pyspark>=4.2'"
    return missing_error(PYSPARK, advice)
