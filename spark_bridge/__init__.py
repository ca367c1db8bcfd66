"""Apache Spark over p2pmsg: a streaming source with exact offsets.

Importing this package does not import PySpark; the functions do.
"""

from spark_bridge.errors import BridgeError, DataLossError, MissingDependencyError, OptionError
from spark_bridge.session import configure, register, require_spark

__all__ = [
    "BridgeError",
    "DataLossError",
    "MissingDependencyError",
    "OptionError",
    "configure",
    "register",
    "require_spark",
]
