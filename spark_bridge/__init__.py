"""Apache Spark over p2pmsg: a source with exact offsets, and a sink, for streams and batches.

Importing this package does not import PySpark; the functions do.
"""

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
    from spark_bridge.listener import LagListener as LagListener

__all__ = [
    "BridgeError",
    "ChangedBatchError",
    "CommittedRows",
    "DataLossError",
    "Lag",
    "OptionError",
    "configure",
    "lag_of",
    "register",
    "require_spark",
]


def __getattr__(name: str) -> Any:
    """Import what needs PySpark when it is first asked for."""
    if name != "LagListener":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from spark_bridge.listener import LagListener
    except ImportError as error:
        text = f"spark_bridge.{name} needs PySpark: pip install 'p2pmsg[spark]' ({error})"
        raise AttributeError(text) from error
    return LagListener
