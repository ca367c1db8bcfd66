"""What one task reads."""

from typing import Final

from pyspark.sql.datasource import InputPartition

from spark_bridge.offsets import Range

TASK_ROWS_MIN: Final = 50_000
"""Fewer rows than this are not worth a second task: one reads them in some 40 ms."""


class RangesPartition(InputPartition):  # type: ignore[misc]
    """Ranges of streams, to be fetched from peers."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges
