"""Apache Spark over p2pmsg: a source with exact offsets, and a sink, for streams and batches.

Importing this package does not import PySpark; the functions do.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from spark_bridge.committed import CommittedRows
from spark_bridge.errors import (
    BridgeError,
    ChangedBatchError,
    DataLossError,
    OptionError,
)
from spark_bridge.lag import Lag, lag_of
from spark_bridge.session import configure, register, require_spark

if TYPE_CHECKING:
    from spark_bridge.listener import LagListener

__all__ = [
    "BridgeError",
    "ChangedBatchError",
    "CommittedRows",
    "DataLossError",
    "Lag",
    "LagListener",
    "OptionError",
    "configure",
    "lag_of",
    "register",
    "require_spark",
]


def __getattr__(name: str) -> Any:
    """Import what needs PySpark when it is first asked for."""
    if name == "LagListener":
        try:
            from spark_bridge.listener import LagListener
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "pyspark":
                raise
            text = "needs PySpark, which is missing: pip install 'p2pmsg[spark]'"
            raise AttributeError(f"spark_bridge.{name} {text}") from error
        return LagListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


if not _is_there("pyspark"):  # so that `import *` does without it
    __all__.remove("LagListener")
