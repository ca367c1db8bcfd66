"""Which PySpark is new enough. It is told by the names that are needed, not by its number alone."""

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from spark_bridge.errors import MissingDependencyError

PYSPARK: Final = "PySpark 4.2 or newer"
"""A stream's reader is given its start only since then (`pyspark.sql.streaming.datasource`); in 4.1
it would have to guess after a restart where peers stood that are away or have begun anew."""
NEEDED_MODULE: Final = "pyspark.sql.streaming.datasource"


def require_pyspark() -> None:
    """Raise `MissingDependencyError` where PySpark is missing, or too old for the source."""
    if importlib.util.find_spec("pyspark") is None:
        raise MissingDependencyError("PySpark", "pip install 'p2pmsg[spark]'")
    try:
        found = importlib.util.find_spec(NEEDED_MODULE)
    except (ImportError, ValueError):  # a package above it is missing, or it has no spec
        found = None
    if found is None:
        raise too_old(f"no module {NEEDED_MODULE!r}")


def too_old(missing: object) -> MissingDependencyError:
    """Return the error for a PySpark that lacks something, or is missing.

    Args:
        missing: what it lacks: the text of an import error.

    """
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        return MissingDependencyError("PySpark", f"{missing}; pip install 'p2pmsg[spark]'")
    advice = f"PySpark {installed} is installed ({missing}); pip install 'pyspark>=4.2'"
    return MissingDependencyError(PYSPARK, advice)
