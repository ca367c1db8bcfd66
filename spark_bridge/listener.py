"""A listener for Spark that keeps how far each query is behind."""

import json
import logging
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_bridge.lag import Lag, lag_of

_log: Final = logging.getLogger("spark_bridge")


class LagListener(StreamingQueryListener):  # type: ignore[misc]
    """Keeps the newest lag of each query: `spark.streams.addListener(LagListener())`.

    Args:
        on_lag: called with a `Lag` after each batch, by Spark's listener thread. Default: one line
            is logged at level INFO.

    """

    def __init__(self, on_lag: Callable[[Lag], None] | None = None) -> None:
        self._on_lag = on_lag
        self._lags: dict[str, Lag] = {}

    def lags(self) -> dict[str, Lag]:
        """Return the newest lag of each query, by its id."""
        return dict(self._lags)

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Take the lag out of the report."""
        progress = json.loads(event.progress.json)
        lag = lag_of(progress)
        if lag is None:
            return
        self._lags[progress["id"]] = lag
        if self._on_lag is not None:
            self._on_lag(lag)
        else:
            _log.info("%s", lag)

    def onQueryIdle(self, event: Any) -> None:
        """Nothing has changed."""

    def onQueryTerminated(self, event: Any) -> None:
        """Forget the query."""
        self._lags.pop(str(event.id), None)
