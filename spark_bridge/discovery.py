"""What Spark finds by itself: in a wheel, this file is the module `pyspark_p2pmsg`.

Spark imports every module whose name begins with `pyspark_` and takes its `DefaultSource`. An error
in one of them breaks all Python data sources of the session, so here none is raised: where a piece
is missing, there is no `DefaultSource`, and `spark_bridge.register` says what it is.
"""

import logging

try:
    from spark_bridge.source import P2pmsgSource as DefaultSource
except ImportError as error:
    logging.getLogger("spark_bridge").warning("the format p2pmsg is not there: %s", error)
else:
    __all__ = ["DefaultSource"]
